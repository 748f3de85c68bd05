import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnose import cli
from diagnose.model import Report
from diagnose.rules import RULES

ROOT = Path(__file__).parent.parent
LOSSES = {
    "healthy": [0.5 + 2 * math.exp(-i / 20) for i in range(80)],
    "nan": [2.0, 1.9, 1.8] + [math.nan] * 20,
}


def write_log(folder: Path, losses: Sequence[float]) -> Path:
    """A trainer_state.json as the Trainer writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"loss": loss, "step": 10 * (i + 1), "epoch": (i + 1) / 40} for i, loss in enumerate(losses)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows, "global_step": 10 * len(losses)}))
    return folder


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a healthy run and one that ends in NaN, seen from a folder without any configuration."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, losses in LOSSES.items():
        write_log(tmp_path / "logs" / name, losses)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "logs"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def command(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, its output going into a pipe."""
    given = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING")}
    given |= {"PYTHONPATH": str(ROOT), "COVERAGE_PROCESS_START": ""} | env
    return subprocess.run([sys.executable, "-m", "diagnose", *argv], capture_output=True, text=True, env=given, check=False)


def test_a_line_for_each_run(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "logs", "--select", "CD101")
    assert (code, err) == (1, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[1] == ["healthy", "HEALTHY", "800", "-", "-", "-", "-"]
    assert lines[2] == ["nan", "SICK", "230", "nan-loss", "40", "-", "50"]
    assert lines[-1] == ["2", "runs:", "1", "sick,", "1", "healthy"]


def test_report_in_full(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "logs", "--report", "--select", "CD101")
    assert code == 1
    for said in ("SICK", "HEALTHY", "Findings", "CD101 nan-loss", "What to do", "learning_rate", "x not a finite number"):
        assert said in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("argv", ["logs --format json", "--format json logs", "logs/nan --format=json --report logs/healthy"])
def test_json(logs: Path, capsys: pytest.CaptureFixture[str], argv: str) -> None:
    _, out, _ = run(capsys, *argv.split())
    told = json.loads(out)
    assert {r["id"].split("/")[-1]: r["verdict"] for r in told["runs"]}["nan"] == "SICK"
    assert list(told) == ["schema", "runs", "skipped"]


def test_markdown(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "logs", "--format", "markdown", "--select", "CD101")
    assert out.startswith("| run | verdict |")
    assert "## SICK: nan" in out


def test_exit_codes(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    select = ["--select", "CD101"]
    assert run(capsys, "logs/healthy", *select)[0] == 0
    assert run(capsys, "logs", *select)[0] == 1
    assert run(capsys, "logs", *select, "--fail-on", "never")[0] == 0
    # a warning: one NaN alone
    write_log(logs / "one", [2.0, 1.9, math.nan])
    assert run(capsys, "logs/one", *select)[0] == 0
    assert run(capsys, "logs/one", *select, "--fail-on", "warning")[0] == 1
    # resolved: it is finite again
    write_log(logs / "one", [2.0, 1.9, math.nan, 1.8, 1.7, 1.6])
    assert run(capsys, "logs/one", *select, "--fail-on", "info")[0] == 0


def test_a_crash_of_a_rule_is_told_and_fails(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(type(RULES[0]().start()), "see", crash)
    code, out, _ = run(capsys, "logs/healthy", "--report", "--fail-on", "never")
    assert code == 2
    assert "ZeroDivisionError" in out
    assert "Traceback" not in out


def test_what_was_not_read_is_said_and_the_rest_decides(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "logs/healthy", "no/such/log", "--select", "CD101", "--format", "json")
    assert code == 0
    assert err.startswith("diagnose: not read: no/such/log: ")
    assert [s["path"] for s in json.loads(out)["skipped"]] == ["no/such/log"]


BAD = {
    "no path": [],
    "no such path": ["nothing"],
    "empty folder": ["empty"],
    "not a log": ["garbage.json"],
    "binary": ["binary.json"],
    "several bad": ["nothing", "empty"],
    "unknown option": ["logs", "--colour"],
    "unknown format": ["logs", "--format", "xml"],
    "unknown severity": ["logs", "--fail-on", "fatal"],
    "unknown rule": ["logs", "--select", "CD999"],
    "nothing selected": ["logs", "--select", "CD101", "--ignore", "CD1"],
    "missing configuration": ["logs", "--config", "nothing.toml"],
    "broken configuration": ["logs", "--config", "garbage.json"],
    "configuration is a folder": ["logs", "--config", "empty"],
    "output into no folder": ["logs", "-o", "no/such/folder.json"],
    "output over a folder": ["logs", "-o", "empty"],
    "nul in the path": ["a\0b"],
    "explain nothing": ["explain"],
    "explain unknown": ["explain", "CD999"],
    "explain too much": ["explain", "CD101", "CD102"],
    "rules with a path": ["rules", "logs"],
    "control characters": ["no\x1b[31m\nsuch"],
}


@pytest.mark.parametrize("argv", BAD.values(), ids=BAD)
def test_bad_input_is_told_in_a_line_and_exits_2(logs: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    Path("empty").mkdir()
    Path("garbage.json").write_text("[")
    Path("binary.json").write_bytes(bytes(range(256)) * 10)
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert all(line.startswith("diagnose: ") for line in err.splitlines())
    assert len(err.splitlines()) == (3 if argv == BAD["several bad"] else 1)
    assert all(c == "\n" or c.isprintable() for c in err)
    assert "internal error" not in err


def test_output_is_written_whole_and_nothing_else(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = logs.parent / "out" / "report.json"
    target.parent.mkdir()
    target.write_text("old")
    assert run(capsys, "logs", "--format", "json", "-o", str(target))[1:] == ("", "")
    assert len(json.loads(target.read_text())["runs"]) == 2
    assert list(target.parent.iterdir()) == [target]
    run(capsys, "logs", "--report", "-o", str(target))
    assert "Findings" in target.read_text(encoding="utf-8")


def test_output_that_fails_leaves_the_old_file(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = logs.parent / "report.txt"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    code, _, err = run(capsys, "logs", "-o", str(target))
    assert (code, err) == (2, f"diagnose: cannot write {target}: No space left on device\n")
    assert target.read_text() == "old"
    assert sorted(p.name for p in logs.parent.iterdir()) == ["logs", "report.txt"]


def test_output_follows_links_and_writes_to_devices(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logs.parent / "link").symlink_to("real")
    assert run(capsys, "logs", "-o", "link", "--fail-on", "never")[0] == 0
    assert (logs.parent / "link").is_symlink()
    assert (logs.parent / "real").is_file()
    assert run(capsys, "logs", "-o", os.devnull, "--fail-on", "never")[0] == 0
    assert not Path(os.devnull).is_file()
    assert run(capsys, "logs", "-o", "-", "--fail-on", "never")[1].startswith("run ")


def test_configuration_is_found_and_flags_replace_it(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.curve-doctor]\nignore = ["CD1"]\nfail-on = "never"\nselect = ["CD1", "CD401"]')
    assert run(capsys, "logs")[0] == 0
    assert "nan-loss" not in run(capsys, "logs")[1]
    code, out, _ = run(capsys, "logs", "--ignore", "CD401", "--fail-on", "error")
    assert code == 1
    assert "nan-loss" in out


def test_a_threshold_of_the_configuration_counts(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("curve-doctor.toml").write_text('select = ["nan-loss"]\n[thresholds.nan-loss]\nconfirm = 90')
    code, out, _ = run(capsys, "logs/nan")
    assert code == 0
    assert "WATCH" in out


@pytest.mark.parametrize("name", ["rules", "explain"])
def test_a_folder_named_like_a_command(logs: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write_log(Path(name), LOSSES["healthy"])
    _, out, _ = run(capsys, f"./{name}", "--select", "CD101")
    assert "HEALTHY" in out


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "rules")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("CD")] == [[r.code, r.name] for r in RULES]
    told = json.loads(run(capsys, "rules", "--format", "json")[1])
    assert [row["code"] for row in told] == [r.code for r in RULES]
    assert run(capsys, "rules", "--format", "markdown")[1].count("\n") == len(RULES) + 2


@pytest.mark.parametrize("argv", [["--help"], ["rules", "--help"], ["explain", "--help"]])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: diagnose")
    # every option and argument says what it is for
    lines = out.splitlines()
    entries = [i for i, line in enumerate(lines) if re.match(r"  (-|[A-Z]+\b)", line)]
    assert entries
    assert all(re.search(r"\S  +\S", lines[i]) or lines[i + 1].startswith(" " * 10) for i in entries)


def test_the_options_are_these() -> None:
    options = {name for action in cli._parser()._actions for name in action.option_strings}
    long = "--help --report --format --output --select --ignore --fail-on --config --version"
    assert options == {"-h", "-o", *long.split()}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from diagnose import __version__

    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"diagnose (curve-doctor) {__version__}\n"


def test_ctrl_c_ends_quietly(logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("diagnose.examination.examine", interrupted)
    assert run(capsys, "logs") == (130, "", "")


def test_a_bug_of_ours_is_not_taken_for_findings(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Report:
        raise KeyError("oops")

    monkeypatch.setattr("diagnose.examination.examine", broken)
    code, out, err = run(capsys, "logs")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"diagnose: internal error: KeyError: 'oops' \(test_cli\.py:\d+\); this is a bug in .*\n", err)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from diagnose.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'pandas', 'scipy', 'rich', 'tensorboard', 'torch'}))\n"
        "print(len(sys.modules))"
    )
    bare = "import sys, argparse, pathlib, shutil; print(len(sys.modules))"
    out, n_bare = (
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, check=True).stdout.splitlines()
        for text in (script, bare)
    )
    assert out[-2] == "[]"
    # argparse and pathlib, and a dozen small modules of the standard library and our own
    assert int(out[-1]) <= int(n_bare[0]) + 25


def test_in_a_pipe_there_is_no_colour_and_two_runs_are_the_same(logs: Path) -> None:
    first = command("logs", "--report")
    assert first.returncode == 1
    assert all(c == "\n" or c.isprintable() for c in first.stdout)
    assert max(map(len, first.stdout.splitlines())) <= 80
    assert first.stdout == command("logs", "--report", TERM="xterm-256color", LINES="10").stdout


def test_the_environment_decides_on_colour_and_width(logs: Path) -> None:
    wide = command("logs/nan", "--report", "--select", "CD101", COLUMNS="96")
    assert max(map(len, wide.stdout.splitlines())) == 96
    assert "\x1b[" not in wide.stdout
    coloured = command("logs/nan", "--report", "--select", "CD101", FORCE_COLOR="1", TERM="xterm")
    assert (coloured.returncode, coloured.stderr) == (1, "")
    assert "\x1b[1;31mSICK" in coloured.stdout
    plain = command("logs/nan", "--report", "--select", "CD101", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm")
    assert not re.search(r"\x1b\[[\d;]*3\d", plain.stdout)


def test_an_ascii_terminal(logs: Path) -> None:
    (logs / "nan").rename(logs / "año")
    done = command("logs", "--report", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.isascii()
    assert "SICK -- a\\xf1o --" in done.stdout
    assert command("logs", "--format", "markdown", PYTHONIOENCODING="ascii").returncode == 1


def test_a_closed_pipe_ends_quietly(logs: Path) -> None:
    for i in range(40):
        write_log(logs / f"more{i}", LOSSES["nan"])
    given = {"PYTHONPATH": str(ROOT), **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}}
    with subprocess.Popen(
        [sys.executable, "-m", "diagnose", "logs", "--report"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_told(logs: Path) -> None:
    given = {"PYTHONPATH": str(ROOT), **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "diagnose", "logs"], stdout=full, stderr=subprocess.PIPE, text=True, env=given, check=False
        )
    assert (done.returncode, done.stderr) == (2, "diagnose: output: No space left on device\n")


def test_a_file_gets_no_colour(logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(capsys, "logs", "--report", "-o", "report.txt")
    assert "\x1b" not in Path("report.txt").read_text(encoding="utf-8")


def test_a_terminal_gets_a_table_that_fits(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write_log(logs / ("deep/" * 20) / "down", LOSSES["healthy"])
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.main(["logs", "--fail-on", "never"]) == 0
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in screen.getvalue().splitlines()]
    assert any("…" in line and "deep/down" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_report_knows_no_path_of_this_machine(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "logs", "--format", "json")
    assert str(logs.parent) not in out


def test_reports_are_made_of_the_models_fields() -> None:
    # a field that is added to Report must be told in the JSON, or be left out on purpose here
    told = {"id", "source", "verdict", "headline", "kind", "last_step", "n_points", "findings", "skips", "crashes", "notes"}
    told |= {"best", "stop", "prescription", "learning_rate", "settings", "schema"}
    assert {field.name for field in dataclasses.fields(Report)} == told
