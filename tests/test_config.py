import dataclasses
from pathlib import Path

import pytest

from diagnose.config import Config, find_rule, load, rules_from
from diagnose.errors import ConfigError
from diagnose.rules import RULES

ALL = [rule.code for rule in RULES]


def codes(**given: object) -> list[str]:
    return [rule.code for rule in rules_from(**given)]


def test_all_rules_in_the_order_of_their_codes_by_default() -> None:
    assert codes() == ALL == sorted(ALL)
    assert all(type(rule)() == rule for rule in rules_from())


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("CD101", ["CD101"]),
        ("cd101", ["CD101"]),
        ("nan-loss", ["CD101"]),
        (["memorization", "CD101"], ["CD101", "CD401"]),
        ("memorization, CD101", ["CD101", "CD401"]),
        ("CD1", [code for code in ALL if code.startswith("CD1")]),
        ("CD", ALL),
        (["CD101", "CD1,"], [code for code in ALL if code.startswith("CD1")]),
    ],
)
def test_select(select: object, expected: list[str]) -> None:
    assert codes(select=select) == expected


def test_ignore_wins_over_select() -> None:
    assert codes(select="CD1", ignore="nan-loss") == [c for c in ALL if c.startswith("CD1") and c != "CD101"]
    assert codes(ignore=["CD1"]) == [c for c in ALL if not c.startswith("CD1")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"select": "nan-los"}, "unknown rule 'nan-los'; did you mean nan-loss?"),
        ({"select": "CD19"}, "unknown rule 'CD19'; known: CD101, "),
        ({"ignore": ["zzz"]}, "unknown rule 'zzz'; known: nan-loss, "),
        ({"select": "CD101", "ignore": "CD1"}, "no rule is left"),
        ({"select": []}, "no rule is left"),
        ({"thresholds": {"nan-los": {"confirm": 3}}}, "did you mean nan-loss?"),
        ({"thresholds": {"nan-loss": {"confrm": 3}}}, "unknown threshold of nan-loss 'confrm'; did you mean confirm?"),
        ({"thresholds": {"nan-loss": {"zzz": 3}}}, "known: confirm"),
        ({"thresholds": {"nan-loss": {"confirm": 0}}}, "must lie between 1 and 100 points, got 0"),
        ({"thresholds": {"nan-loss": {"confirm": "3"}}}, "must be a number, got '3'"),
        ({"thresholds": {"nan-loss": {"confirm": True}}}, "must be a number, got True"),
        ({"thresholds": {"nan-loss": {"confirm": 2.5}}}, "must be a whole number, got 2.5"),
        ({"thresholds": {"nan-loss": {"confirm": float("nan")}}}, "must be a whole number, got nan"),
        ({"thresholds": {"nan-loss": 3}}, "must be a table, got 3"),
        ({"thresholds": {"nan-loss": {}, "CD101": {}}}, "given twice"),
        # a threshold of a rule that is not selected is checked all the same
        ({"select": "CD401", "thresholds": {"nan-loss": {"confirm": 0}}}, "must lie between"),
    ],
)
def test_errors_say_what_was_given_and_what_exists(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        rules_from(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["nan-loss", "CD101"])
@pytest.mark.parametrize("value", [5, 5.0])
def test_a_threshold_reaches_its_rule(key: str, value: float) -> None:
    (rule,) = rules_from(select="CD101", thresholds={key: {"confirm": value}})
    assert rule == dataclasses.replace(rule, confirm=5)
    assert isinstance(rule.confirm, int)


def test_find_rule_by_code_and_by_name() -> None:
    assert find_rule("CD101") is find_rule(" cd101 ") is find_rule("nan-loss") is RULES[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project" / "deep" / "down"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_no_file_gives_the_defaults(here: Path) -> None:
    assert load() == Config()


def test_the_nearest_file_with_a_word_for_us_counts(here: Path) -> None:
    (here.parents[1] / "pyproject.toml").write_text('[tool.curve-doctor]\nselect = ["CD1"]\nfail-on = "warning"\n')
    (here.parent / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert load() == Config(select=("CD1",), fail_on="warning")
    (here / "curve-doctor.toml").write_text('ignore = "CD401"\n[thresholds.nan-loss]\nconfirm = 4\n')
    assert load() == Config(ignore=("CD401",), thresholds={"nan-loss": {"confirm": 4}})


def test_a_file_that_is_named_is_the_only_one_read(here: Path) -> None:
    (here / "curve-doctor.toml").write_text('select = ["CD1"]\n')
    other = here / "other.toml"
    other.write_text('[tool.curve-doctor]\nselect = ["CD4"]\n')
    assert load(other).select == ("CD4",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select = [", "is not valid TOML"),
        ("selct = []", "unknown key 'selct'; did you mean select?"),
        ("zzz = 1", "unknown key 'zzz'; known: select, ignore, fail-on, thresholds"),
        ("select = 3", "select must be a list of codes or names, got 3"),
        ("ignore = [1]", "ignore must be a list of codes or names, got [1]"),
        ('select = ["CD999"]', "unknown rule 'CD999'; known: CD101, "),
        ('fail-on = "sometimes"', "fail-on must be one of error, warning, info, never; got 'sometimes'"),
        ("fail-on = []", "fail-on must be one of"),
        ("thresholds = 3", "thresholds must be a table of rules, got 3"),
        ("[thresholds.nan-loss]\nconfirm = 0", "must lie between 1 and 100"),
        ("tool.curve-doctor = 3", "tool.curve-doctor must be a table, got 3"),
    ],
)
def test_errors_of_a_file_name_it(here: Path, text: str, message: str) -> None:
    file = here / "curve-doctor.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load()
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_a_file_that_cannot_be_read(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.toml: No such file"):
        load(here / "nothing.toml")
    (here / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(here / "latin.toml")
    (here / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(ConfigError, match=r"has no \[tool\.curve-doctor\] table"):
        load(here / "pyproject.toml")
