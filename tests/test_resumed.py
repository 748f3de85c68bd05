"""A training that was resumed: the jump where it goes on is no trouble of the run."""

from __future__ import annotations

import numpy as np
from walk import watched

from diagnose.model import Note, Row
from diagnose.names import RESUMED, TRAIN_LOSS


def rows(*, jump: float, marked: bool) -> list[Row]:
    """A falling loss that at step 300 is `jump` times as high and falls again, with or without the mark of a resume."""
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    losses = [2.0 * np.exp(-i / 40) * np.exp(noise[i]) for i in range(30)]
    losses += [jump * losses[-1] * np.exp(-i / 40) * np.exp(noise[i]) for i in range(30)]
    made = [Row(10 * (i + 1), {TRAIN_LOSS: float(loss)}) for i, loss in enumerate(losses)]
    return [*made[:30], *([Row(300, {RESUMED: 1.0})] if marked else []), *made[30:]]


def names(found: list[Row], notes: tuple[Note, ...] = ()) -> set[str]:
    return {f.name for f in watched(found, notes=notes).findings}


def test_a_jump_is_a_spike() -> None:
    assert "loss-spike" in names(rows(jump=2.5, marked=False))


def test_but_not_where_the_training_was_resumed() -> None:
    assert "loss-spike" not in names(rows(jump=2.5, marked=True))


def test_nor_where_the_steps_went_back() -> None:
    assert "loss-spike" not in names(rows(jump=2.5, marked=False), (Note("steps-go-back", "resumed", 310),))


def test_a_spike_after_the_resume_is_one() -> None:
    found = rows(jump=1.0, marked=True)
    late = found[45]
    found[45] = Row(late.step, {TRAIN_LOSS: late.values[TRAIN_LOSS] * 4})
    assert "loss-spike" in names(found)
