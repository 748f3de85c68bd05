"""The live doctor for any training loop: it is told numbers, and says when to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diagnose.examination import Examination
from diagnose.model import Finding, Report, Setting, Severity, Status
from diagnose.news import News
from diagnose.options import Options
from diagnose.report.words import finding_line
from diagnose.rows import number, row_from_log

_log = logging.getLogger("diagnose")
_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}


class Doctor:
    """Watches a training without a Trainer.

    It never raises once it is made: what it cannot read is left out, and its own failure is logged once. Findings go to the
    logger `diagnose`, and to `on_finding`. What it concludes is what `diagnose` says of a log with the same numbers.

    Args:
        settings: what is known of the training, by the Trainer's names: `learning_rate`, `max_steps`, `method`, …
        name: of the run, for the report.
        stop, patience, grace, select, ignore, thresholds, on_finding: see `Options`.

    Raises:
        ConfigError: a rule or threshold that does not exist, or a value that makes no sense.

    Examples:
        >>> doctor = Doctor(settings={"learning_rate": 2e-4, "max_steps": 300})
        >>> for step, loss in enumerate([2.0, 1.9, float("nan"), float("nan"), 1.7], start=1):
        ...     found = doctor.log(step, loss=loss, learning_rate=2e-4)
        ...     if doctor.should_stop:
        ...         break
        >>> step, doctor.why.name
        (4, 'nan-loss')
        >>> doctor.report().prescription.changes[0].after
        6.7e-05
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, Setting] | None = None,
        name: str = "run",
        stop: bool | str | Sequence[str] = True,
        patience: int | None = None,
        grace: float = 0,
        select: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        thresholds: Mapping[str, Any] | None = None,
        on_finding: Callable[[Finding], object] | None = None,
    ) -> None:
        self.options = Options(stop, patience, grace, select, ignore, thresholds, on_finding)
        self.name = name
        planned = number((settings or {}).get("max_steps"))
        policy = self.options.policy(int(planned) if planned is not None and planned < 1e12 else 0)  # noqa: PLR2004 - a plan
        self.examination = Examination(self.options.rules(), settings=settings, policy=policy)
        #: The finding for which the run should stop; None while there is none.
        self.why: Finding | None = None
        self._step = 0
        self._news = News()
        self._failed = False

    @property
    def should_stop(self) -> bool:
        """Whether the run is lost and `stop` allows to end it."""
        return self.why is not None and self.options.stops

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, by the step where it begins."""
        return self.examination.findings

    def log(self, step: int | None = None, epoch: float | None = None, **metrics: Any) -> tuple[Finding, ...]:
        """Tell the numbers of a training step.

        Args:
            step: the optimizer step; the next one if None. A step below the last one is left out, with a note in the report.
            epoch: if known.
            metrics: `loss`, `grad_norm`, `learning_rate` and any other; numbers, or what holds one (numpy, torch). All else is
                left out.

        Returns:
            Findings that are new, graver or resolved.
        """
        return self._guarded(step, epoch, metrics)

    def eval(self, step: int | None = None, epoch: float | None = None, **metrics: Any) -> tuple[Finding, ...]:
        """Tell the numbers of an evaluation: as `log`, with `loss` that of the evaluation; the last step if None."""
        named = {key if str(key).startswith(("eval_", "eval/")) else f"eval_{key}": value for key, value in metrics.items()}
        return self._guarded(self._step if step is None else step, epoch, named)

    def report(self) -> Report:
        """All that can be concluded now."""
        return self.examination.report(self.name)

    def _guarded(self, step: int | None, epoch: float | None, metrics: Mapping[str, Any]) -> tuple[Finding, ...]:
        try:
            return self._feed(step, epoch, metrics)
        except Exception:  # noqa: BLE001 - nothing of ours may end a training
            if not self._failed:
                self._failed = True
                _log.warning("curve-doctor failed at step %s; the training goes on", step, exc_info=True)
            return ()

    def _feed(self, step: int | None, epoch: float | None, metrics: Mapping[str, Any]) -> tuple[Finding, ...]:
        at = number(step)
        self._step = self._step + 1 if at is None or at != at else int(at)
        row = row_from_log(metrics, self._step, number(epoch))
        if row is None:
            return ()
        changed = self.examination.feed(row)
        if self.why is None:
            self.why = self.examination.now.because
        news = self._news.of(changed)
        for finding in news:
            _log.log(_LEVELS[finding.severity] if finding.status is Status.OPEN else logging.INFO, "%s", finding_line(finding))
            if self.options.on_finding is not None:
                self.options.on_finding(finding)
        return news
