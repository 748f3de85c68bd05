"""The catalog as plain JSON values: the list of runs, and all there is to say of one. The words are those of the reports."""

from __future__ import annotations

import re
from typing import Any

from diagnose.model import SETTINGS, Finding, Report, Status, Verdict
from diagnose.report import words
from diagnose.report.json import report_to_dict
from diagnose.report.table import tally
from diagnose.tensorboard.catalog import Catalog, Entry, Listing
from diagnose.verdict import leading

#: The worst first; what is not examined yet comes last.
_ORDER = {Verdict.SICK: 0, Verdict.WATCH: 1, Verdict.INCONCLUSIVE: 2, Verdict.HEALTHY: 3}


def key_of(id: str) -> str:
    r"""A run's name in a URL: its id, with what is no text written out.

    >>> key_of("runs/lora-a"), key_of("caf\udce9")
    ('runs/lora-a', 'caf\\udce9')
    """
    return id.encode("utf-8", "backslashreplace").decode()


def find(listing: Listing, key: str) -> Entry | None:
    """The run with this name in a URL; None when there is none."""
    if key in listing.entries:
        return listing.entries[key]
    return next((entry for id, entry in listing.entries.items() if key_of(id) == key), None)


def runs_impl(catalog: Catalog, listing: Listing, *, since: int = -1) -> dict[str, Any]:
    """The list of runs, worst first.

    Args:
        catalog: the list is from.
        listing: as `catalog.ask()` gave it.
        since: rows that have not changed since this version are left out; their names stay in `order`.
    """
    told = sorted(listing.entries.items(), key=lambda item: _rank(item[0], item[1].examined.report))
    reports = [entry.examined.report for entry in listing.entries.values() if entry.examined.report is not None]
    n_pending = sum(entry.examined.is_pending for entry in listing.entries.values())
    return {
        "boot": catalog.boot,
        "version": listing.version,
        "interval_s": catalog.interval_s,
        "source": words.plain(listing.source),
        "is_read": listing.is_read,
        "n_pending": n_pending,
        "tally": tally(reports) if reports else "",
        "order": [key_of(id) for id, _ in told],
        "rows": [_row(id, entry) for id, entry in told if entry.version > since or entry.examined.is_pending],
        "skipped": [{"path": words.plain(s.path), "reason": s.reason} for s in listing.skipped],
        "failure": listing.failure,
        "complaint": listing.complaint,
    }


def _rank(id: str, report: Report | None) -> tuple[Any, ...]:
    """Worst verdict first; among equals by name, numbers in it by their size."""
    name = tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", id.lower()))
    return (len(_ORDER) if report is None else _ORDER[report.verdict], name)


def _row(id: str, entry: Entry) -> dict[str, Any]:
    examined, report = entry.examined, entry.examined.report
    clock = examined.run.clock
    row: dict[str, Any] = {
        "key": key_of(id),
        "name": words.plain(id),
        "version": entry.version,
        "is_pending": examined.is_pending,
        "share": round(examined.share, 3),
        "last_step": examined.run.last_step,
        "logged_at": None if clock is None or not len(clock) else float(clock.value[-1]),
        "verdict": None,
    }
    if report is None:
        return row
    first = leading(report.findings)
    return row | {
        "verdict": report.verdict.value,
        "headline": report.headline,
        "finding": None if first is None else {"name": first.name, "severity": first.severity.value, "at": _at(first)},
        "best": None if report.best is None else {"step": report.best.step, "value": words.amount(report.best.value)},
        "stop_step": report.stop.step,
    }


def _at(finding: Finding) -> int | None:
    return None if finding.metric == SETTINGS else finding.first_step


def run_impl(listing: Listing, key: str) -> dict[str, Any] | None:
    """All there is to say of one run: the JSON report, and beside it the words for what is shown; None for an unknown run."""
    entry = find(listing, key)
    if entry is None:
        return None
    report = entry.examined.report
    told: dict[str, Any] = {"key": key, "name": words.plain(entry.examined.run.id), "version": entry.version, "report": None}
    if report is None:
        return told
    best = report.best
    return told | {
        "report": report_to_dict(report),
        "about": " · ".join([report.kind.value, words.count(report.n_points, "point"), f"last step {report.last_step}"]),
        "groups": [_group(letter, group) for letter, group in words.grouped(report.findings)],
        "cure": _cure(report),
        "best": "" if best is None else f"step {best.step}, {words.plain(best.metric)} {words.amount(best.value)}",
        "stop": f"CurveDoctor {words.stop(report.stop)}" if report.stop.stop else "",
        "rate": words.rate(report),
        "skips": words.skips(report.skips),
    }


def _group(letter: str, group: list[Finding]) -> dict[str, Any]:
    first = group[0]
    return {
        "letter": letter,
        "code": first.code,
        "name": first.name,
        "severity": first.severity.value,
        "is_open": first.status is Status.OPEN,
        "metric": words.plain(first.metric),
        "has_place": first.metric != SETTINGS,
        "findings": [
            {
                "first_step": f.first_step,
                "last_step": f.last_step,
                "where": words.steps(f),
                "message": words.plain(f.message),
                "evidence": [] if f.metric == SETTINGS else [words.plain(words.evidence(item)) for item in f.evidence],
            }
            for f in group
        ],
    }


def _cure(report: Report) -> dict[str, Any] | None:
    cure = report.prescription
    if cure is None:
        return None
    return {
        "changes": [{"setting": c.setting, "text": words.change(c)} for c in cure.changes],
        "advice": cure.advice,
        "why": cure.why,
        "do_not": list(cure.do_not),
        "folder": cure.output_dir,
        "snippet": snippet(report),
    }


def snippet(report: Report) -> str:
    """The changed settings as keyword arguments of `TrainingArguments`; empty where no setting changes.

    A setting whose value is not known in the log is a comment, as nothing can be computed for it.
    """
    cure = report.prescription
    if cure is None or not cure.changes:
        return ""
    lines = []
    for change in cure.changes:
        if change.after is None:
            lines.append(f"# {change.setting}: {words.change(change)}")
        else:
            value = repr(change.after) if isinstance(change.after, str | bool) else words.setting(change.after)
            lines.append(f"{change.setting}={value},  # {words.change(change)}")
    if cure.output_dir is not None:
        lines.append(f'output_dir="{cure.output_dir}",')
    return "\n".join(lines)
