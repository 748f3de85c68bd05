"""The examples in the docstrings of the trainer's modules that need no train extra: pytest looks for none in callbacks/."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("columns", "lengths", "memory", "out_of_memory", "plan", "read_rows", "saved_data", "shape", "split", "tokenized")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"diagnose.callbacks.qlora.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
