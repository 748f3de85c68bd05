"""What the rules know of a run so far: one Track a metric, in bounded memory, updated row by row.

A Track keeps a window of recent points, the first points, and the whole course in at most `BLOCKS` blocks that
double in length as the run grows. A row costs the same at row 100 and at row 1,000,000.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from diagnose.model import Best, Finding, Kind, Note, Row, Setting
from diagnose.names import EVAL_LOSS, LEARNING_RATE, RESUMED, TRAIN_LOSS, is_eval_loss, kind_of
from diagnose.stats import median, noise_scale

#: Recent points that a Track holds. Long enough for a stable spread (the MAD of 64 normal values is within 10 %).
WINDOW = 64
#: First points that a Track holds: where the run started.
HEAD = 16
#: Blocks of the whole course. Even, since full memory merges neighbours in pairs.
BLOCKS = 128
#: Share of a metric's first value below which differences do not count: logs print few digits there, and nobody cares.
FLOOR = 1e-3
_TINY = 1e-300
#: Logged learning rates in a row that have to rise for a warm-up.
_RISING = 4
#: Steps or epochs beyond this mean that the other of the two ends the run.
_ENDLESS = 1e12
#: Points whose median is the level: the fewest that shrug off one outlier on either side.
LEVEL = 5


class Blocks:
    """A whole series in at most BLOCKS means of equally many points; the length of a block doubles when they are full."""

    __slots__ = ("_n", "_step", "_sum", "length", "steps", "values")

    def __init__(self) -> None:
        self.length = 1
        self.steps: list[float] = []
        self.values: list[float] = []
        self._n = 0
        self._sum = 0.0
        self._step = 0.0

    def add(self, step: float, value: float) -> None:
        """Add the next finite point; `step` may be any coordinate that never decreases."""
        self._n += 1
        self._sum += value
        self._step += step
        if self._n < self.length:
            return
        self.values.append(self._sum / self._n)
        self.steps.append(self._step / self._n)
        self._n, self._sum, self._step = 0, 0.0, 0.0
        if len(self.values) == BLOCKS:
            self.values = [0.5 * (a + b) for a, b in zip(self.values[::2], self.values[1::2], strict=True)]
            self.steps = [0.5 * (a + b) for a, b in zip(self.steps[::2], self.steps[1::2], strict=True)]
            self.length *= 2


class Track:
    """One metric so far.

    Attributes:
        n: finite points seen.
        n_bad: NaN and inf points seen.
        bad_in_a_row: NaN and inf points since the last finite one.
        first_step, last_step: of all points, finite or not.
        last: the last value, finite or not.
        head_steps, head: the first HEAD finite points.
        steps, values: the last WINDOW finite points.
        logs: natural logarithms of `values`, held above FLOOR times the first value: what makes rules scale-free.
        blocks: the whole course, in logarithms.
        level: median of the last LEVEL finite points.
        best, best_step: lowest finite value so far.
        goes_negative: whether any value was below 0: then it is no likelihood, and logarithms mean nothing.
    """

    __slots__ = (
        "_noise",
        "_noise_at",
        "bad_in_a_row",
        "best",
        "best_step",
        "blocks",
        "first_step",
        "floor",
        "goes_negative",
        "head",
        "head_steps",
        "last",
        "last_step",
        "level",
        "logs",
        "n",
        "n_bad",
        "name",
        "steps",
        "values",
    )

    def __init__(self, name: str, step: int) -> None:
        self.name = name
        self.n = self.n_bad = self.bad_in_a_row = 0
        self.first_step = self.last_step = step
        self.last = math.nan
        self.head_steps: list[int] = []
        self.head: list[float] = []
        self.steps: deque[int] = deque(maxlen=WINDOW)
        self.values: deque[float] = deque(maxlen=WINDOW)
        self.logs: deque[float] = deque(maxlen=WINDOW)
        self.blocks = Blocks()
        self.floor = _TINY
        self.goes_negative = False
        self.level = math.nan
        self.best = math.inf
        self.best_step: int | None = None
        self._noise: float | None = None
        self._noise_at = -1

    def add(self, step: int, value: float) -> None:
        """Take in the next point; steps never decrease."""
        self.last, self.last_step = value, step
        if not math.isfinite(value):
            self.n_bad += 1
            self.bad_in_a_row += 1
            return
        self.bad_in_a_row = 0
        self.n += 1
        if self.n == 1:
            self.floor = max(abs(value) * FLOOR, _TINY)
        if value < 0:
            self.goes_negative = True
        log = math.log(max(value, self.floor))
        if len(self.head) < HEAD:
            self.head.append(value)
            self.head_steps.append(step)
        self.steps.append(step)
        self.values.append(value)
        self.logs.append(log)
        self.blocks.add(step, log)
        self.level = median(self.recent(LEVEL))
        if value < self.best:
            self.best, self.best_step = value, step

    def recent(self, k: int) -> list[float]:
        """The last k finite values, oldest first; fewer when there are fewer."""
        n = len(self.values)
        return [self.values[i] for i in range(max(0, n - k), n)]

    def recent_logs(self, k: int) -> list[float]:
        """The logarithms of `recent(k)`, held above the floor."""
        n = len(self.logs)
        return [self.logs[i] for i in range(max(0, n - k), n)]

    def recent_steps(self, k: int) -> list[int]:
        """The steps of `recent(k)`."""
        n = len(self.steps)
        return [self.steps[i] for i in range(max(0, n - k), n)]

    @property
    def start(self) -> float:
        """Where the metric began: the median of its first three finite points; NaN before there is one."""
        return median(self.head[:3]) if self.head else math.nan

    @property
    def start_log(self) -> float:
        """Logarithm of where the metric began: its first point or `start`, whichever is higher, above the floor."""
        return math.log(max(self.head[0], self.start, self.floor)) if self.head else math.nan

    @property
    def fallen(self) -> float:
        """How far the metric has fallen from its start to its last eighth, in logarithms; negative for a rise."""
        logs = self.blocks.values
        return self.start_log - median(logs[-max(3, len(logs) // 8) :]) if logs else math.nan

    @property
    def fall_error(self) -> float:
        """Standard error of the fall that a straight line through all points would show, in logarithms."""
        return (self.noise or 0.0) * math.sqrt(12.0 / self.n) if self.n else math.inf

    @property
    def noise(self) -> float | None:
        """Standard deviation of one point's logarithm around the recent course; None for fewer than five points."""
        if self._noise_at != self.n:
            self._noise, self._noise_at = noise_scale(list(self.logs)), self.n
        return self._noise


class Curves:
    """Every Track of one run, with its settings and the reader's notes.

    Args:
        settings: see `Run`.
        notes: see `Run`.
    """

    def __init__(self, settings: Mapping[str, Setting] | None = None, notes: Sequence[Note] = ()) -> None:
        self.settings: Mapping[str, Setting] = dict(settings or {})
        self.notes = tuple(notes)
        self.tracks: dict[str, Track] = {}
        #: The latest finding of each rule name, so that a rule need not tell again what another has told.
        self.found: dict[str, Finding] = {}
        self.n_rows = 0
        self.last_step = 0
        self.epoch: float | None = None
        self.kind = Kind.SUPERVISED
        self.peak_lr: float | None = None

    @property
    def notes(self) -> tuple[Note, ...]:
        """The reader's notes."""
        return self._notes

    @notes.setter
    def notes(self, notes: tuple[Note, ...]) -> None:
        self._notes = notes
        # Rules ask at every row, and a run may have a thousand notes.
        self._went_back = tuple(n.step for n in notes if n.kind == "steps-go-back" and n.step is not None)

    def add(self, row: Row) -> None:
        """Take in one row."""
        self.n_rows += 1
        self.last_step = row.step
        if row.epoch is not None and math.isfinite(row.epoch):
            self.epoch = row.epoch
        fresh = False
        for name, value in row.values.items():
            track = self.tracks.get(name)
            if track is None:
                track = self.tracks[name] = Track(name, row.step)
                fresh = True
            track.add(row.step, value)
        if fresh:
            self.kind = kind_of(self.tracks)
        rate = row.values.get(LEARNING_RATE)
        if rate is not None and math.isfinite(rate) and rate > (self.peak_lr or 0.0):
            self.peak_lr = rate

    def __getitem__(self, name: str) -> Track:
        """The Track of a metric that a rule declared as needed."""
        return self.tracks[name]

    def get(self, name: str) -> Track | None:
        """The Track of a metric, or None while it was never logged."""
        return self.tracks.get(name)

    @property
    def train(self) -> Track | None:
        """The training loss."""
        return self.tracks.get(TRAIN_LOSS)

    @property
    def no_likelihood(self) -> str | None:
        """Why a rule that compares logarithms of the loss cannot look; None where it can."""
        track = self.train
        return "the loss goes below 0, so it is no likelihood" if track is not None and track.goes_negative else None

    @property
    def eval_losses(self) -> list[Track]:
        """The losses of the evaluation sets: the main one alone where there is one, else all named ones."""
        if EVAL_LOSS in self.tracks:
            return [self.tracks[EVAL_LOSS]]
        return [t for name, t in self.tracks.items() if is_eval_loss(name)]

    @property
    def is_warming_up(self) -> bool:
        """Whether the logged learning rate still rises; False while too few rates tell."""
        rates = self.get(LEARNING_RATE)
        if rates is None or rates.n < _RISING:
            return False
        recent = rates.recent(_RISING)
        return all(a < b for a, b in pairwise(recent))

    @property
    def planned_steps(self) -> float | None:
        """Optimizer steps that the run is meant to take; None when neither `max_steps` nor the epochs tell."""
        steps, epochs = self.settings.get("max_steps"), self.settings.get("num_train_epochs")
        if isinstance(steps, int | float) and not isinstance(steps, bool) and 0 < steps < _ENDLESS:
            return float(steps)
        if isinstance(epochs, int | float) and 0 < epochs < _ENDLESS and self.epoch:
            return self.last_step / self.epoch * epochs
        return None

    @property
    def resumed(self) -> int | None:
        """The step from which the training was last resumed, as a live doctor or a reader tells; None for an unbroken run."""
        track = self.tracks.get(RESUMED)
        steps = [step for step in self._went_back if step <= self.last_step]
        return max([*steps, *([] if track is None else [track.last_step])], default=None)

    @property
    def best(self) -> Best | None:
        """The checkpoint to keep: the lowest finite evaluation loss so far; None while there is none."""
        if self.kind is Kind.RL:
            return None  # where the loss is not the aim, the lowest one is no reason to keep a checkpoint
        found = [t for t in self.eval_losses if t.best_step is not None]
        if len(found) != 1 or found[0].best_step is None:
            return None
        return Best(found[0].best_step, found[0].best, found[0].name)
