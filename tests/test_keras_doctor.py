"""KerasCurveDoctor in a real Keras training, on its torch backend."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="needs the keras extra")
pytest.importorskip("torch", reason="needs a backend for Keras")
pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

import keras

from diagnose import KerasCurveDoctor


def fit(doctor: KerasCurveDoctor, *, rate: float = 1e-2, random_labels: bool = False, epochs: int = 60) -> Any:
    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(64, 8)).astype("float32")
    y = draw.integers(0, 4, 64) if random_labels else x[:, :4].argmax(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss=loss)
    return model.fit(
        x[:32], y[:32], validation_data=(x[32:], y[32:]), epochs=epochs, batch_size=8, callbacks=[doctor], verbose=0,
    )  # fmt: skip


def test_memorization_ends_the_training() -> None:
    doctor = KerasCurveDoctor()
    done = fit(doctor, random_labels=True)
    assert doctor.doctor.why is not None and doctor.doctor.why.name == "memorization"
    assert len(done.epoch) < 60


def test_nan_ends_the_training_within_its_epoch() -> None:
    doctor = KerasCurveDoctor()
    done = fit(doctor, rate=1e38)
    assert doctor.doctor.why is not None and doctor.doctor.why.name == "nan-loss"
    assert len(done.epoch) <= 2


def test_a_healthy_run_is_left_alone() -> None:
    doctor = KerasCurveDoctor()
    done = fit(doctor, epochs=8)
    assert len(done.epoch) == 8
    assert doctor.doctor.why is None
    assert {"train/loss", "eval/loss", "train/lr"} <= set(doctor.doctor.examination.curves.tracks)
