"""All runs of a source, read and examined by a thread that works only while somebody looks.

A request never waits for a log to be read: it gets what is known, and each run's own version says when there is more.
"""

from __future__ import annotations

import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from diagnose.errors import DiagnoseError
from diagnose.model import Run
from diagnose.readers import Skipped
from diagnose.readers.discover import with_unique_ids
from diagnose.rules import Rule
from diagnose.tensorboard.examined import Examined
from diagnose.tensorboard.folder import Batch

#: Rows that are examined before it is looked again which run matters most.
_ROWS = 500
#: Seconds without a request after which the thread ends.
_IDLE_S = 60.0
#: A scan takes at most this share of the time.
_SCAN_SHARE = 0.2
#: Seconds between two lists while the first scan goes on, and seconds of examining after each: there is a verdict to show soon.
_PUBLISH_S, _GLIMPSE_S = 0.2, 0.1


class Source(Protocol):
    """Where runs come from."""

    @property
    def name(self) -> str:
        """For people."""

    def batches(self) -> Iterator[Batch]:
        """Every run, in order, a few at a time."""


@dataclass
class Entry:
    """One run in the catalog, and the version at which it, or its report, last changed."""

    examined: Examined
    version: int


@dataclass(frozen=True)
class Listing:
    """The catalog as it stands.

    Args:
        version: grows with every change.
        entries: by the run's id, in the order of `diagnose`.
        skipped: what was not read.
        is_read: whether every run has been read once.
        failure: what went wrong in our own code, with its traceback; empty if nothing did.
        complaint: what is wrong with the configuration; empty if nothing is.
        source: where the runs come from.
    """

    version: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    is_read: bool = False
    failure: str = ""
    complaint: str = ""
    source: str = ""


class Catalog:
    """Every run with its examination.

    Args:
        find_source: gives the source; asked anew at each scan, as a folder may come to exist.
        load_rules: gives the rules to apply.
        interval_s: seconds between two looks for new data; 0 to look once.
    """

    def __init__(
        self, find_source: Callable[[], Source], load_rules: Callable[[], Sequence[Rule]], interval_s: float = 5.0
    ) -> None:
        self.interval_s = interval_s
        #: A restarted server counts its versions anew.
        self.boot = uuid.uuid4().hex[:8]
        self.listing = Listing()
        self._find_source, self._load_rules = find_source, load_rules
        self._rules: Sequence[Rule] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._preferred: tuple[str, ...] = ()
        self._next_scan = 0.0

    def ask(self, preferred: Iterable[str] = ()) -> Listing:
        """The listing as it stands; sees to it that it will be newer soon.

        Args:
            preferred: ids of the runs that are looked at, which are examined first.
        """
        with self._lock:
            self._asked = time.monotonic()
            wanted = tuple(preferred)
            if wanted:
                self._preferred = wanted
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="curve-doctor", daemon=True)
                self._thread.start()
            self._wake.notify()
        return self.listing

    def settle(self) -> Listing:
        """Read and examine everything now, in the calling thread. For programs and tests; requests use `ask`."""
        self._scan()
        while (entry := self._next_pending()) is not None:
            self._advance(entry)
        return self.listing

    def _work(self) -> None:
        while True:
            now = time.monotonic()
            if now >= self._next_scan:
                self._guarded(self._scan)
                took = time.monotonic() - now
                wait = max(self.interval_s, took / _SCAN_SHARE) if self.interval_s else float("inf")
                self._next_scan = time.monotonic() + wait
            entry = self._next_pending()
            if entry is not None:
                self._guarded(partial(self._advance, entry))
                continue
            with self._lock:
                idle = time.monotonic() - self._asked
                if idle > _IDLE_S:
                    self._thread = None
                    return
                self._wake.wait(timeout=min(max(self._next_scan - time.monotonic(), 0.0), _IDLE_S))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a bug of ours is told in the tab, and TensorBoard goes on
            told = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            self._publish(failure=told)

    def _scan(self) -> None:
        if self._rules is None:
            complaint = ""
            try:
                self._rules = self._load_rules()
            except DiagnoseError as error:
                from diagnose.examination import default_rules

                self._rules, complaint = default_rules(), f"{error}; the default rules are applied"
            self._publish(complaint=complaint)
        source = self._find_source()
        runs: list[Run] = []
        skipped: list[Skipped] = []
        told = time.monotonic()
        for batch in source.batches():
            runs += batch.runs
            skipped += batch.skipped
            if not self.listing.is_read and time.monotonic() - told > _PUBLISH_S:
                self._take(runs, skipped, source.name, is_read=False)
                until = time.monotonic() + _GLIMPSE_S
                while time.monotonic() < until and (entry := self._next_pending()) is not None:
                    self._advance(entry)
                told = time.monotonic()
        self._take(runs, skipped, source.name, is_read=True)

    def _take(self, runs: Sequence[Run], skipped: Sequence[Skipped], source: str, *, is_read: bool) -> None:
        assert self._rules is not None
        old, version = self.listing, self.listing.version + 1
        entries: dict[str, Entry] = {}
        is_new = False
        for run in with_unique_ids(runs):
            entry = old.entries.get(run.id)
            if entry is None:
                entry = Entry(Examined(run, self._rules), version)
                is_new = True
            elif entry.examined.update(run):
                entry.version = version
                is_new = True
            entries[run.id] = entry
        now = (tuple(dict.fromkeys(skipped)), is_read, source)
        if is_new or list(entries) != list(old.entries) or now != (old.skipped, old.is_read, old.source) or old.failure:
            self.listing = Listing(version, entries, *now[:2], "", old.complaint, source)

    def _next_pending(self) -> Entry | None:
        entries = self.listing.entries
        wanted = [entries[id] for id in self._preferred if id in entries]
        return next((entry for entry in (*wanted, *entries.values()) if entry.examined.is_pending), None)

    def _advance(self, entry: Entry) -> None:
        entry.examined.advance(_ROWS)
        if not entry.examined.is_pending:
            entry.version = self.listing.version + 1
            self._publish()

    def _publish(self, **changes: str) -> None:
        self.listing = replace(self.listing, version=self.listing.version + 1, **changes)  # type: ignore[arg-type]
