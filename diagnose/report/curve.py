"""The losses of a run drawn with characters: the training loss as a line, evaluation losses as points, findings below.

Braille cells hold 2 x 4 dots each; where only ASCII can be written, `'`, `.` and `:` say in which half of a cell the line is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diagnose.model import SETTINGS, FloatArray, IntArray, Kind, Status
from diagnose.names import TRAIN_LOSS, is_eval_loss
from diagnose.report.scale import Scale, scale_for, spread_ticks
from diagnose.report.words import grouped

if TYPE_CHECKING:
    from diagnose.model import Best, Report, Run, Series

#: Dots of one braille cell.
DOTS_X, DOTS_Y = 2, 4
#: Bit of each dot, by column and row within its cell.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_UPPER = 0x01 | 0x02 | 0x08 | 0x10
_BRAILLE = 0x2800
#: Evaluation sets drawn at once: with more of them no point can be told from another.
_MOST_EVALS = 2
#: Rows of marks below the axis; a mark that finds no place stays in the list of findings only.
_MARK_ROWS = 3

#: A glyph and what it stands for: `train`, `eval`, `axis`, `label`, `nan`, `best`, `stop`, a severity, or nothing.
Cell = tuple[str, str]
_BLANK: Cell = (" ", "")


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters of a drawing."""

    evals: str
    nan: str
    best: str
    stop: str
    guide: str
    side: str
    tick: str
    corner: str
    floor: str
    foot: str
    line: str


UNICODE = Signs("●○", "x", "◆", "■", "┊", "│", "┤", "└", "─", "┬", "⠒⠒")
PLAIN = Signs("o%", "x", "*", "#", ":", "|", "+", "+", "-", "+", "..")


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing: its lines, top to bottom, and what its signs mean.

    Args:
        lines: cells of each line, left to right, all as wide as was asked for or narrower.
        legend: sign, what it stands for, and its name.
    """

    lines: list[list[Cell]]
    legend: list[tuple[str, str, str]]


def draw(report: Report, run: Run, *, width: int, height: int = 12, is_ascii: bool = False) -> Plot | None:
    """Draw the losses of a run with its findings, its best checkpoint and its stop step.

    Args:
        report: of the run.
        run: with the series.
        width: of the drawing, in characters.
        height: of the drawing without its axis and marks, in characters.
        is_ascii: whether to use ASCII alone.

    Returns:
        None when the run has no loss to draw.
    """
    main, evals = drawn_metrics(run, report.kind, report.best)
    shown = [run.series[name] for name in (main, *evals) if name in run.series and len(run.series[name])]
    if not shown:
        return None
    signs = PLAIN if is_ascii else UNICODE
    scale = scale_for([s.value for s in shown])
    first = min(int(s.step[0]) for s in shown)
    last = max(*(int(s.step[-1]) for s in shown), report.last_step, first + 1)
    labels = scale.ticks(height)
    margin = max((len(text) for text in labels.values()), default=0) + 1
    pane = Pane(max(width - margin - 1, DOTS_X), height, first, last, scale)
    legend = []
    if main in run.series:
        pane.line(run.series[main])
        legend.append((signs.line, "train", main))
    for sign, name in zip(signs.evals, evals, strict=False):
        pane.points(run.series[name], sign)
        legend.append((sign, "eval", name))
    if pane.cross_out(shown, signs.nan):
        legend.append((signs.nan, "nan", "not a finite number"))
    marks, more = _marks(report, signs)
    pane.guide([(step, role) for step, _, role in marks if role in ("best", "stop")], signs.guide)
    body = [
        [(labels.get(y, "").rjust(margin), "label"), (signs.tick if y in labels else signs.side, "axis"), *row]
        for y, row in enumerate(pane.cells(is_ascii))
    ]
    return Plot([*body, *_axis(pane, margin, signs), *_mark_rows(pane, marks, margin)], legend + more)


def drawn_metrics(run: Run, kind: Kind, best: Best | None) -> tuple[str, list[str]]:
    """What to draw as a line and what as points: the losses; of a run of reinforcement learning its reward.

    Args:
        run: with the series.
        kind: of the run.
        best: the checkpoint to keep: where there is one, its metric alone is drawn as points.
    """
    reward = next((n for n in ("train/reward", "train/rewards/mean") if n in run.series), None)
    if kind is Kind.RL and reward:
        return reward, []
    evals = sorted(name for name in run.series if is_eval_loss(name) and len(run.series[name]))
    if best is not None and best.metric in evals:
        evals = [best.metric]
    return TRAIN_LOSS, evals[:_MOST_EVALS]


class Pane:
    """The area between the axes, in cells and in dots."""

    def __init__(self, width: int, height: int, first: int, last: int, scale: Scale) -> None:
        self.width, self.height = width, height
        self.first, self.last, self.scale = first, last, scale
        self.dots = np.zeros((height * DOTS_Y, width * DOTS_X), dtype=bool)
        self.over: dict[tuple[int, int], Cell] = {}
        self.under: dict[int, Cell] = {}

    def column(self, step: int) -> int:
        """The cell of a step."""
        return int(self._x(np.asarray([step]), self.width)[0])

    def _x(self, step: IntArray, width: int) -> IntArray:
        share = (step - self.first) / (self.last - self.first)
        return np.clip(np.rint(share * (width - 1)), 0, width - 1).astype(np.int64)

    def _y(self, value: FloatArray, height: int) -> IntArray:
        share = 1.0 - self.scale.share(value)
        return np.clip(np.rint(share * (height - 1)), 0, height - 1).astype(np.int64)

    def line(self, series: Series) -> None:
        """Draw a connected line; a value that is not finite breaks it. Cost does not grow with points beyond the dots."""
        good = np.isfinite(series.value)
        if not bool(good.any()):
            return
        gaps = np.cumsum(~good)[good]
        x = self._x(series.step[good], self.width * DOTS_X)
        y = self._y(series.value[good], self.height * DOTS_Y)
        # what falls into one column of dots is one stroke from its lowest to its highest point
        starts = np.flatnonzero(np.diff(x, prepend=-1))
        ends = np.append(starts[1:], x.size) - 1
        for at, low, high in zip(
            x[starts].tolist(), np.minimum.reduceat(y, starts).tolist(), np.maximum.reduceat(y, starts).tolist(), strict=True
        ):
            self.dots[low : high + 1, at] = True
        for a, b in zip(ends[:-1].tolist(), starts[1:].tolist(), strict=True):
            if gaps[a] == gaps[b]:
                self._stroke(int(x[a]), int(y[a]), int(x[b]), int(y[b]))

    def _stroke(self, x0: int, y0: int, x1: int, y1: int) -> None:
        n = max(abs(x1 - x0), abs(y1 - y0), 1)
        along = np.linspace(0.0, 1.0, n + 1)
        self.dots[np.rint(y0 + along * (y1 - y0)).astype(np.int64), np.rint(x0 + along * (x1 - x0)).astype(np.int64)] = True

    def points(self, series: Series, sign: str) -> None:
        """Draw one point a column, the last of those that fall into it."""
        good = np.isfinite(series.value)
        x, y = self._x(series.step[good], self.width), self._y(series.value[good], self.height)
        for column, row in dict(zip(x.tolist(), y.tolist(), strict=True)).items():
            self.over[row, column] = (sign, "eval")

    def cross_out(self, shown: Sequence[Series], sign: str) -> bool:
        """Mark on the lowest row where a drawn metric was not finite; returns whether it ever was."""
        columns = {c for s in shown for c in self._x(s.step[~np.isfinite(s.value)], self.width).tolist()}
        for column in columns:
            self.over[self.height - 1, column] = (sign, "nan")
        return bool(columns)

    def guide(self, marks: Sequence[tuple[int, str]], sign: str) -> None:
        """Draw a faint line from a mark to the top, behind the curves."""
        for step, role in marks:
            self.under[self.column(step)] = (sign, role)

    def cells(self, is_ascii: bool) -> list[list[Cell]]:
        """The pane's lines, points over the line over the guides."""
        bits = np.zeros((self.height, self.width), dtype=np.int64)
        for dx in range(DOTS_X):
            for dy in range(DOTS_Y):
                bits |= self.dots[dy::DOTS_Y, dx::DOTS_X] * _BITS[dx][dy]
        return [
            [self.over.get((y, x)) or _line_cell(b, is_ascii) or self.under.get(x, _BLANK) for x, b in enumerate(row)]
            for y, row in enumerate(bits.tolist())
        ]


def _line_cell(bits: int, is_ascii: bool) -> Cell | None:
    if not bits:
        return None
    if not is_ascii:
        return chr(_BRAILLE + bits), "train"
    up, down = bits & _UPPER, bits & ~_UPPER
    return (":" if up and down else "'" if up else "."), "train"


def _axis(pane: Pane, margin: int, signs: Signs) -> list[list[Cell]]:
    """The floor with its ticks, and the steps below it."""
    floor, numbers = [signs.floor] * pane.width, [" "] * pane.width
    free = 0
    for step in spread_ticks(pane.first, pane.last, max(2, pane.width // 14)):
        if not float(step).is_integer():
            continue
        column, text = pane.column(int(step)), str(int(step))
        start = min(max(column - len(text) // 2, 0), len(numbers) - len(text))
        if start < free:
            continue
        floor[column] = signs.foot
        numbers[start : start + len(text)] = text
        free = start + len(text) + 1
    pad = " " * margin
    return [
        [(pad + signs.corner, "axis"), *((c, "axis") for c in floor)],
        [(pad + " ", ""), ("".join(numbers).rstrip(), "label")],
    ]


def _marks(report: Report, signs: Signs) -> tuple[list[tuple[int, str, str]], list[tuple[str, str, str]]]:
    """Step, sign and role of every mark, and the legend of those that no list explains."""
    marks, legend = [], []
    if report.best is not None:
        marks.append((report.best.step, signs.best, "best"))
        legend.append((signs.best, "best", f"best, step {report.best.step}"))
    if report.stop.stop and report.stop.step is not None:
        marks.append((report.stop.step, signs.stop, "stop"))
        legend.append((signs.stop, "stop", f"stop, step {report.stop.step}"))
    for letter, group in grouped(report.findings):
        if group[0].metric == SETTINGS:
            continue
        role = group[0].severity.value if group[0].status is Status.OPEN else "resolved"
        marks += [(finding.first_step, letter, role) for finding in group]
        legend.append((letter, role, group[0].name))
    return marks, legend


def _mark_rows(pane: Pane, marks: Sequence[tuple[int, str, str]], margin: int) -> list[list[Cell]]:
    """Marks under the axis, each on the first row where its column is free."""
    rows: list[dict[int, Cell]] = []
    for step, sign, role in marks:
        column = pane.column(step)
        if any(row.get(column) == (sign, role) for row in rows):
            continue
        row = next((row for row in rows if column not in row), None)
        if row is None:
            if len(rows) == _MARK_ROWS:
                continue
            row = {}
            rows.append(row)
        row[column] = (sign, role)
    return [[(" " * (margin + 1), ""), *(row.get(x, _BLANK) for x in range(max(row) + 1))] for row in rows]
