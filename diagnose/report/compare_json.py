"""A comparison in plain JSON values: the contract that other programs read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diagnose.compare import Comparison, Entry
from diagnose.loss_differences import Difference
from diagnose.model import SCHEMA
from diagnose.rate_sweep import Next, Sweep


def comparison_to_dict(found: Comparison, skipped: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    """A whole comparison; `report.json.dumps` writes its NaN and infinities as strings.

    Args:
        found: the comparison.
        skipped: path and reason of what was not read.
    """
    ids = [entry.report.id for entry in found.entries]
    better = found.better
    return {
        "schema": SCHEMA,
        "runs": [_entry(entry) for entry in found.entries],
        "changed": [{"setting": c.setting, "values": list(c.values), "counts": c.counts} for c in found.changed],
        "differences": [_difference(d, ids) for d in found.differences],
        "better": None
        if better is None
        else {
            "id": better.id,
            "step": better.step,
            "value": better.value,
            "metric": better.metric,
            "over": better.over,
            "margin": better.margin,
            "noise": better.noise,
        },
        "leaders": list(found.leaders),
        "warning": found.warning,
        "cautions": list(found.cautions),
        "sweep": None if found.sweep is None else _sweep(found.sweep),
        "next": None if found.next is None else _next(found.next),
        "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    report = entry.report
    best = report.best
    return {
        "id": report.id,
        "source": report.source,
        "verdict": report.verdict.value,
        "last_step": report.last_step,
        "best": None if best is None else {"step": best.step, "value": best.value, "metric": best.metric},
        "findings": [
            {
                "code": f.code,
                "name": f.name,
                "severity": f.severity.value,
                "status": f.status.value,
                "metric": f.metric,
                "first_step": f.first_step,
            }
            for f in report.findings
        ],
        "crashes": [{"code": c.code, "error": c.error} for c in report.crashes],
        "settings": dict(entry.settings.values),
    }


def _difference(found: Difference, ids: list[str]) -> dict[str, Any]:
    """Noise is the standard deviation of the logarithm, so for small ones that of the value as a share of it."""
    points = found.points
    return {
        "kind": found.kind,
        "metric": found.metric,
        "values": [None if p is None else p.value for p in points],
        "steps": [None if p is None else p.step for p in points],
        "noise": [None if p is None else p.sd for p in points],
        "lowest": None if found.lowest is None else ids[found.lowest],
        "within_noise_of_it": [ids[i] for i in found.level],
    }


def _sweep(found: Sweep) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "rates": list(found.rates),
        "bests": list(found.bests),
        "finals": list(found.finals),
        "best_rate": found.best_rate,
        "band": None if found.band is None else list(found.band),
        "next": _next(found.next),
    }


def _next(found: Next) -> dict[str, Any]:
    return {"rate": found.rate, "output_dir": found.output_dir, "why": found.why}
