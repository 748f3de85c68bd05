"""CD401 memorization: the evaluation loss has left its minimum while the training loss goes on falling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import WINDOW, Curves, Track
from diagnose.model import Evidence, Finding, Row, Severity, Status
from diagnose.names import EVAL_LOSS, TRAIN_LOSS, Direction, direction, error_share_gained, is_eval_loss
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median, noise_scale, trend

_FALLING = [2.0, 1.6, 1.3, 1.1, 0.9, 0.7, 0.5, 0.35, 0.25, 0.18]


#: From this many evaluations on the present level is the median of five, before that of three.
_MANY = 10
#: Either can rise at the other's cost, so neither alone says that a model improves.
_HALF_METRICS = frozenset({"eval/precision", "eval/recall"})


@dataclass(frozen=True)
class Memorization(Rule):
    """The evaluation loss rises from its minimum while the training loss goes on falling.

    What it sees:
        The evaluation loss stands above its lowest level: far above it, or above it by several times its own noise, or
        rising so steadily that chance is ruled out. The training loss has fallen since, so the model still learns, but
        only its training data. With three or more evaluations in a row up there it is an error and a reason to stop,
        unless a task metric (accuracy, F1, WER …) has clearly improved since the minimum: then it stays a warning that
        names both optima.

    Why it matters:
        From the minimum on every step makes the model worse on new data. The last checkpoint is not the one to keep.

    What to do:
        Take the checkpoint with the lowest evaluation loss. Next time train fewer epochs, or get more or more varied data.

    When it is wrong:
        A few evaluations on a small set are noisy: a rise within their noise is not reported, so a mild memorization with
        three evaluations can pass unseen. Loss and task metric may disagree for long in speech and classification runs.
        Several named evaluation sets are judged one by one, each with its own minimum.

    References:
        Prechelt 1998, "Early stopping - but when?": generalization loss against progress. Mann 1945 and Kendall 1975 for the
        trend. Levels were set on the labelled curves behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD401"
    name: ClassVar[str] = "memorization"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = ("eval/*",)
    vital: ClassVar[bool] = False

    rise: float = threshold(
        0.10, unit="share of the minimum", low=0.01, high=2.0, source="two evaluations this far up: labelled curves"
    )
    clear_rise: float = threshold(
        0.02, unit="share of the minimum", low=0.0, high=1.0, source="the least rise that readers of curves call one"
    )
    steady_rise: float = threshold(
        0.01, unit="share of the minimum", low=0.0, high=1.0, source="half of it, for a rise that is steady"
    )
    height: float = threshold(3.0, unit="sd of one evaluation", low=0.0, high=50.0, source="three sigma on a median of three")
    chance: float = threshold(0.01, unit="probability", low=0.0, high=0.5, source="1 %, since it is tested at every evaluation")
    fall: float = threshold(0.02, unit="share of the train loss", low=0.0, high=1.0, source="as for the rise")
    patience: int = threshold(
        3, unit="evaluations", low=1, high=1000, source="one noisy evaluation on either side of a real one"
    )
    patience_share: float = threshold(
        0.2, unit="share of the evaluations up to the minimum", low=0.0, high=10.0, source="Prechelt 1998: slower criteria win"
    )
    metric_gain: float = threshold(
        0.07, unit="share of the error", low=0.0, high=1.0, source="readers let a run go on that gained this much"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "the textbook case",
            {TRAIN_LOSS: _FALLING, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.52, 1.6, 1.7, 1.85, 2.0, 2.2]},
        ),
        Example(
            "five evaluations, rising from the first",
            {TRAIN_LOSS: [0.5, 0.2, 0.05, 0.01, 0.002], EVAL_LOSS: [0.31, 0.36, 0.42, 0.45, 0.47]},
        ),
        Example(
            "the task metric still improves: a warning",
            {
                TRAIN_LOSS: _FALLING,
                EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.52, 1.6, 1.7, 1.85, 2.0, 2.2],
                "eval/accuracy": [0.5, 0.6, 0.65, 0.7, 0.74, 0.77, 0.8, 0.83, 0.85, 0.87],
            },
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("both fall", {TRAIN_LOSS: _FALLING, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.4, 1.35, 1.3, 1.28, 1.27, 1.26]}),
        Example(
            "noise around a minimum",
            {TRAIN_LOSS: _FALLING, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.58, 1.49, 1.57, 1.5, 1.56, 1.48]},
        ),
        Example(
            "the training loss rises too",
            {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.7, 1.8, 1.9, 2.0, 2.0], EVAL_LOSS: [2.1, 1.9, 1.8, 1.8, 1.9, 2.0, 2.1, 2.1]},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _MemorizationWatch(self)


@dataclass
class _Since:
    """One evaluation set since its minimum."""

    step: int
    count: int
    log: float
    before: float | None
    epoch: float | None
    train: float | None
    metrics: dict[str, float]
    steps: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    n: int = 0
    open: Finding | None = None

    @property
    def base(self) -> float:
        """The level at the minimum: the middle one of it and its neighbours, so that one lucky low does not set it."""
        around = [self.log, *([] if self.before is None else [self.before]), *self.logs[:1]]
        return median(around) if len(around) == 3 else self.log  # noqa: PLR2004 - both neighbours are there


class _MemorizationWatch(Watch):
    rule: Memorization

    def __init__(self, rule: Memorization) -> None:
        super().__init__(rule)
        self.sets: dict[str, _Since] = {}

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        said: list[Finding] = []
        for track in curves.eval_losses:
            value = row.values.get(track.name)
            if value is not None and math.isfinite(value):
                said += self._see_eval(track, row, curves)
        return said

    def _see_eval(self, track: Track, row: Row, curves: Curves) -> list[Finding]:
        log = track.logs[-1]
        since = self.sets.get(track.name)
        if since is None or log < since.log:
            before = track.logs[-2] if track.n > 1 else None
            train = _train_log(curves, 3)
            metrics = {k: t.last for k, t in curves.tracks.items() if k.startswith("eval/") and t.last_step == row.step}
            self.sets[track.name] = _Since(row.step, track.n, log, before, curves.epoch, train, metrics)
            return [] if since is None or since.open is None else [self._resolve(since.open, row.step)]
        since.steps.append(row.step)
        since.logs.append(log)
        since.n += 1
        if len(since.logs) > WINDOW:
            del since.steps[1], since.logs[1]  # the first is a neighbour of the minimum
        if since.train is None:
            since.train = _train_log(curves, 3)
        evidence = self._evidence(track, since, curves)
        if evidence is None:
            return []
        since.open = self._tell(track, since, row, curves, evidence)
        return [since.open]

    def _evidence(self, track: Track, since: _Since, curves: Curves) -> list[Evidence] | None:
        """The comparisons that show memorization; None where they do not hold."""
        rule, m = self.rule, since.n
        if m < 2:  # noqa: PLR2004 - one evaluation above the minimum is noise
            return None
        step, noise = since.steps[-1], track.noise
        last = since.logs[-(3 if track.n < _MANY else 5) :]
        # Without a noise to measure against, every one of the last evaluations has to be up.
        now = median(last) if noise is not None and len(last) > 2 else min(last)  # noqa: PLR2004 - no median of two
        rise = math.expm1(now - since.base)
        high = noise is None or now - since.base >= rule.height * noise
        up = Evidence(f"{track.name} above its minimum", rise, ">=", rule.rise, "share", step)
        found: list[Evidence] | None = None
        if rise >= rule.rise and high:
            found = [up]
        elif rise >= rule.clear_rise and m >= rule.patience and noise is not None and high:
            z = (now - since.base) / noise if noise > 0 else math.inf
            found = [
                Evidence(up.what, rise, ">=", rule.clear_rise, "share", step),
                Evidence(f"{track.name} above its minimum", z, ">=", rule.height, "sd", step),
            ]
        elif rise >= max(rule.steady_rise, noise or 0.0) and m > rule.patience:
            test = trend([since.step, *since.steps], [since.log, *since.logs])
            if test is not None and test.tau > 0 and test.p < rule.chance:
                found = [
                    Evidence(up.what, rise, ">=", rule.steady_rise, "share", step),
                    Evidence("chance of so steady a rise", test.p, "<", rule.chance, "", step),
                ]
        return None if found is None else self._with_train(found, since, curves)

    def _with_train(self, found: list[Evidence], since: _Since, curves: Curves) -> list[Evidence] | None:
        """The evidence with what the training loss did meanwhile; None where it did not fall."""
        rule, train = self.rule, curves.train
        now = _train_log(curves, 3)
        if train is None or now is None or since.train is None:
            # Nothing to hold the rise against: only one that chance cannot explain counts.
            test = trend([since.step, *since.steps], [since.log, *since.logs])
            if test is None or test.tau <= 0 or test.p >= rule.chance:
                return None
            return [*found, Evidence("chance of so steady a rise", test.p, "<", rule.chance, "", since.steps[-1])]
        if train.last <= train.floor:
            return [*found, Evidence(f"{TRAIN_LOSS} at its floor", train.last, "<=", train.floor, "", since.steps[-1])]
        fallen = -math.expm1(now - since.train)
        if fallen < rule.fall:
            return None
        return [*found, Evidence(f"{TRAIN_LOSS} fallen since the minimum", fallen, ">=", rule.fall, "share", since.steps[-1])]

    def _tell(self, track: Track, since: _Since, row: Row, curves: Curves, evidence: list[Evidence]) -> Finding:
        low = math.exp(since.log)
        message = f"{track.name} rose to {track.last:.4g} from its minimum {low:.4g} at step {since.step}"
        if evidence[-1].unit == "share" and evidence[-1].what.startswith(TRAIN_LOSS):
            message += f" while {TRAIN_LOSS} fell by {100 * evidence[-1].value:.0f} %"
        better = self._improved_metric(since, curves)
        if better is not None:
            message += f"; but {better} still improves, so judge by the metric that you care about"
        patience = max(self.rule.patience, self.rule.patience_share * since.count)
        sure = better is None and since.n >= patience
        first = since.steps[0] if since.open is None else since.open.first_step
        was_sure = since.open is not None and since.open.severity is Severity.ERROR
        return self.finding(
            track.name,
            first,
            row.step,
            message,
            *evidence,
            severity=Severity.ERROR if sure or was_sure else Severity.WARNING,
            prescription=prescribe.fewer_epochs(
                curves, since.epoch, f"{track.name} was lowest at step {since.step} and has risen since"
            ),
        )

    def _improved_metric(self, since: _Since, curves: Curves) -> str | None:
        """A task metric that has gained clearly since the minimum of the loss and was at its best only lately."""
        late = max(self.rule.patience + 1, int(self.rule.patience_share * since.n))
        for name, then in since.metrics.items():
            way, track = direction(name), curves.tracks[name]
            values = track.recent(WINDOW)
            if is_eval_loss(name) or way is None or not math.isfinite(then) or not values or name in _HALF_METRICS:
                continue
            now = median(values[-3:])
            noise = noise_scale(values)
            best = max(values) if way is Direction.HIGHER else min(values)
            is_late = best in values[-late:]
            gained = error_share_gained(then, now, way)
            # A gain of this size has to exceed the metric's noise; a smaller one has to exceed it clearly.
            is_large = gained >= self.rule.metric_gain and (noise is None or abs(now - then) >= noise)
            is_clear = (
                gained >= 0.5 * self.rule.metric_gain and noise is not None and abs(now - then) >= self.rule.height * noise
            )
            if is_late and (is_large or is_clear):
                return f"{name} ({then:.4g} then, {now:.4g} now)"
        return None

    def _resolve(self, past: Finding, step: int) -> Finding:
        return self.finding(
            past.metric,
            past.first_step,
            step,
            f"{past.metric} had risen from its minimum but reached a new one at step {step}",
            *past.evidence,
            severity=Severity.INFO,
            status=Status.RESOLVED,
        )


def _train_log(curves: Curves, k: int) -> float | None:
    """The level of the training loss, as a logarithm; None where too little was logged or logarithms mean nothing."""
    track = curves.train
    if track is None or track.n < 2 or track.goes_negative:  # noqa: PLR2004 - one point is no level
        return None
    return median(track.recent_logs(k))
