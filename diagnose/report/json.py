"""The report as JSON: the contract that other programs read. Strict JSON, the same bytes for the same log."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from diagnose.model import SCHEMA, Evidence, Finding, LearningRateVerdict, Prescription, Report


def report_to_dict(report: Report) -> dict[str, Any]:
    """One run's report in plain JSON values; NaN and infinities become the strings `NaN`, `Infinity`, `-Infinity`."""
    stop = report.stop
    found: dict[str, Any] = {
        "id": report.id,
        "source": report.source,
        "verdict": report.verdict.value,
        "headline": report.headline,
        "kind": report.kind.value,
        "last_step": report.last_step,
        "n_points": report.n_points,
        "findings": [_finding(f) for f in report.findings],
        "skips": [asdict(s) for s in report.skips],
        "crashes": [asdict(c) for c in report.crashes],
        "notes": [asdict(n) for n in report.notes],
        "best": None if report.best is None else asdict(report.best),
        "stop": {
            "stop": stop.stop,
            "step": stop.step,
            "code": None if stop.because is None else stop.because.code,
            "best_step": stop.best_step,
        },
        "prescription": _prescription(report.prescription),
        "learning_rate": _learning_rate(report.learning_rate),
        "settings": report.settings,
    }
    return {key: _strict(value) for key, value in found.items()}


def document(reports: Iterable[Report], skipped: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    """The whole output of one command.

    Args:
        reports: of the runs that were read.
        skipped: path and reason of what was not.
    """
    return {
        "schema": SCHEMA,
        "runs": [report_to_dict(report) for report in reports],
        "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
    }


def dumps(value: Any) -> str:
    """Strict JSON in ASCII, so that it survives any terminal and any file."""
    return json.dumps(_strict(value), allow_nan=False, indent=2) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "status": finding.status.value,
        "metric": finding.metric,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "message": finding.message,
        "evidence": [_evidence(e) for e in finding.evidence],
        "prescription": _prescription(finding.prescription),
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "what": item.what,
        "value": item.value,
        "relation": item.relation,
        "limit": item.limit,
        "unit": item.unit,
        "step": item.step,
    }


def _prescription(cure: Prescription | None) -> dict[str, Any] | None:
    if cure is None:
        return None
    changes = [{"setting": c.setting, "from": c.before, "to": c.after, "factor": c.factor} for c in cure.changes]
    return {
        "changes": changes,
        "advice": cure.advice,
        "why": cure.why,
        "do_not": list(cure.do_not),
        "checkpoint_step": cure.checkpoint_step,
        "output_dir": cure.output_dir,
    }


def _learning_rate(found: LearningRateVerdict | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "direction": found.direction.value,
        "factor": found.factor,
        "from": found.before,
        "to": found.after,
        "confidence": found.confidence,
        "evidence": [_evidence(e) for e in found.evidence],
        "reason": found.reason,
        "chances": dict(found.chances) or None,
    }


def _strict(value: Any) -> Any:
    """A value that strict JSON can hold: settings of a live run may be anything."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    # numpy numbers hide a plain one
    return _strict(value.item()) if hasattr(value, "item") else str(value)
