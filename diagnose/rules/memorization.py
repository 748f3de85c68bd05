"""CD401 memorization: the evaluation loss has left its minimum while the training loss goes on falling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves, Track
from diagnose.evaluations import Minimum, improving_metric, rise_of_all, train_log
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import Example, Rule, Watch, threshold

_FALLING = [2.0, 1.6, 1.3, 1.1, 0.9, 0.7, 0.5, 0.35, 0.25, 0.18]

_NOISY = [0.40, 0.38, 0.42, 0.39, 0.37, 0.41, 0.38, 0.30, 0.44, 0.41, 0.46, 0.43]
_NOISY += [0.48, 0.42, 0.47, 0.45, 0.50, 0.44, 0.49, 0.46, 0.51, 0.47, 0.50, 0.48]
_ORDER = "chance of so steady a rise"


@dataclass(frozen=True)
class Memorization(Rule):
    """The evaluation loss rises from its minimum while the training loss goes on falling.

    What it sees:
        The evaluation loss stands above its lowest level: far above it, or above it by several times its own noise, or
        rising so steadily, from its minimum or over the whole run, that chance is ruled out. The training loss has fallen
        since, so the model still learns, but only its training data. With three or more evaluations in a row up there it is
        an error and a reason to stop, unless a task metric (accuracy, F1, WER …) has clearly improved since the minimum, or
        another evaluation set still falls: then it stays a warning that says so.

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
    meant_false_alarms: ClassVar[str] = "1e-3 an evaluation: three sd between two medians of three, normal noise"

    rise: float = threshold(
        0.10, unit="share of the minimum", low=0.01, high=2.0, source="two evaluations this far up: labelled curves"
    )
    clear_rise: float = threshold(
        0.02, unit="share of the minimum", low=0.0, high=1.0, source="the least rise that readers of curves call one"
    )
    steady_rise: float = threshold(
        0.01, unit="share of the minimum", low=0.0, high=1.0, source="half of it, for a rise that is steady"
    )
    height: float = threshold(3.5, unit="sd of one evaluation", low=0.0, high=50.0, source="three sigma on a median of three")
    steady_height: float = threshold(
        2.0, unit="sd of one evaluation", low=0.0, high=50.0, source="order alone says little about evaluations that swing"
    )
    chance: float = threshold(0.01, unit="probability", low=0.0, high=0.5, source="1 %, since it is tested at every evaluation")
    stop_chance: float = threshold(
        0.001, unit="probability", low=0.0, high=0.5, source="drawn healthy curves: settled, noisy evaluations"
    )
    overall_evals: int = threshold(
        16, unit="evaluations", low=5, high=10_000, source="fewer cannot outweigh the fall that a run begins with"
    )
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
        Example(
            "noisy evaluations that rise over the whole run",
            {TRAIN_LOSS: [0.4 * 0.93**i for i in range(24)], EVAL_LOSS: _NOISY},
        ),
        Example(
            "one of two evaluation sets",
            {
                TRAIN_LOSS: _FALLING,
                "eval/squad_loss": [2.1, 1.8, 1.6, 1.5, 1.52, 1.6, 1.7, 1.85, 2.0, 2.2],
                "eval/news_loss": [2.2, 2.0, 1.9, 1.8, 1.75, 1.7, 1.68, 1.66, 1.65, 1.64],
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


class _MemorizationWatch(Watch):
    rule: Memorization

    def __init__(self, rule: Memorization) -> None:
        super().__init__(rule)
        self.minima: dict[str, Minimum] = {}
        self.open: dict[str, Finding] = {}

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        said: list[Finding] = []
        for track in curves.eval_losses:
            value = row.values.get(track.name)
            if value is None or not math.isfinite(value):
                continue
            if not track.goes_negative:
                said += self._see_eval(track, curves)
            elif track.name in self.open:
                past = self.open.pop(track.name)
                text = f"{track.name} had risen but goes below 0: as no likelihood, it may do so"
                said += self.resolved(past, row.step, text)
        return said

    def _see_eval(self, track: Track, curves: Curves) -> list[Finding]:
        low = self.minima.get(track.name)
        if low is None or track.logs[-1] < low.log:
            self.minima[track.name] = Minimum.at(track, curves)
            past, step = self.open.pop(track.name, None), track.last_step
            if past is None:
                return []
            text = f"{track.name} had risen from its minimum but reached a new one at step {step}"
            return list(self.resolved(past, step, text, Severity.INFO))
        low.add(track, curves)
        evidence = self._evidence(track, low, curves)
        if evidence is None:
            return []
        self.open[track.name] = self._tell(track, low, curves, evidence)
        return [self.open[track.name]]

    def _evidence(self, track: Track, low: Minimum, curves: Curves) -> list[Evidence] | None:
        """The comparisons that show memorization; None where they do not hold."""
        rule, n, step, noise = self.rule, low.n_since, track.last_step, track.noise
        if n < 2 or low.is_restarted(curves):  # noqa: PLR2004 - one evaluation above the minimum is noise
            return None
        risen = low.risen(track)
        # A float holds no more than e ** 709, and a rise of that size is the same trouble whatever its number.
        rise, what = math.expm1(min(risen, 700.0)), f"{track.name} above its minimum"
        is_high = noise is None or risen >= rule.height * noise
        if rise >= rule.rise and is_high:
            found = [Evidence(what, rise, ">=", rule.rise, "share", step)]
        elif rise >= rule.clear_rise and n >= rule.patience and noise is not None and is_high:
            z = risen / noise if noise > 0 else math.inf
            found = [
                Evidence(what, rise, ">=", rule.clear_rise, "share", step),
                Evidence(what, z, ">=", rule.height, "sd", step),
            ]
        elif rise >= max(rule.steady_rise, rule.steady_height * (noise or 0.0)) and n > rule.patience:
            steady = self._steadiness(low, step)
            if steady is None:
                return None
            found = [Evidence(what, rise, ">=", rule.steady_rise, "share", step), steady]
        else:
            chance = rise_of_all(track) if risen > 0 and track.n >= rule.overall_evals else 1.0
            if chance >= rule.stop_chance:
                return None
            found = [Evidence("chance that all evaluations together rise so", chance, "<", rule.stop_chance, "", step)]
        return self._with_train(found, low, curves)

    def _steadiness(self, low: Minimum, step: int) -> Evidence | None:
        """That chance does not explain so steady a rise; None where it might."""
        test = low.trend()
        if test is None or test.tau <= 0 or test.p >= self.rule.chance:
            return None
        return Evidence(_ORDER, test.p, "<", self.rule.chance, "", step)

    def _with_train(self, found: list[Evidence], low: Minimum, curves: Curves) -> list[Evidence] | None:
        """The evidence with what the training loss did meanwhile; None where it did not fall."""
        rule, train, now, step = self.rule, curves.train, train_log(curves), curves.last_step
        if train is None or now is None or low.train is None:
            # Nothing to hold the rise against: only one that chance cannot explain counts.
            steady = self._steadiness(low, step)
            return None if steady is None else [*found, steady]
        if train.last <= train.floor:
            return [*found, Evidence(f"{TRAIN_LOSS} at its floor", train.last, "<=", train.floor, "", step)]
        fallen = -math.expm1(now - low.train)
        if fallen < rule.fall:
            return None
        return [*found, Evidence(f"{TRAIN_LOSS} fallen since the minimum", fallen, ">=", rule.fall, "share", step)]

    def _tell(self, track: Track, low: Minimum, curves: Curves, evidence: list[Evidence]) -> Finding:
        rule, told = self.rule, self.open.get(track.name)
        message = f"{track.name} rose to {track.last:.4g} from its minimum {math.exp(low.log):.4g} at step {low.step}"
        if evidence[-1].unit == "share" and evidence[-1].what.startswith(TRAIN_LOSS):
            message += f" while {TRAIN_LOSS} fell by {100 * evidence[-1].value:.0f} %"
        late = max(rule.patience + 1, int(rule.patience_share * low.n_since))
        better = improving_metric(low, curves, rule.metric_gain, rule.height, late)
        if better is not None:
            message += f"; but {better} still improves, so judge by the metric that you care about"
        improving = [t.name for t in curves.eval_losses if t is not track and t.n and t.best in t.recent(rule.patience)]
        if improving:
            message += f"; but {' and '.join(improving[:2])} still falls"
        unstable = curves.found.get("unstable-loss")
        may_pass = unstable is not None and unstable.metric == track.name
        if may_pass:
            message += "; but this loss swings so much that its rise may pass"
        # Order alone, tested at every evaluation since a minimum that was chosen for being low, asks for more to stop a run.
        ordered = [e.value for e in evidence if e.what == _ORDER]
        may_pass = may_pass or any(p >= rule.stop_chance for p in ordered)
        is_sure = (
            better is None
            and not improving
            and not may_pass
            and low.n_since >= max(rule.patience, rule.patience_share * low.count)
        )
        was_sure = told is not None and told.severity is Severity.ERROR
        why = f"{track.name} was lowest at step {low.step} and has risen since"
        return self.finding(
            track.name,
            low.steps[0] if told is None else told.first_step,
            track.last_step,
            message,
            *evidence,
            severity=Severity.ERROR if is_sure or was_sure else Severity.WARNING,
            prescription=prescribe.fewer_epochs(curves, low.epoch, why),
        )

    def skip(self, curves: Curves) -> str | None:
        names = [track.name for track in curves.eval_losses if track.goes_negative]
        return f"{', '.join(names)} goes below 0, so it is no likelihood" if names else None
