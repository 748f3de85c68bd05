"""Runs beside each other: what changed, how their losses differ beyond noise, which one is better and at which checkpoint.

Evaluation losses are compared as they stand, so they must be of the same evaluation data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.compared_run import Seen, look, named_apart
from diagnose.curves import Curves
from diagnose.loss_differences import Difference, Point, best_of, difference, gap_noise, last_of
from diagnose.model import Change, Kind, Report, Run
from diagnose.names import TRAIN_LOSS
from diagnose.next_rate import Try, next_rate
from diagnose.prescribe import output_dir, usual_range
from diagnose.rate_sweep import Next, Sweep, Trial, sweep_of
from diagnose.rules.base import Rule
from diagnose.rules.settings import TOO_FAST
from diagnose.settings_changed import BATCH, RATE, Changed, Known, changed_settings, unconnected

#: Settings that may change at once before nobody can tell which one helped.
MOST_CHANGES = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a comparison.

    Args:
        report: of its examination; its id is unique among the runs.
        settings: what is known of its settings, from all sources.
    """

    report: Report
    settings: Known


@dataclass(frozen=True, slots=True)
class Better:
    """The run that is better than all others beyond noise, and its best checkpoint.

    Args:
        id: of the run.
        step: of its best checkpoint.
        value: the evaluation loss there.
        metric: its name.
        over: the id of the next best run; None when all others were lost.
        margin: how far that one's best loss lies above; inf when all others were lost.
        noise: standard deviation of that margin; None where no noise is known.
    """

    id: str
    step: int
    value: float
    metric: str
    over: str | None
    margin: float
    noise: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a comparison concluded.

    Args:
        entries: the runs, as given; those of a sweep by their rates.
        changed: settings that differ.
        differences: how the losses differ.
        better: the better run; None where none is, beyond noise, or where none can be told.
        leaders: the runs that no other is better than beyond noise; empty where they cannot be ranked.
        warning: when too much changed at once to tell what helped.
        cautions: what else to keep in mind.
        sweep: when three runs or more differ in nothing but the learning rate.
        next: the run to make next, of two that differ in nothing but the learning rate; None where the better is to be kept.
    """

    entries: tuple[Entry, ...]
    changed: tuple[Changed, ...]
    differences: tuple[Difference, ...]
    better: Better | None
    leaders: tuple[str, ...]
    warning: str | None
    cautions: tuple[str, ...]
    sweep: Sweep | None
    next: Next | None = None


def compare(runs: Sequence[Run], rules: Sequence[Rule] | None = None) -> Comparison:
    """Compare two runs or more.

    Args:
        runs: as readers gave them.
        rules: to examine each with; all by default.

    Raises:
        ValueError: fewer than two runs.
    """
    if len(runs) < 2:  # noqa: PLR2004 - there is nothing to compare one run with
        raise ValueError(f"a comparison needs two runs, got {len(runs)}")
    seen = [look(run, rules) for run in named_apart(runs)]
    changed = changed_settings([s.known for s in seen])
    metric, unranked = _metric(seen)
    only_rate = [c.setting for c in changed if c.counts] == [RATE] and all(s.known.rate for s in seen)
    sweep = _sweep(seen, metric) if only_rate else None
    if sweep is not None:
        seen.sort(key=lambda s: s.known.rate or 0.0)
        changed = changed_settings([s.known for s in seen])
    differences = _differences(seen, metric)
    better, leaders = _ranking(seen, next((d for d in differences if d.kind == "best"), None))
    return Comparison(
        entries=tuple(Entry(s.report, s.known) for s in seen),
        changed=changed,
        differences=differences,
        better=better,
        leaders=leaders,
        warning=_warning(seen, changed),
        cautions=(*unranked, *_cautions(seen, changed, differences, better)),
        sweep=sweep,
        next=_next_of_two(seen, metric) if only_rate and len(seen) == 2 else None,  # noqa: PLR2004 - more are a sweep
    )


def _metric(seen: Sequence[Seen]) -> tuple[str | None, list[str]]:
    """The evaluation loss by which the runs can be ranked, and what keeps them, or some of them, from it."""
    kinds = {s.curves.kind for s in seen}
    if len(kinds) > 1:
        listed = " and ".join(sorted(kind.value for kind in kinds))
        return None, [f"runs of different kinds ({listed}): their losses do not mean the same, so none is called better"]
    if Kind.RL in kinds:
        return None, ["in reinforcement learning the loss is not the aim, so none is called better by it: compare the rewards"]
    metrics = {s.curves.best.metric for s in seen if s.curves.best is not None}
    if len(metrics) > 1:
        return None, [f"the runs were evaluated by different losses ({', '.join(sorted(metrics))}), so none is called better"]
    if not metrics:
        several = any(len(s.curves.eval_losses) > 1 for s in seen)
        why = "several evaluation losses and no main one" if several else "no run has an evaluation loss"
        text = f"{why}: only training losses can be compared, and a lower one may mean no more than memorization"
        return None, [text]
    metric = metrics.pop()
    without = [s.id for s in seen if s.curves.best is None and not s.is_lost]
    return metric, [f"without a finite {metric}, so not ranked: {_few(without)}"] if without else []


def _differences(seen: Sequence[Seen], metric: str | None) -> tuple[Difference, ...]:
    found = []
    if metric is not None:
        tracks = [s.curves.get(metric) for s in seen]
        lost = [Point(math.nan) if s.is_lost else None for s in seen]
        found.append(difference("best", metric, [best_of(t) or no for t, no in zip(tracks, lost, strict=True)]))
        found.append(difference("end", metric, [last_of(t) or no for t, no in zip(tracks, lost, strict=True)]))
        equal = _evaluated_together(seen, metric)
        if equal is not None and any(t is not None and t.last_step != equal for t in tracks):
            found.append(difference("equal-steps", metric, [_eval_at(s, metric, equal) for s in seen]))
    trained = [s.curves.train for s in seen]
    common = min((t.last_step for t in trained if t is not None), default=None)
    if common is not None and len({s.curves.kind for s in seen}) == 1:
        levels = [s.level_at(common) for s in seen]
        if sum(level is not None for level in levels) > 1:
            found.append(difference("equal-steps", TRAIN_LOSS, levels))
    return tuple(found)


def _evaluated_together(seen: Sequence[Seen], metric: str) -> int | None:
    """The last step at which all runs that were evaluated were."""
    steps = [s.run.series[metric].step for s in seen if metric in s.run.series]
    shared = set(steps[0].tolist()).intersection(*(s.tolist() for s in steps[1:])) if steps else set()
    return max(shared, default=None)


def _eval_at(seen: Seen, metric: str, step: int) -> Point | None:
    track, series = seen.curves.get(metric), seen.run.series.get(metric)
    if track is None or series is None or track.goes_negative:
        return None
    return Point(float(series.value[int(np.searchsorted(series.step, step))]), step, track.noise)


def _ranking(seen: Sequence[Seen], best: Difference | None) -> tuple[Better | None, tuple[str, ...]]:
    """The better run, and those that no other is better than."""
    ranked = [] if best is None else [i for i, point in enumerate(best.points) if point is not None]
    if best is None or best.lowest is None or len(ranked) < 2:  # noqa: PLR2004 - one run is not better than itself
        return None, ()
    leaders = tuple(seen[i].id for i in best.level)
    low = best.points[best.lowest]
    assert low is not None  # it is the lowest
    assert low.step is not None  # it was measured
    if len(leaders) > 1:
        return None, leaders
    others = [(p.value, i) for i in ranked if i != best.lowest and (p := best.points[i]) is not None and math.isfinite(p.value)]
    if not others:
        return Better(leaders[0], low.step, low.value, best.metric, None, math.inf, None), leaders
    value, second = min(others)
    other = best.points[second]
    assert other is not None  # it is finite
    noise = gap_noise(other, low)
    sd = None if noise is None else noise * low.value
    return Better(leaders[0], low.step, low.value, best.metric, seen[second].id, value - low.value, sd), leaders


def _warning(seen: Sequence[Seen], changed: Sequence[Changed]) -> str | None:
    found = unconnected([s.known for s in seen], changed, MOST_CHANGES)
    if found is None:
        return None
    i, j, names = found
    more = "" if len(seen) == MOST_CHANGES else f" between {seen[i].id} and {seen[j].id}, the nearest of two groups"
    return (
        f"{len(names)} settings changed at once{more} ({', '.join(names)}): nobody can tell which one helped; "
        f"change at most {MOST_CHANGES} at a time"
    )


def _cautions(
    seen: Sequence[Seen], changed: Sequence[Changed], differences: Sequence[Difference], better: Better | None
) -> list[str]:
    """What to keep in mind: doubts about what is compared."""
    said = []
    copies: dict[str, list[str]] = {}
    for i, s in enumerate(seen):
        same = next((other.id for other in seen[:i] if s.is_same_curve(other)), None)
        if same is not None:
            copies.setdefault(same, []).append(s.id)
        if s.known.named_rate is not None and s.known.rate is not None:
            said.append(f"{s.id}: its name tells the rate {s.known.named_rate:.3g}, its log {s.known.rate:.3g}; the log counts")
    for id, others in copies.items():
        said.append(f"{id} holds the same losses as {_few(others)}: one training twice, or weights that do not move")
    below = [s.id for s in seen if any(t.goes_negative for t in [*s.curves.eval_losses, *filter(None, [s.curves.train])])]
    if below:
        said.append(f"losses below 0 are no likelihood and have no noise in logarithms, so they are left out: {_few(below)}")
    untold = [s.id for s in seen if not s.known.is_told]
    if untold:
        whose = "the logs do" if len(untold) == len(seen) else f"{_few(untold)} {'does' if len(untold) == 1 else 'do'}"
        said.append(f"{whose} not tell all settings, so more may have changed than is shown")
    if any(c.counts and c.setting in BATCH for c in changed):
        said.append("the batch changed, so equal steps are not equal data: go by the best losses")
    best = next((d for d in differences if d.kind == "best"), None)
    if best is not None and all(p is None or p.sd is None for p in best.points):
        said.append("fewer than five evaluations tell no noise: differences below 2 % are taken for none")
    if better is None:
        return said
    k = next(i for i, s in enumerate(seen) if s.id == better.id)
    for d in differences:
        if d.kind == "equal-steps" and d.metric == better.metric and d.lowest is not None and k not in d.level:
            step = (d.points[d.lowest] or Point(math.nan)).step
            said.append(f"at step {step}, the last at which all were evaluated, {seen[d.lowest].id} is lower")
    troubles = seen[k].errors
    if troubles:
        said.append(f"{better.id} is better but sick ({', '.join(troubles)}): take its step {better.step}, not its end")
    return said


def _sweep(seen: Sequence[Seen], metric: str | None) -> Sweep | None:
    """The sweep by the evaluation loss, or, where not all have one, by the level of the training loss at the end."""
    if any(s.curves.kind is Kind.RL for s in seen):
        return None
    tracks = {s.id: s.curves.get(metric) if metric is not None else None for s in seen}
    by_eval = all(s.is_lost or best_of(tracks[s.id]) is not None for s in seen)
    trials = []
    for s in seen:
        track = tracks[s.id] if by_eval else s.curves.train
        low, end = (best_of(track), last_of(track)) if by_eval else (s.level_at(s.report.last_step),) * 2
        first = track.head[0] if track is not None and track.head else math.nan
        values = [point.value if point is not None else math.nan for point in (low, end)]
        trials.append(Trial(s.known.rate or 0.0, first, values[0], values[1], not set(TOO_FAST).isdisjoint(s.errors)))
    settings = next(s.known.values for s in seen)
    is_logged = any(s.known.is_rate_logged for s in seen)
    return sweep_of(trials, metric if by_eval and metric is not None else TRAIN_LOSS, settings, is_logged=is_logged)


def _next_of_two(seen: Sequence[Seen], metric: str | None) -> Next | None:
    """The learning rate to try after two, by the evaluation loss; the better counts as the one that was made last."""
    if metric is None:
        return None
    tries = []
    for s in seen:
        track, verdict = s.curves.get(metric), s.report.learning_rate
        low = best_of(track)
        if s.known.rate is None or verdict is None or track is None or not track.head:
            return None
        loss = math.nan if low is None or s.is_lost else low.value
        tries.append(Try(s.known.rate, track.head[0], loss, verdict))
    tries.sort(key=lambda t: -t.loss if math.isfinite(t.loss) else -math.inf)
    found = next_rate(tries, usual_range(seen[0].curves))
    if found is None:
        return None
    change = Change(RATE, tries[-1].rate, found.rate)
    return Next(found.rate, found.why, output_dir(Curves(seen[0].known.values), (change,)))


def _few(ids: Sequence[str]) -> str:
    """Two by name, of more the number."""
    shown = ", ".join(ids[:2])
    return shown if len(ids) <= 2 else f"{shown} and {len(ids) - 2} more"  # noqa: PLR2004 - as many as are shown
