"""`[tool.curve-doctor]` and flags to rules with thresholds. The live callback makes its rules here too.

    [tool.curve-doctor]
    select = ["CD1", "CD2", "memorization"]
    ignore = ["CD404"]
    fail-on = "warning"

    [tool.curve-doctor.thresholds.loss-spike]
    height = 8

The same keys stand at the top level of a `curve-doctor.toml`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.errors import ConfigError
from diagnose.rules import RULES

if TYPE_CHECKING:
    from diagnose.rules import Rule

Thresholds = Mapping[str, Mapping[str, float]]

FAIL_ON = ("error", "warning", "info", "never")
KEYS = ("select", "ignore", "fail-on", "thresholds")
FILES = ("curve-doctor.toml", "pyproject.toml")

#: What `--select CD4` means: a code or its beginning.
_CODE = re.compile(r"CD\d{0,3}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration file says.

    Args:
        select: codes, beginnings of codes or names of the rules to apply; None for all.
        ignore: those not to apply, though selected.
        fail_on: the least severity of an open finding that makes the command fail, or `never`.
        thresholds: rule name or code to threshold name to value.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    thresholds: Thresholds = field(default_factory=dict)


def rules_from(
    select: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] | None = None,
    thresholds: Thresholds | None = None,
) -> tuple[Rule, ...]:
    """The rules to apply, in the order of their codes.

    Args:
        select: codes (`CD401`), beginnings of codes (`CD4`) or names (`memorization`), also several with commas between;
            all rules if None.
        ignore: the same, for those not to apply. It wins over `select`.
        thresholds: rule name or code to threshold name to value.

    Raises:
        ConfigError: an unknown rule or threshold, a value out of its bounds, or no rule left to apply.
    """
    wanted = set(RULES) if select is None else _matching(select)
    kept = wanted - (set() if ignore is None else _matching(ignore))
    if not kept:
        raise ConfigError("no rule is left to apply: select names none, or ignore takes out all of them")
    values: dict[type[Rule], dict[str, float]] = {}
    if thresholds is not None and not isinstance(thresholds, Mapping):
        raise ConfigError(f"thresholds must be a table of rules, got {thresholds!r}")
    for key, given in (thresholds or {}).items():
        rule = find_rule(str(key))
        if rule in values:
            raise ConfigError(f"the thresholds of {rule.name} are given twice, by name and by code")
        values[rule] = _thresholds(rule, given)
    made = [(rule, rule(**values.get(rule, {}))) for rule in RULES if rule in kept or rule in values]
    return tuple(ready for rule, ready in made if rule in kept)


def find_rule(text: str) -> type[Rule]:
    """The rule with this code or name.

    Raises:
        ConfigError: there is none.
    """
    for rule in RULES:
        if text.strip().lower() in (rule.code.lower(), rule.name):
            return rule
    raise ConfigError(_unknown_rule(text))


def load(path: Path | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: the file; if None, the nearest one at or above the current directory that has a configuration for us.

    Returns:
        The default configuration where there is no file.

    Raises:
        ConfigError: the file cannot be read, or says something unknown.
    """
    if path is not None:
        table = _table(path)
        if table is None:
            raise ConfigError(f"{path} has no [tool.curve-doctor] table")
        return _config(table, path)
    here = Path.cwd()
    for folder in (here, *here.parents):
        for name in FILES:
            found = folder / name
            table = _table(found) if found.is_file() else None
            if table is not None:
                return _config(table, found)
    return Config()


def _table(path: Path) -> Mapping[str, Any] | None:
    """Our part of a file; None for a pyproject.toml without one."""
    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    tool = whole.get("tool")
    ours = tool.get("curve-doctor") if isinstance(tool, dict) else None
    if ours is None:
        return None if path.name == "pyproject.toml" else whole
    if not isinstance(ours, dict):
        raise ConfigError(f"{path}: tool.curve-doctor must be a table, got {ours!r}")
    return ours


def _config(table: Mapping[str, Any], path: Path) -> Config:
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{path}: " + _unknown("key", key, KEYS))
    try:
        fail_on = table.get("fail-on", "error")
        if fail_on not in FAIL_ON:
            raise ConfigError(f"fail-on must be one of {', '.join(FAIL_ON)}; got {fail_on!r}")
        select = _strings("select", table["select"]) if "select" in table else None
        config = Config(select, _strings("ignore", table.get("ignore", ())), fail_on, table.get("thresholds", {}))
        if not isinstance(config.thresholds, Mapping):
            raise ConfigError(f"thresholds must be a table of rules, got {config.thresholds!r}")
        rules_from(config.select, config.ignore, config.thresholds)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def _strings(key: str, value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(v, str) for v in found):
        raise ConfigError(f"{key} must be a list of codes or names, got {value!r}")
    return tuple(found)


def _matching(wanted: str | Iterable[str]) -> set[type[Rule]]:
    texts = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(texts, Iterable):
        raise ConfigError(f"expected codes or names of rules, got {wanted!r}")
    found: set[type[Rule]] = set()
    for text in (part.strip() for given in texts for part in str(given).split(",")):
        if not text:
            continue
        is_code = _CODE.fullmatch(text) is not None
        hits = {rule for rule in RULES if (rule.code.startswith(text.upper()) if is_code else rule.name == text.lower())}
        if not hits:
            raise ConfigError(_unknown_rule(text))
        found |= hits
    return found


def _thresholds(rule: type[Rule], given: Mapping[str, float]) -> dict[str, float]:
    """Checked names, and whole numbers where the threshold counts something; the rule itself checks the bounds."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"the thresholds of {rule.name} must be a table, got {given!r}")
    fields = {f.name: f for f in dataclasses.fields(rule)}
    values: dict[str, float] = {}
    for name, value in given.items():
        if name not in fields:
            raise ConfigError(_unknown(f"threshold of {rule.name}", str(name), list(fields)))
        is_count = fields[name].type in ("int", int)
        if is_count and isinstance(value, float):
            if not value.is_integer():
                raise ConfigError(f"{rule.name}.{name} must be a whole number, got {value!r}")
            value = int(value)
        values[name] = value
    return values


def _unknown_rule(text: str) -> str:
    """Names are compared with names; a code that does not exist is best answered by those that do."""
    if re.match(r"CD\d", text, re.IGNORECASE):
        return f"unknown rule {text!r}; known: {', '.join(rule.code for rule in RULES)}"
    return _unknown("rule", text, [rule.name for rule in RULES])


def _unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """What was given, and the nearest that exists, or else all that exist."""
    known = list(known)
    close = get_close_matches(given, known, 1)
    if close:
        return f"unknown {kind} {given!r}; did you mean {close[0]}?"
    return f"unknown {kind} {given!r}; known: {', '.join(known) or 'none'}"
