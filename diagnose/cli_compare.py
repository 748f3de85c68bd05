"""The command `diagnose compare`: its options, and paths to a comparison. Prints nothing; `cli.py` does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import DiagnoseError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from diagnose.compare import Comparison

_DESCRIPTION = """\
Compare training runs: which settings changed, how the losses differ beyond
their noise, which run is better and at which checkpoint. All runs found below
the paths are compared. Runs that differ in the learning rate alone are drawn as
a sweep, with the rate to try next."""

_EPILOG = """\
exit codes: 0 compared, 2 could not run, as with fewer than two readable runs"""

Skipped = list[tuple[str, str]]


def parser(make: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The options of the command.

    Args:
        make: the class of parser.
    """
    made = make(
        prog="diagnose compare",
        usage="diagnose compare PATH PATH... [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    made.add_argument("paths", metavar="PATH", nargs="+", help="a log, a run's folder, or a folder of runs")
    made.add_argument("--format", choices=("text", "json"), default="text", help="what to write (text)")
    made.add_argument("-o", "--output", metavar="FILE", help="where to write it; the terminal if not given")
    made.add_argument("--config", metavar="FILE", help="read this configuration and look for no other")
    return made


def compare_paths(paths: Sequence[str], config: str | None, tell: Callable[[Skipped], None]) -> tuple[Comparison, Skipped]:
    """Read and compare every run below the paths.

    Args:
        paths: as given.
        config: a configuration file; None to look for one.
        tell: is given what could not be read, before anything else can fail.

    Raises:
        DiagnoseError: there are fewer than two runs.
    """
    from diagnose.compare import compare
    from diagnose.config import load, rules_from
    from diagnose.readers import read_tree

    found = load(None if config is None else Path(config))
    rules = rules_from(found.select, found.ignore, found.thresholds)
    reading = read_tree(paths)
    skipped = [(item.path, item.reason) for item in reading.skipped]
    tell(skipped)
    if len(reading.runs) < 2:  # noqa: PLR2004 - there is nothing to compare one run with
        one = f"one, {reading.runs[0].source}" if reading.runs else "none"
        raise DiagnoseError(f"a comparison needs two runs, but {', '.join(paths)} holds {one}")
    return compare(reading.runs, rules), skipped


def as_json(found: Comparison, skipped: Skipped) -> str:
    """A comparison as a JSON document."""
    from diagnose.report.compare_json import comparison_to_dict
    from diagnose.report.json import dumps

    return dumps(comparison_to_dict(found, skipped))


def as_view(found: Comparison) -> RenderableType:
    """A comparison as something that a rich Console prints."""
    from diagnose.report.compare import ComparisonView

    return ComparisonView(found)
