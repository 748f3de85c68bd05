"""What is worth telling of a live run: each finding when it is new, grows graver or is over, and no more often."""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.model import Finding, Severity, Status


class News:
    """Remembers what was told of each finding."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, int], tuple[Severity, Status]] = {}

    def of(self, changed: Iterable[Finding]) -> tuple[Finding, ...]:
        """Those that are news, which counts as telling them; one that only goes on is none."""
        news = tuple(f for f in changed if self._told.get(f.key) != (f.severity, f.status))
        self._told.update((f.key, (f.severity, f.status)) for f in news)
        return news
