"""The command `diagnose`: parse, call, render. The only module that prints.

Nothing but the standard library is imported until a command needs it, so that `--help` comes at once.

Exit codes: 0 nothing at or above `--fail-on`, 1 findings, 2 could not run.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diagnose.errors import DiagnoseError
from diagnose.report.file import save, writable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from diagnose.model import Report, Run

EXIT_OK, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2
#: What a shell reports for a command that Ctrl-C, or a closed pipe, ended.
EXIT_INTERRUPTED, EXIT_PIPE = 130, 141

#: What could not be read is listed on stderr up to here.
_LISTED = 10

_DESCRIPTION = """\
Examine training curves: NaN, spikes, flat loss, memorization, and what to change.

  diagnose PATH...            one line a run
  diagnose PATH... --report   each run with its curve, findings and what to do
  diagnose compare PATH...    what changed from run to run, and which run is better
  diagnose plan --model NAME  what fits the GPU, before a training
  diagnose train --demo       fine-tune a model with the doctor inside
  diagnose rules              list the rules
  diagnose explain RULE       all about one rule, by code or name

A folder called `rules`, `explain`, `compare`, `plan` or `train` is written ./rules, and so on."""

_EPILOG = """\
exit codes: 0 nothing at or above --fail-on, 1 findings, 2 could not run
configuration: [tool.curve-doctor] in pyproject.toml, or curve-doctor.toml, found
upwards from the current directory; what is given here replaces what it says"""


class _Parser(argparse.ArgumentParser):
    """Leaves descriptions as they are, takes no half options, and tells an error in one line, as all others are told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise DiagnoseError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; the process's own if None.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        # a name that the terminal's encoding cannot show is escaped, not a crash
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except DiagnoseError as error:
        _complain(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        _leave_stdout()
        return EXIT_PIPE
    except OSError as error:
        _leave_stdout()
        _complain(f"{error.filename or 'output'}: {error.strerror or error}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a bug of ours must not look like exit code 1, findings
        _complain(f"internal error: {type(error).__name__}: {error} ({_place(error)}); this is a bug in Curve Doctor")
        return EXIT_FAILED
    return code


def _run(argv: list[str]) -> int:
    commands = {"rules": _rules, "explain": _explain, "compare": _compare, "plan": _plan, "train": _train}
    command = commands.get(argv[0]) if argv else None
    return _examine(argv) if command is None else command(argv[1:])


def _examine(argv: list[str]) -> int:
    args = _parser().parse_intermixed_args(argv)
    if not args.paths:
        raise DiagnoseError("no path given; try: diagnose logs/ --report, or diagnose --help")
    output = _output(args.output)

    from diagnose.config import load, rules_from
    from diagnose.examination import examine
    from diagnose.readers import read_tree

    config = load(None if args.config is None else Path(args.config))
    rules = rules_from(args.select or config.select, args.ignore or config.ignore, config.thresholds)
    reading = read_tree(args.paths)
    skipped = [(item.path, item.reason) for item in reading.skipped]
    if not reading.runs and len(skipped) == 1:
        raise DiagnoseError(": ".join(skipped[0]))
    _tell_skipped(skipped)
    if not reading.runs:
        raise DiagnoseError(f"no training curve found in {', '.join(args.paths)}")
    pairs = [(examine(run, rules), run) for run in reading.runs]
    _write(args.format, pairs, skipped, output, is_full=args.report)
    return _exit_code([report for report, _ in pairs], args.fail_on or config.fail_on)


def _compare(argv: list[str]) -> int:
    from diagnose import cli_compare

    args = cli_compare.parser(_Parser).parse_args(argv)
    output = _output(args.output)
    found, skipped = cli_compare.compare_paths(args.paths, args.config, _tell_skipped)
    if args.format == "json":
        _put(cli_compare.as_json(found, skipped), output)
    else:
        _print(cli_compare.as_view(found), output)
    return _exit_code([entry.report for entry in found.entries], "never")


def _plan(argv: list[str]) -> int:
    from diagnose.callbacks.qlora import plan_cli

    _print(plan_cli.main(argv, _Parser))
    return EXIT_OK


def _train(argv: list[str]) -> int:
    from diagnose.callbacks.qlora import train_cli

    return train_cli.main(argv, _Parser)


def _output(path: str | None) -> Path | None:
    """Where to write; None for stdout."""
    return None if path is None or path == "-" else writable(Path(path))


def _parser() -> _Parser:
    parser = _Parser(
        prog="diagnose",
        usage="diagnose PATH... [--report] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="a log, or a folder that is searched for logs")
    parser.add_argument("--report", action="store_true", help="tell each run in full, with its curve")
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="what to write (text)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it; the terminal if not given")
    parser.add_argument("--select", metavar="RULES", action="append", help="apply only these: CD401, CD4 or memorization")
    parser.add_argument("--ignore", metavar="RULES", action="append", help="do not apply these; wins over --select")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "info", "never"),
        help="the least severity of an open finding that gives exit code 1 (error)",
    )
    parser.add_argument("--config", metavar="FILE", help="read this configuration and look for no other")
    parser.add_argument("--version", action="version", version=_version(), help="print the version and end")
    return parser


def _rules(argv: list[str]) -> int:
    parser = _Parser(prog="diagnose rules", description="List the rules.")
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="what to print (text)")
    args = parser.parse_args(argv)

    from diagnose.explain import explain, rule_table
    from diagnose.rules import RULES

    if args.format == "markdown":
        print(rule_table(), end="")
    elif args.format == "json":
        from diagnose.report.json import dumps

        told = [explain(rule) for rule in RULES]
        rows = [{"code": t.code, "name": t.name, "severity": t.severity, "sentence": t.sentence} for t in told]
        print(dumps(rows), end="")
    else:
        from diagnose.report.rules import RuleList

        _print(RuleList(RULES))
    return EXIT_OK


def _explain(argv: list[str]) -> int:
    parser = _Parser(prog="diagnose explain", description="Tell all about a rule: thresholds and example curves.")
    parser.add_argument("rule", metavar="RULE", help="its code, such as CD401, or its name, such as memorization")
    args = parser.parse_args(argv)

    from diagnose.config import find_rule
    from diagnose.report.rules import RulePage

    _print(RulePage(find_rule(args.rule)))
    return EXIT_OK


def _write(
    kind: str,
    pairs: Sequence[tuple[Report, Run]],
    skipped: Sequence[tuple[str, str]],
    output: Path | None,
    *,
    is_full: bool,
) -> None:
    if kind == "text":
        from diagnose.report.console import file_console, stdout_console

        if output is None:
            _print_text(stdout_console(), pairs, is_full=is_full)
            return
        page = io.StringIO()
        _print_text(file_console(page), pairs, is_full=is_full)
        text = page.getvalue()
    elif kind == "json":
        from diagnose.report.json import document, dumps

        text = dumps(document([report for report, _ in pairs], skipped))
    else:
        from diagnose.report.markdown import markdown

        text = markdown(pairs, skipped)
    _put(text, output)


def _put(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
    else:
        save(output, text)


def _print_text(console: Console, pairs: Sequence[tuple[Report, Run]], *, is_full: bool) -> None:
    from diagnose.report.table import table, tally
    from diagnose.report.text import render_report

    reports = [report for report, _ in pairs]
    if is_full:
        for report, run in pairs:
            render_report(report, run, console=console)
            console.print()
        if len(pairs) > 1:
            console.print(tally(reports), style="dim", markup=False, highlight=False)
        return
    width = console.width if console.is_terminal else None
    for line in table(reports, is_ascii=console.options.ascii_only, width=width):
        console.print(line, soft_wrap=True)


def _print(renderable: RenderableType, output: Path | None = None) -> None:
    from diagnose.report.console import file_console, stdout_console

    if output is None:
        stdout_console().print(renderable)
        return
    page = io.StringIO()
    file_console(page).print(renderable)
    save(output, page.getvalue())


def _exit_code(reports: Sequence[Report], fail_on: str) -> int:
    from diagnose.model import Severity, Status

    if any(report.crashes for report in reports):
        return EXIT_FAILED
    if fail_on == "never":
        return EXIT_OK
    least = Severity(fail_on).rank
    found = any(f.status is Status.OPEN and f.severity.rank >= least for r in reports for f in r.findings)
    return EXIT_FINDINGS if found else EXIT_OK


def _tell_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    for path, reason in skipped[:_LISTED]:
        _complain(f"not read: {path}: {reason}")
    if len(skipped) > _LISTED:
        _complain(f"not read: {len(skipped) - _LISTED} more; --format json lists all")


def _complain(message: str) -> None:
    from diagnose.report.words import plain

    # stderr may be closed, and there is nobody left to tell then
    with suppress(OSError, ValueError):
        print(f"diagnose: {plain(message)}", file=sys.stderr)


def _leave_stdout() -> None:
    """Let the interpreter's own flush at exit not meet the pipe or disk that has just failed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place(error: BaseException) -> str:
    """Where an error arose: `cli.py:12`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown place" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _version() -> str:
    from diagnose import __version__

    return f"diagnose (curve-doctor) {__version__}"


if __name__ == "__main__":
    sys.exit(main())
