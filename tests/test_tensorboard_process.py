"""A real TensorBoard with our plugin in it: it starts, it answers, and nothing of ours can break it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard_logs import write_recorded
from tensorboard_server import tensorboard

NAMES = ["memorization", "lora-lr1e-3", "hidden-nan"]


def diagnosed(*paths: Path, cwd: Path) -> dict[str, dict]:
    """What the command says of the same folders."""
    command = [sys.executable, "-m", "diagnose", *map(str, paths), "--format", "json"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {run["id"]: run for run in json.loads(done.stdout)["runs"]}


@pytest.mark.parametrize("fast", ["true", "false"])
def test_with_the_fast_loader_and_without_verdicts_are_those_of_the_command(fast: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_recorded(logs, NAMES)
    with tensorboard("--logdir", logs, "--load_fast", fast, cwd=tmp_path) as server:
        listing = json.loads(server.raw("/data/plugins_listing")[1])
        assert listing["curve_doctor"]["tab_name"] == "Curve Doctor"
        assert listing["curve_doctor"]["enabled"]
        told = server.settled()
        assert (told["failure"], told["complaint"]) == ("", "")
        reports = {key: server.json("run", run=key)["report"] for key in told["order"]}
        assert reports == diagnosed(logs, cwd=tmp_path)
        # what TensorBoard's own router makes of paths that lead out of the page's folder
        for path in (
            "static/..%2Fplugin.py",
            "static/%2e%2e/plugin.py",
            "static/vendor/..%2f..%2fplugin.py",
            "static/%2Fetc%2Fpasswd",
        ):
            assert server.get(f"static/{path}")[0] == 404, path
        assert server.raw("/data/plugin/curve_doctor/static/../plugin.py")[0] == 404
        status, body = server.raw("/data/plugin_entry.html?name=curve_doctor")
        assert (status, b"./static/index.js" in body or b"/static/index.js" in body) == (200, True)


def test_several_folders_are_read_through_tensorboard(tmp_path: Path) -> None:
    write_recorded(tmp_path / "a", ["memorization"])
    write_recorded(tmp_path / "b", ["lora-lr1e-3"])
    spec = f"first:{tmp_path / 'a'},second:{tmp_path / 'b'}"
    with tensorboard("--logdir_spec", spec, cwd=tmp_path) as server:
        told = server.settled()
        while not told["order"]:  # TensorBoard loads in a thread of its own
            told = server.settled()
        assert {row["key"]: row["verdict"] for row in told["rows"]} == {
            "first/memorization": "SICK",
            "second/lora-lr1e-3": "HEALTHY",
        }


def test_an_empty_folder_and_a_configuration_of_ours_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "curve-doctor.toml").write_text('select = ["CD999"]\n')
    with tensorboard("--logdir", tmp_path / "nothing", cwd=tmp_path) as server:
        told = server.settled()
        assert told["order"] == []
        assert not json.loads(server.raw("/data/plugins_listing")[1])["curve_doctor"]["enabled"]
        assert "unknown rule 'CD999'" in told["complaint"]


def test_tensorboard_starts_where_our_code_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['diagnose.tensorboard.plugin'] = None\n")
    with tensorboard("--logdir", tmp_path, cwd=tmp_path, PYTHONPATH=str(tmp_path)) as server:
        listing = json.loads(server.raw("/data/plugins_listing")[1])
        assert listing["curve_doctor"]["enabled"]
        assert listing["scalars"]
        status, body = server.get("index.js")
        assert status == 200
        assert b"Curve Doctor could not be loaded" in body
