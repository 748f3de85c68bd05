"""A run's curves as the page draws them: which metrics, on which axis, and no more points than can be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose.model import SETTINGS, FloatArray, Report, Run, Series
from diagnose.names import EPOCH, GRAD_NORM, KL, LEARNING_RATE, kind_of
from diagnose.report.curve import drawn_metrics
from diagnose.report.scale import scale_for
from diagnose.report.words import plain
from diagnose.tensorboard.axes import Axis, Place, axes_of, place_on
from diagnose.tensorboard.decimate import decimate, smoothed, stretches

#: Metrics that findings name, beyond the losses, and that get a panel of their own.
_MOST_EXTRA = 2
#: Stretches of NaN that are told one by one; neighbours are told as one where there are more.
_MOST_STRETCHES = 300
LEAST_COLUMNS, MOST_COLUMNS = 50, 4000
DEFAULT_COLUMNS = 1200


@dataclass(frozen=True, slots=True)
class Window:
    """What of a run is wanted.

    Args:
        axis: to place the points on.
        low: places below it are not needed; None for all.
        high: places above it are not needed; None for all.
        columns: of the drawing.
        smoothing: weight of the moving average, 0 for none.
    """

    axis: Axis = Axis.STEP
    low: float | None = None
    high: float | None = None
    columns: int = DEFAULT_COLUMNS
    smoothing: float = 0.0


def curve(run: Run, report: Report | None, window: Window) -> dict[str, Any]:
    """The curves of a run in plain JSON values; a value that is not finite is null, and told among the `gaps`.

    Args:
        run: with the series.
        report: for the metrics that matter and the steps that are marked; None while there is none.
        window: what is wanted. An axis that the log does not know gives steps.
    """
    axis = window.axis if place_on(run, window.axis) is not None else Axis.STEP
    place = place_on(run, axis)
    assert place is not None  # steps are always known
    panels = _panels(run, report)
    return {
        "axis": axis.value,
        "axes": [known.value for known in axes_of(run)],
        "range": _range(run, place),
        "panels": [
            {
                "name": names[0] if names else "",
                "is_log": _is_log(run, names, k),
                "series": [_series(run.series[name], place, window, _role(name, names, k)) for name in names],
            }
            for k, names in enumerate(panels)
        ],
        "places": _places(report, place),
        "is_whole": window.low is None and window.high is None,
    }


def _is_log(run: Run, names: list[str], panel: int) -> bool:
    """Whether a logarithmic scale shows more; below the losses only where it hides nothing, as it cannot be changed there."""
    values = [run.series[name].value for name in names]
    return scale_for(values).is_log and (panel == 0 or all(bool((v[np.isfinite(v)] > 0).all()) for v in values))


def _role(name: str, names: list[str], panel: int) -> str:
    """How a metric is drawn: as training, as evaluation, or as what goes along with them."""
    if name.startswith("eval/"):
        return "eval" if name == next(n for n in names if n.startswith("eval/")) else "eval2"
    return "train" if panel == 0 else "other"


def _panels(run: Run, report: Report | None) -> list[list[str]]:
    """The metrics of each panel, the losses first."""
    kind = kind_of(run.series) if report is None else report.kind
    main, evals = drawn_metrics(run, kind, None if report is None else report.best)
    panels = [[name for name in (main, *evals) if name in run.series]]
    named = [] if report is None else [f.metric for f in report.findings if f.metric != SETTINGS]
    left_out = {*panels[0], GRAD_NORM, LEARNING_RATE, EPOCH}
    extra = [name for name in dict.fromkeys([KL, *named]) if name in run.series and name not in left_out]
    panels += [[name] for name in extra[:_MOST_EXTRA]]
    panels += [[name] for name in (GRAD_NORM, LEARNING_RATE) if name in run.series]
    return panels


def _range(run: Run, place: Place) -> list[float]:
    steps = [int(s.step[i]) for s in run.series.values() if len(s) for i in (0, -1)]
    if not steps:
        return [0.0, 1.0]
    return [_short(v) for v in place(np.asarray([min(steps), max(steps)])).tolist()]


def _series(series: Series, place: Place, window: Window, role: str) -> dict[str, Any]:
    x = place(series.step)
    is_smoothed = window.smoothing > 0 and series.name != LEARNING_RATE  # a schedule has no noise
    y = smoothed(series.value, window.smoothing) if is_smoothed else series.value
    start = 0 if window.low is None else max(int(np.searchsorted(x, window.low)) - 1, 0)
    end = x.size if window.high is None else min(int(np.searchsorted(x, window.high, side="right")) + 1, x.size)
    columns = min(max(window.columns, LEAST_COLUMNS), MOST_COLUMNS)
    told: dict[str, Any] = {
        "name": plain(series.name),
        "role": role,
        "n": len(series),
        "gaps": _gaps(series, x),
        "n_bad": int((~np.isfinite(series.value)).sum()),
        "n_not_positive": int((series.value <= 0).sum()),
    }
    kept = decimate(x[start:end], y[start:end], columns) + start
    told |= {"n_drawn": kept.size, "step": series.step[kept].tolist(), "x": _shorts(x[kept]), "y": _shorts(y[kept])}
    if is_smoothed:
        raw = decimate(x[start:end], series.value[start:end], columns) + start
        told["raw"] = {"x": _shorts(x[raw]), "y": _shorts(series.value[raw])}
    return told


def _gaps(series: Series, x: FloatArray) -> list[dict[str, Any]]:
    """Where a metric is not finite, in full, however few of its points are drawn."""
    found = stretches(series.value)
    while len(found) > _MOST_STRETCHES:
        found = [(a[0], b[1]) for a, b in zip(found[::2], [*found[1::2], found[-1]], strict=False)]
    gaps = []
    for first, last in found:
        bad = series.value[first : last + 1]
        bad = bad[~np.isfinite(bad)]
        gaps.append(
            {
                "from": _short(x[first]),
                "to": _short(x[last]),
                "first_step": int(series.step[first]),
                "last_step": int(series.step[last]),
                "n": int(bad.size),
                "what": "NaN" if bool(np.isnan(bad).any()) else "infinite",
            }
        )
    return gaps


def _places(report: Report | None, place: Place) -> dict[str, float]:
    """Where the steps lie that a report names."""
    if report is None:
        return {}
    steps = {step for f in report.findings if f.metric != SETTINGS for step in (f.first_step, f.last_step)}
    steps |= {step for step in (report.stop.step, None if report.best is None else report.best.step) if step is not None}
    ordered = sorted(steps)
    return dict(zip(map(str, ordered), map(_short, place(np.asarray(ordered, dtype=np.int64)).tolist()), strict=True))


def _short(value: float) -> float:
    """Nine digits: a step must not move, and no value needs more."""
    return float(f"{value:.9g}")


def _shorts(values: FloatArray) -> list[float | None]:
    return [_short(v) if math.isfinite(v) else None for v in values.tolist()]
