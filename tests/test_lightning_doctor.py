"""LightningCurveDoctor in a real Lightning Trainer on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="needs the lightning extra")
pytestmark = pytest.mark.train

import lightning.pytorch as pl
import torch
from tiny import Classifier, Points
from torch.utils.data import DataLoader

from diagnose import LightningCurveDoctor


class Module(pl.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.model = Classifier(**options)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.model(**batch)["loss"])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@pytest.mark.filterwarnings("ignore")
def fit(folder: Path, doctor: LightningCurveDoctor, module: Module, *, random_labels: bool = False, epochs: int = 60) -> Any:
    made = pl.Trainer(
        default_root_dir=folder, accelerator="cpu", max_epochs=epochs, log_every_n_steps=1, callbacks=[doctor], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    train = DataLoader(Points(32, seed=1, random_labels=random_labels), batch_size=8)
    made.fit(module, train, DataLoader(Points(32, seed=2, random_labels=random_labels), batch_size=32))
    return made


@pytest.mark.filterwarnings("ignore")
def test_nan_ends_the_training(tmp_path: Path) -> None:
    doctor = LightningCurveDoctor()
    made = fit(tmp_path, doctor, Module(nan_from=6))
    assert doctor.doctor.why is not None and doctor.doctor.why.name == "nan-loss"
    assert made.global_step == 7


@pytest.mark.filterwarnings("ignore")
def test_memorization_ends_the_training(tmp_path: Path) -> None:
    doctor = LightningCurveDoctor()
    made = fit(tmp_path, doctor, Module(), random_labels=True)
    assert doctor.doctor.why is not None and doctor.doctor.why.name == "memorization"
    assert made.global_step < 240


@pytest.mark.filterwarnings("ignore")
def test_a_healthy_run_is_left_alone(tmp_path: Path) -> None:
    doctor = LightningCurveDoctor(stop=False)
    made = fit(tmp_path, doctor, Module(), epochs=5)
    assert made.global_step == 20
    assert doctor.doctor.why is None
    assert {"train/loss", "eval/loss", "train/lr"} <= set(doctor.doctor.examination.curves.tracks)
