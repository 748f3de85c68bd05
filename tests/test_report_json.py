import dataclasses
import json
import math

import numpy as np
import sample_reports as samples
import snapshot

from diagnose.report.json import document, dumps, report_to_dict
from diagnose.report.markdown import escape, markdown, report_markdown


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


def test_json_of_every_verdict() -> None:
    text = dumps(document([report for report, _ in samples.ALL], [("logs/broken.json", "ends in the middle of a value")]))
    snapshot.check("report.json", text)
    assert json.loads(text, parse_constant=_refuse)["schema"] == 1


def test_numbers_that_json_cannot_hold_become_words() -> None:
    settings = {
        "a": math.nan,
        "b": math.inf,
        "c": -math.inf,
        "d": np.float32(0.5),
        "e": np.int64(3),
        "f": [math.nan],
        "g": {1, 2},
    }
    report = dataclasses.replace(samples.WATCH, settings=settings)
    told = json.loads(dumps(report_to_dict(report)), parse_constant=_refuse)
    assert told["settings"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5, "e": 3, "f": ["NaN"], "g": "{1, 2}"}
    assert told["findings"][-1]["evidence"][0]["value"] == "NaN"


def test_a_dict_of_a_report_holds_plain_values_only() -> None:
    told = report_to_dict(samples.SICK)
    assert told == json.loads(dumps(told))
    assert told["stop"] == {"stop": True, "step": 500, "code": "CD401", "best_step": 300}
    assert told["prescription"]["changes"][0] == {"setting": "learning_rate", "from": 2e-4, "to": 6.7e-5, "factor": 1 / 3}


def test_markdown_of_every_verdict() -> None:
    snapshot.check("report.md", markdown(samples.ALL, [("logs/a|b.json", "ends early")]))


def test_markdown_of_one_run_has_no_table() -> None:
    assert not markdown([(samples.HEALTHY, None)]).startswith("|")


def test_nothing_from_a_log_is_read_as_markdown() -> None:
    assert escape("<script>|`a`") == "\\<script\\>\\|\\`a\\`"
    text = report_markdown(samples.WATCH)
    assert "\\[red\\]spiky" in text
    assert "\x1b" not in text
