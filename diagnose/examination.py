"""Rows to findings: feeds every rule, keeps what they say, and isolates a rule that crashes.

Examining a run up to step s gives what examining it live gave at step s: both feed the same rows to the same Watches, and
a Watch sees nothing but the rows so far.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

from diagnose import prescribe, verdict
from diagnose.curves import Curves
from diagnose.learning_rate import rate_verdict
from diagnose.model import OTHER_KIND, Crash, Finding, Kind, Note, Report, Row, Run, Setting, Skip, StopDecision
from diagnose.rate_course import RateCourse
from diagnose.rules import RULES
from diagnose.rules.base import Rule, Watch

#: Sets of metrics that are remembered; a log that never repeats itself must not fill the memory.
_MOST_SETS = 1000


class Examination:
    """One run under examination, live or read from a log.

    Args:
        rules: the rules to apply, in the order of their codes; all by default.
        settings: what is known of the training's settings.
        notes: what a reader had to say.
        policy: which findings stop a run; the default policy if None.
    """

    def __init__(
        self,
        rules: Sequence[Rule] | None = None,
        *,
        settings: Mapping[str, Setting] | None = None,
        notes: Sequence[Note] = (),
        policy: verdict.StopPolicy | None = None,
    ) -> None:
        self.rules = tuple(default_rules() if rules is None else rules)
        self.curves = Curves(settings, notes)
        self.policy = policy or verdict.StopPolicy()
        #: The first decision to stop, and the one that the last row alone gave rise to.
        self.stop = self.now = StopDecision(stop=False)
        self._in_grace = self.policy.grace > 0
        #: Loss against the summed learning rate.
        self.course = RateCourse()
        self._watches: dict[str, Watch] = {rule.code: rule.start() for rule in self.rules}
        self._wants = {rule.code: _wanted(rule) for rule in self.rules}
        self._by_metrics: dict[tuple[Kind, tuple[str, ...]], tuple[Rule, ...]] = {}
        self._findings: dict[tuple[str, str, int], Finding] = {}
        self._crashes: dict[str, Crash] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, by the step where it begins; conclusions about the end are only in `report()`."""
        return tuple(sorted(self._findings.values(), key=lambda f: (f.first_step, f.code)))

    @property
    def crashes(self) -> tuple[Crash, ...]:
        """Rules that crashed so far."""
        return tuple(self._crashes.values())

    def feed(self, row: Row) -> tuple[Finding, ...]:
        """Look at one more row.

        A row that holds both training and evaluation metrics is seen as the Trainer logs it: training first.

        Args:
            row: its step must not be below the last one fed; such a row is left out, with a note.

        Returns:
            Findings that are new or changed by this row.
        """
        if row.step < self.curves.last_step and self.curves.n_rows:
            text = f"a row at step {row.step} came after step {self.curves.last_step} and was left out"
            self.curves.notes = (*self.curves.notes, Note("late-row", text, row.step))
            return ()
        changed: list[Finding] = []
        self.now = StopDecision(stop=False)
        for part in _parts(row):
            changed += self._feed_part(part)
        return tuple(changed)

    def _feed_part(self, row: Row) -> list[Finding]:
        row = _unseen(row, self.curves)
        if not row.values:
            return []
        self.curves.add(row)
        self.course.add(row, self.curves)
        changed: list[Finding] = []
        for rule in self._concerned(row):
            if rule.code in self._crashes:
                continue
            try:
                said = self._watches[rule.code].see(row, self.curves)
            except Exception as error:  # noqa: BLE001 - the one blind except: a bug of ours must not end a training
                self._crashes[rule.code] = Crash(rule.code, f"{type(error).__name__}: {error}", traceback.format_exc())
                continue
            for finding in said:
                self._findings[finding.key] = finding
                self.curves.found[finding.name] = finding
                changed.append(finding)
        if not self.now.stop:
            self.now = verdict.decide(self._to_judge(changed), self.curves, self.policy)
        if not self.stop.stop:
            self.stop = self.now
        return changed

    def _to_judge(self, changed: Sequence[Finding]) -> Sequence[Finding]:
        """What may end the run now: what this row changed, and, once the grace is over, what has stayed open since."""
        if self._in_grace and self.curves.last_step > self.policy.grace:
            self._in_grace = False
            return self.findings
        return changed

    def at_start(self) -> tuple[Finding, ...]:
        """What can be said before the first step, from the settings and what a live doctor saw of data and model."""
        said: list[Finding] = []
        for rule in self.rules:
            try:
                said += self._watches[rule.code].at_start(self.curves)
            except Exception as error:  # noqa: BLE001 - the same isolation as for a row
                self._crashes[rule.code] = Crash(rule.code, f"{type(error).__name__}: {error}", traceback.format_exc())
        return tuple(said)

    def _concerned(self, row: Row) -> tuple[Rule, ...]:
        """The rules that want to see a row with these metrics; rows of one log have few different sets of them."""
        key = (self.curves.kind, tuple(row.values))
        if key not in self._by_metrics:
            if len(self._by_metrics) > _MOST_SETS:
                self._by_metrics.clear()
            self._by_metrics[key] = tuple(rule for rule in self.rules if self._is_concerned(rule, row))
        return self._by_metrics[key]

    def _is_concerned(self, rule: Rule, row: Row) -> bool:
        if self.curves.kind not in rule.kinds:
            return False
        exact, prefixes = self._wants[rule.code]
        return any(n in exact or n.startswith(prefixes) for n in row.values) if prefixes else not exact.isdisjoint(row.values)

    def report(self, id: str = "run", source: str = "live") -> Report:
        """All that can be concluded now. The examination can go on afterwards.

        Args:
            id: the run's id.
            source: where the run comes from.
        """
        findings = dict(self._findings)
        closing: dict[tuple[str, str, int], tuple[Finding, Rule]] = {}
        skips: list[Skip] = []
        crashes = dict(self._crashes)
        for rule in self.rules:
            if rule.code in crashes:
                continue
            reason = self._cannot_look(rule)
            if reason is None:
                try:
                    for finding in self._watches[rule.code].close(self.curves):
                        closing[finding.key] = (finding, rule)
                    reason = self._watches[rule.code].skip(self.curves)
                except Exception as error:  # noqa: BLE001 - the same isolation for what is said at the end
                    crashes[rule.code] = Crash(rule.code, f"{type(error).__name__}: {error}", traceback.format_exc())
            if reason is not None and not any(f.code == rule.code for f in findings.values()):
                skips.append(Skip(rule.code, rule.name, reason))
        told = {f.name for f in findings.values()} | {f.name for f, _ in closing.values()}
        findings |= {key: f for key, (f, rule) in closing.items() if told.isdisjoint(rule.hushed_by)}
        kept = tuple(sorted(findings.values(), key=lambda f: (f.first_step, f.code)))
        curves = self.curves
        train = curves.train
        best = curves.best
        rate = rate_verdict(self.course, curves, kept)
        # What has no meaning for this kind of run cannot be missed in it.
        meant = [rule for rule in self.rules if curves.kind in rule.kinds]
        word = verdict.verdict(kept, skips, meant, self.stop)
        vital = {rule.code for rule in meant if rule.vital}
        decisive = [skip for skip in skips if skip.code in vital] or skips
        return Report(
            id=id,
            source=source,
            verdict=word,
            headline=verdict.headline(word, kept, decisive, best, self.stop),
            findings=kept,
            skips=tuple(skips),
            crashes=tuple(crashes.values()),
            notes=curves.notes,
            best=best,
            stop=self.stop,
            prescription=prescribe.for_run(kept, curves, rate),
            learning_rate=rate,
            settings=dict(curves.settings),
            last_step=curves.last_step,
            n_points=0 if train is None else train.n + train.n_bad,
            kind=curves.kind,
        )

    def _cannot_look(self, rule: Rule) -> str | None:
        kind = self.curves.kind
        if kind not in rule.kinds:
            return OTHER_KIND + kind.value
        for need in rule.needs:
            names = need.split("|")
            if not any(_logged(name, self.curves) for name in names):
                return f"the log has no {' or '.join(names)}"
        return None


def _logged(name: str, curves: Curves) -> bool:
    """Whether a metric was logged; a trailing `*` stands for any continuation."""
    if name.endswith("*"):
        return any(track.startswith(name[:-1]) for track in curves.tracks)
    return name in curves.tracks


def _wanted(rule: Rule) -> tuple[frozenset[str], tuple[str, ...]]:
    """Exact names and prefixes of the metrics whose rows a rule wants to see."""
    names = [name for need in (*rule.needs, *rule.also) for name in need.split("|")]
    return frozenset(n for n in names if not n.endswith("*")), tuple(n[:-1] for n in names if n.endswith("*"))


def _unseen(row: Row, curves: Curves) -> Row:
    """The row without metrics that were already logged at its step: the first telling counts, here as in `build_run`."""
    tracks = curves.tracks
    again = [n for n in row.values if n in tracks and tracks[n].last_step == row.step]
    if not again:
        return row
    return Row(row.step, {n: v for n, v in row.values.items() if n not in again}, row.epoch)


def _parts(row: Row) -> tuple[Row, ...]:
    """A row as the Trainer logs it: its training metrics, then its evaluation metrics."""
    evals = {k: v for k, v in row.values.items() if k.startswith("eval/")}
    if not evals or len(evals) == len(row.values):
        return (row,)
    train = {k: v for k, v in row.values.items() if k not in evals}
    return (Row(row.step, train, row.epoch), Row(row.step, evals, row.epoch))


def default_rules() -> tuple[Rule, ...]:
    """Every rule with its default thresholds."""
    return tuple(rule() for rule in RULES)


def examine(run: Run, rules: Sequence[Rule] | None = None, policy: verdict.StopPolicy | None = None) -> Report:
    """Examine a whole run.

    Args:
        run: as a reader gave it.
        rules: see `Examination`.
        policy: see `Examination`.

    Returns:
        The report that a live examination of the same rows would give at the last of them.
    """
    exam = Examination(rules, settings=run.settings, notes=run.notes, policy=policy)
    for row in run.rows():
        exam.feed(row)
    return exam.report(run.id, run.source)
