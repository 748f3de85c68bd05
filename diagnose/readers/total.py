"""A total loss for logs that hold only its parts, as YOLO's do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.model import Note, Run, Series
from diagnose.names import EVAL_LOSS, TRAIN_LOSS

#: The parts that YOLO v5 to v12 log for detection, segmentation and poses.
_PARTS = ("box_loss", "cls_loss", "obj_loss", "dfl_loss", "seg_loss", "pose_loss", "kobj_loss")


def with_total(run: Run) -> Run:
    """The run with `train/loss` and `eval/loss` as the sums of their parts, where only parts were logged.

    A run that has a training loss of its own, or fewer than two parts of equal steps, is returned as it is.
    """
    if TRAIN_LOSS in run.series:
        return run
    sums = {}
    for total, side in ((TRAIN_LOSS, "train/"), (EVAL_LOSS, "eval/")):
        parts = [run.series[side + part] for part in _PARTS if side + part in run.series]
        if total not in run.series and len(parts) > 1 and all(np.array_equal(p.step, parts[0].step) for p in parts):
            sums[total] = Series(total, parts[0].step, np.sum([p.value for p in parts], axis=0), np.ones_like(parts[0].step))
    if TRAIN_LOSS not in sums:
        return run
    note = Note("summed-loss", "no total loss was logged: it is the sum of box, class and other losses")
    return replace(run, series={**run.series, **sums}, notes=(*run.notes, note))
