import os
import re
from pathlib import Path

import pytest

from diagnose import cli
from diagnose.explain import TABLE_START, examine_example, explain, rule_table, with_rule_table
from diagnose.report.rules import sparkline
from diagnose.rules import RULES, Rule
from diagnose.rules.base import HEADINGS

README = Path(__file__).parent.parent / "README.md"


def test_the_readme_holds_the_table_of_the_rules() -> None:
    text = README.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        README.write_text(with_rule_table(text), encoding="utf-8")
    assert README.read_text(encoding="utf-8") == with_rule_table(text), "UPDATE_SNAPSHOTS=1 brings it up to date"


def test_the_table_has_a_row_for_each_rule() -> None:
    rows = rule_table().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {rule.code}" for rule in RULES]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)


def test_a_document_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="must hold"):
        with_rule_table(f"{TABLE_START} only")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_can_be_explained(rule: type[Rule], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", rule.code]) == 0
    by_code = capsys.readouterr().out
    assert cli.main(["explain", rule.name]) == 0
    assert capsys.readouterr().out == by_code
    assert all(heading in by_code for heading in HEADINGS)
    told = explain(rule)
    for threshold in told.thresholds:
        assert re.search(rf"^    {threshold.name} = {threshold.default:.4g} {threshold.unit}", by_code, flags=re.MULTILINE)
    assert all(example.what in by_code for example in (*told.firing, *told.silent) if len(example.what) < 70)
    assert max(map(len, by_code.splitlines())) <= 80
    assert all(c == "\n" or c.isprintable() for c in by_code)


def test_an_example_is_examined_with_its_own_rule_alone() -> None:
    _, report = examine_example(RULES[0], RULES[0].firing[0])
    assert [f.code for f in report.findings] == [RULES[0].code]


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([1.0, 2.0, 3.0], "▁▅█"), ([2.0, 2.0], "▅▅"), ([None, float("nan"), 1.0], " x▅"), ([], ""), ([1e308, -1e308], "█▁")],
)
def test_sparkline(values: list[float | None], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_a_long_sparkline_is_thinned() -> None:
    assert len(sparkline([float(i) for i in range(1000)])) == 40
