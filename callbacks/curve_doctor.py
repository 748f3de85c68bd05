"""The doctor as a guest in a Trainer: rows in, findings, a stop and a report out. No statistics here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diagnose.callbacks.guard import guarded
from diagnose.callbacks.output import finding_line, say, show_report, write_report
from diagnose.callbacks.settings import read_settings
from diagnose.config import rules_from
from diagnose.errors import ConfigError
from diagnose.examination import Examination
from diagnose.model import Finding, Row, Setting
from diagnose.names import GRAD_NORM
from diagnose.rows import build_run, number, row_from_log
from diagnose.verdict import decide

_OPTIONS = ("ignore", "report", "select", "stop", "thresholds")


class CurveDoctor(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy, so its class is Any
    """Watches a training, says what it finds, and stops a run that is lost: `trainer.add_callback(CurveDoctor())`.

    Every process decides from the numbers that the Trainer has made equal on all of them; only the first one prints and
    writes. `curve_doctor.json` goes into the output folder and each checkpoint. It keeps no state of its own: what a resumed
    run logged before is read again from the Trainer's log. An old stop does not end it again; new evidence does.

    A run whose gradient norm is NaN is stopped without the checkpoint that may be due at that step: it would hold NaN
    weights, and `save_total_limit` might remove a good one for it.

    Args:
        stop: whether to end a lost run; if not, it is only told.
        select: codes, prefixes of codes or names of the rules to apply; all by default.
        ignore: those to leave out.
        thresholds: changed thresholds by rule name.
        report: whether to print the report when the training ends.

    Raises:
        TypeError: an option that does not exist.
        ConfigError: a rule or threshold that does not exist, or a value out of its bounds.
    """

    def __init__(
        self,
        *,
        stop: bool = True,
        select: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        thresholds: Mapping[str, Any] | None = None,
        report: bool = True,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(f"CurveDoctor has no option {', '.join(sorted(unknown))}; it has {', '.join(_OPTIONS)}")
        for name, value in (("stop", stop), ("report", report)):
            if not isinstance(value, bool):
                raise ConfigError(f"{name} must be true or false, got {value!r}")
        self.stop = stop
        self.report = report
        #: The run being watched, or the last one; None before the first.
        self.examination: Examination | None = None
        self._rules = rules_from(select, ignore, thresholds)
        self._said: dict[tuple[str, str, int], tuple[str, str]] = {}
        #: Whether one of our own hooks failed in this run; it is told once.
        self.failed = False
        self._stopped = False

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Start afresh: it is also called for a second try of `auto_find_batch_size`, and when a run is resumed."""
        self.examination, self._said, self.failed, self._stopped = None, {}, False, False
        settings: dict[str, Setting] = self._settings(args, state, model) or {}
        exam = Examination(self._rules, settings=settings)
        for row in _rows(state.log_history):
            self._news(exam.feed(row))
        self.examination = exam

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Look at one more row, of training or of evaluation, and stop the run if it has to be."""
        exam, row = self.examination, row_from_log(logs or {}, state.global_step, state.epoch)
        if exam is None or row is None:
            return
        changed = exam.feed(row)
        decision = decide(changed, exam.curves, exam.policy)
        if decision.stop and self.stop:
            # Before all output, which may fail on one process alone: the others would wait for it for ever.
            control.should_training_stop = True
            if math.isnan(row.values.get(GRAD_NORM, 0.0)):
                control.should_save = False
        if not state.is_world_process_zero:
            return
        for finding in self._news(changed):
            say(f"curve-doctor: {finding_line(finding)}")
        if decision.because is not None and not self._stopped:
            self._stopped = True
            keep = "" if decision.best_step is None else f"; the evaluation was best at step {decision.best_step}"
            said = "stops the run" if self.stop else "would stop the run (stop=False)"
            say(f"curve-doctor: {said} at step {decision.step} for {decision.because.name}{keep}")
            self._write(args.output_dir)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the findings so far beside the checkpoint's own log."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            self._write(args.output_dir, checkpoint)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the file and print the report."""
        self._stopped = True  # an evaluation that follows may still find something, but there is no run left to stop
        if not state.is_world_process_zero or self.examination is None:
            return
        self._write(args.output_dir)
        if self.report:
            run = build_run(_rows(state.log_history), id=Path(args.output_dir).name, source="live")
            show_report(self.examination.report(run.id), run)

    @guarded
    def _settings(self, args: Any, state: Any, model: Any) -> dict[str, Setting]:
        return read_settings(args, state, model)

    @guarded
    def _write(self, output_dir: str, *more: Path) -> None:
        if self.examination is None:
            return
        report = self.examination.report(Path(output_dir).name)
        for folder in (Path(output_dir), *more):
            write_report(report, report.settings, folder)

    def _news(self, changed: Sequence[Finding]) -> list[Finding]:
        """Findings that are new, graver or resolved; one that only goes on is no news."""
        news = [f for f in changed if self._said.get(f.key) != (f.severity, f.status)]
        self._said.update((f.key, (f.severity, f.status)) for f in news)
        return news


def _rows(log_history: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for log in log_history:
        row = row_from_log(log, int(number(log.get("step")) or 0))
        if row is not None:
            yield row
