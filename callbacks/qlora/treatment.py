"""After a stop: what to do next. A pure decision; `train.py` carries it out.

A run that was stopped for its learning rate is tried again with the factor that was prescribed, from the best state that it
reached, in a folder of its own. A run that memorizes is not: its best checkpoint is the result. All else has a cause that no
retry mends, and ends with what the doctor says of it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from diagnose import prescribe
from diagnose.callbacks.qlora.config import TrainConfig, with_values
from diagnose.callbacks.qlora.folder import free_folder
from diagnose.errors import ConfigError
from diagnose.model import SETTINGS, Change, Finding, Report, Severity, Status

#: The best evaluation must be this far below the first training loss for its checkpoint to be better than the start.
_BETTER = 0.98


@dataclass(frozen=True)
class Treatment:
    """A new try.

    Attributes:
        config: of the new try.
        changes: what is changed, one setting or two.
        lines: what is done and why, a sentence each.
    """

    config: TrainConfig
    changes: tuple[Change, ...]
    lines: tuple[str, ...]


def cause_of(report: Report, *, failed_preflight: bool) -> Finding | None:
    """The finding that ended a run; None where nothing did.

    A preflight may fail before the doctor is sure enough to stop. What it has found by then counts, and the largest change
    first: a loss that climbed past its start needs two factors of 3, whatever else was seen on the way.
    """
    if report.stop.because is not None or not failed_preflight:
        return report.stop.because
    live = [f for f in report.findings if f.status is Status.OPEN and f.severity is not Severity.INFO]
    found = [f for f in live if _factor(f) is not None]
    return min(found, key=lambda f: (-f.severity.rank, _factor(f) or 1.0), default=None)


def _factor(finding: Finding) -> float | None:
    """What a finding's cure multiplies the rate with; None where it does not, and where it is about a setting alone."""
    cure = finding.prescription
    if cure is None or finding.metric == SETTINGS:
        return None
    return next((c.factor for c in cure.changes if c.setting == "learning_rate"), None)


def treat(
    config: TrainConfig, folder: Path, report: Report, cause: Finding | None, *, first_loss: float | None
) -> Treatment | None:
    """The new try after a stop.

    Args:
        config: of the run that was stopped.
        folder: of that run.
        report: on it.
        cause: the finding that ended it.
        first_loss: its first training loss, which is that of the weights it started from; None where it was not logged.

    Returns:
        None where no new try is of use, or none is left.
    """
    cure = None if cause is None else cause.prescription or report.prescription
    if cause is None or cure is None or config.retries < 1:
        return None
    names = {item.name for item in dataclasses.fields(config)}
    changes = tuple(c for c in cure.changes if c.setting in names and c.after is not None)
    rate = next((c for c in changes if c.setting == "learning_rate"), None)
    if rate is None:
        return None
    try:
        changed = with_values(config, {c.setting: c.after for c in changes}, "the prescription")
    except ConfigError:
        return None  # prescribed for a rate beyond all bounds
    start, why = _start(config, folder, report, first_loss)
    changed = dataclasses.replace(changed, start_from=start, earlier=(*config.earlier, str(folder)), retries=config.retries - 1)
    changed = dataclasses.replace(changed, output_dir=str(free_folder(dataclasses.replace(changed, output_dir=str(folder)))))
    told = " and ".join(f"{c.setting} {_number(c.before)} to {_number(c.after)}{_factor_of(c)}" for c in changes)
    first = prescribe.cause(report.findings)
    before = "" if first is None or first == cause else f"; it counts before {first.name}, whose cure the report shows"
    lines = (
        f"{cause.name} at step {report.last_step}: {cure.why}{before}",
        f"changed: {told}; nothing else",
        f"starts from {why}",
        f"folder {changed.output_dir}, {changed.retries} more {'try' if changed.retries == 1 else 'tries'} left",
    )
    return Treatment(changed, changes, lines)


def _start(config: TrainConfig, folder: Path, report: Report, first_loss: float | None) -> tuple[str | None, str]:
    """The weights to start from: the best checkpoint where it is on disk and better than the run's own start."""
    best = report.best
    same = config.start_from or "the model as it was"
    if best is None:
        return config.start_from, f"{same}: no evaluation came before the stop"
    checkpoint = folder / f"checkpoint-{best.step}"
    if not checkpoint.is_dir():
        return config.start_from, f"{same}: the checkpoint of step {best.step} is gone"
    if first_loss is not None and math.isfinite(first_loss) and best.value > _BETTER * first_loss:
        return config.start_from, f"{same}: no evaluation was below its loss of {first_loss:.4g}"
    return str(checkpoint), f"{checkpoint}, the best so far ({best.metric} {best.value:.4g})"


def _factor_of(change: Change) -> str:
    """` (divided by 9)`; nothing for what is no number."""
    if change.factor is None:
        return ""
    return f" (divided by {1 / change.factor:.2g})" if change.factor < 1 else f" (times {change.factor:.2g})"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
