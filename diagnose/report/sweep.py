"""Loss against learning rate drawn with characters: the rate on a logarithmic axis, its floor heavy where rates serve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from diagnose.model import Series
from diagnose.rate_sweep import Sweep
from diagnose.report.curve import DOTS_X, PLAIN, UNICODE, Cell, Pane, Plot
from diagnose.report.scale import scale_for
from diagnose.report.words import setting

#: Rates stand on whole numbers, as steps do: so many to a power of ten.
_PER_DECADE = 10_000
#: Part of the range of rates that is left free on either side, so that no point stands on the axis.
_AIR = 0.03
_BAND, _PLAIN_BAND = "━", "="
_NEXT, _PLAIN_NEXT = "▲", "^"


def draw_sweep(sweep: Sweep, *, width: int, height: int = 10, is_ascii: bool = False) -> Plot | None:
    """Draw the best and the last loss of every rate.

    Args:
        sweep: to draw.
        width: of the drawing, in characters.
        height: of the drawing without its axis, in characters.
        is_ascii: whether to use ASCII alone.

    Returns:
        None where no loss is finite.
    """
    bests, finals = _series(sweep.rates, sweep.bests), _series(sweep.rates, sweep.finals)
    if not bool(np.isfinite(bests.value).any()):
        return None
    signs, band, after = (PLAIN, _PLAIN_BAND, _PLAIN_NEXT) if is_ascii else (UNICODE, _BAND, _NEXT)
    scale = scale_for([np.concatenate([bests.value, finals.value])])
    labels = scale.ticks(height)
    margin = max((len(text) for text in labels.values()), default=0) + 1
    places = [*bests.step.tolist(), _place(sweep.next.rate)]
    air = max(1, round(_AIR * (max(places) - min(places))))
    pane = Pane(max(width - margin - 1, DOTS_X), height, min(places) - air, max(places) + air, scale)
    pane.line(bests)
    pane.points(finals, signs.evals[1])
    pane.points(bests, signs.evals[0])
    legend = [(signs.evals[0], "eval", f"best {sweep.metric}")]
    if any(sign == signs.evals[1] for sign, _ in pane.over.values()):
        legend.append((signs.evals[1], "eval", "last"))
    if pane.cross_out([finals], signs.nan):
        legend.append((signs.nan, "nan", "ended as no number"))
    body = [
        [(labels.get(y, "").rjust(margin), "label"), (signs.tick if y in labels else signs.side, "axis"), *row]
        for y, row in enumerate(pane.cells(is_ascii))
    ]
    floor: list[Cell] = [(signs.floor, "axis")] * pane.width
    if sweep.band is not None:
        first, last = (pane.column(_place(rate)) for rate in sweep.band)
        floor[first : last + 1] = [(band, "best")] * (last + 1 - first)
        legend.append((band, "best", "rates that serve"))
    names: list[Cell] = [(" ", "")] * pane.width
    free = 0
    for rate in sweep.rates:
        text, column = setting(float(f"{rate:.3g}")), pane.column(_place(rate))
        start = min(max(column - len(text) // 2, 0), pane.width - len(text))
        if floor[column][0] == signs.floor:
            floor[column] = (signs.foot, "axis")
        if start >= free:
            names[start : start + len(text)] = [(c, "label") for c in text]
            free = start + len(text) + 1
    column = pane.column(_place(sweep.next.rate))
    mark: list[Cell] = [(" " * (margin + 1 + column), ""), (after, "stop")]
    legend.append((after, "stop", f"next: {setting(sweep.next.rate)}"))
    pad = " " * margin
    axis = [[(pad + signs.corner, "axis"), *floor], [(pad + " ", ""), *_stripped(names)], mark]
    return Plot([*body, *axis], legend)


def _place(rate: float) -> int:
    return round(_PER_DECADE * math.log10(rate))


def _series(rates: Sequence[float], losses: Sequence[float]) -> Series:
    step = np.asarray([_place(rate) for rate in rates], dtype=np.int64)
    return Series("loss", step, np.asarray(losses, dtype=np.float64), np.ones_like(step))


def _stripped(cells: list[Cell]) -> list[Cell]:
    last = max((i for i, (glyph, _) in enumerate(cells) if glyph != " "), default=-1)
    return cells[: last + 1]
