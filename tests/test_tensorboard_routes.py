"""The view's routes without a server: what they answer, and that nothing asked of them does harm."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from event_files import scalar, write_events
from tensorboard.plugins import base_plugin
from tensorboard_logs import write_recorded
from werkzeug.test import Client

from diagnose.model import Change, Prescription
from diagnose.tensorboard import plugin as plugin_module
from diagnose.tensorboard import views
from diagnose.tensorboard.loader import CurveDoctorLoader, FailedPlugin
from diagnose.tensorboard.plugin import CurveDoctorPlugin

STATIC = Path(plugin_module.__file__).parent / "static"
#: Names of folders that are no markup, no path and no trouble.
ODD = [
    'it\'s "quoted"',
    "<script>alert(1)<",
    "größe-模型-🙂",
    "a b & c?d=e#f%20;+",
    "back\\slash",
    "line\nbreak",
    "x" * 200,
]


def context(logdir: Path | str, **more: Any) -> Any:
    flags = types.SimpleNamespace(reload_interval=5.0)
    return base_plugin.TBContext(logdir=str(logdir), flags=flags, sampling_hints={}, **more)


class Asked:
    """The plugin behind a client, its routes as TensorBoard would find them."""

    def __init__(self, logdir: Path | str, **more: Any) -> None:
        self.plugin = CurveDoctorPlugin(context(logdir, **more))

    def __call__(self, route: str, method: str = "GET", **query: Any) -> Any:
        apps = self.plugin.get_plugin_apps()
        app = apps.get(f"/{route}") or apps["/static/*"]
        path = f"/data/plugin/curve_doctor/{route}"
        return Client(app).open(path, method=method, query_string=query)

    def json(self, route: str, **query: Any) -> Any:
        answer = self(route, **query)
        assert answer.status_code == 200, answer.data
        return json.loads(answer.data, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    write_recorded(tmp_path, ["memorization", "lora-lr1e-3", "nan-unfiltered", "masked-eval-labels"])
    made = Asked(tmp_path)
    made.plugin.catalog.settle()
    return made


def test_the_list_is_worst_first_with_verdict_story_and_best_step(asked: Asked) -> None:
    told = asked.json("runs")
    assert told["order"] == ["memorization", "nan-unfiltered", "masked-eval-labels", "lora-lr1e-3"]
    assert told["tally"] == "4 runs: 2 sick, 1 watch, 1 healthy"
    row = next(row for row in told["rows"] if row["key"] == "memorization")
    assert row["verdict"] == "SICK"
    assert row["headline"].startswith("memorization: eval/loss rose to 4.884 from its minimum 2.524 at step 24")
    assert row["best"] == {"step": 24, "value": "2.524"}
    assert row["finding"] == {"name": "memorization", "severity": "error", "at": 36}
    assert (row["stop_step"], row["last_step"], row["is_pending"]) == (72, 240, False)


def test_only_what_is_new_is_told_again(asked: Asked) -> None:
    version = asked.json("runs")["version"]
    again = asked.json("runs", since=version)
    assert again["rows"] == []
    assert len(again["order"]) == 4


def test_a_run_is_its_json_report_with_the_words_of_the_text_report(asked: Asked) -> None:
    told = asked.json("run", run="memorization")
    report = told["report"]
    assert (report["verdict"], report["stop"]["step"], report["best"]["step"]) == ("SICK", 72, 24)
    group = told["groups"][0]
    assert (group["letter"], group["code"], group["severity"]) == ("A", "CD401", "error")
    assert group["findings"][0]["where"] == "steps 36 to 240"
    assert group["findings"][0]["evidence"][0] == "eval/loss above its minimum: 0.8865 >= 0.1 share at step 240"
    assert told["stop"] == "CurveDoctor stops this run at step 72, for CD401 memorization"
    assert told["best"] == "step 24, eval/loss 2.524"
    assert told["cure"]["snippet"].splitlines() == [
        "num_train_epochs=8,  # 80 → 8, divided by 10",
        'output_dir="runs/run-ep8",',
    ]


def test_nan_is_null_among_the_points_and_told_as_a_gap(asked: Asked) -> None:
    told = asked.json("curve", run="nan-unfiltered")
    train, evals = told["panels"][0]["series"]
    assert train["y"][train["step"].index(82)] is None
    gaps = [[(gap["first_step"], gap["last_step"]) for gap in series["gaps"]] for series in (train, evals)]
    assert gaps == [[(82, 160)], [(80, 160)]]
    assert [panel["name"] for panel in told["panels"]] == ["train/loss", "train/grad_norm", "train/lr"]
    assert told["places"]["82"] == 82


def test_each_axis_places_points_and_marks(asked: Asked) -> None:
    assert asked.json("curve", run="memorization")["axes"] == ["step", "epoch", "time"]
    epoch = asked.json("curve", run="memorization", axis="epoch")
    assert epoch["places"]["36"] == pytest.approx(12)
    time = asked.json("curve", run="memorization", axis="time")
    assert time["places"]["36"] == pytest.approx((36 - 3) * 2.5)


def test_a_rule_explains_itself(asked: Asked) -> None:
    told = asked.json("explain", code="CD401")
    assert told["name"] == "memorization"
    assert "When it is wrong" in told["sections"]
    assert asked("explain", code="CD999").status_code == 404


@pytest.mark.parametrize("run", ["", "nope", "../memorization", "/etc/passwd", "memorization/", "\0", "<script>", "ME" * 5000])
def test_an_unknown_run_is_not_found(asked: Asked, run: str) -> None:
    for route in ("run", "curve"):
        answer = asked(route, run=run)
        assert answer.status_code == 404
        assert answer.content_type.startswith("application/json")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("run", {}),
        ("curve", {"run": "memorization", "axis": "wall"}),
        ("curve", {"run": "memorization", "from": "nan"}),
        ("curve", {"run": "memorization", "columns": "many"}),
        ("curve", {"run": "memorization", "smoothing": "inf"}),
        ("runs", {"since": "x"}),
    ],
)
def test_a_bad_question_is_refused_in_words(asked: Asked, route: str, query: dict[str, str]) -> None:
    answer = asked(route, **query)
    assert answer.status_code == 400
    assert json.loads(answer.data)["error"]


@pytest.mark.parametrize(
    "query", [{"columns": "1e9"}, {"columns": "-4"}, {"smoothing": "7"}, {"from": "9e99"}, {"from": "5", "to": "1"}]
)
def test_absurd_numbers_do_no_harm(asked: Asked, query: dict[str, str]) -> None:
    told = asked.json("curve", run="memorization", **query)
    assert all(series["n_drawn"] <= series["n"] for panel in told["panels"] for series in panel["series"])


def test_nothing_but_get(asked: Asked) -> None:
    for route in ("runs", "run", "curve", "explain"):
        assert asked(route, method="POST").status_code == 405
    assert asked("static/index.js", method="POST").status_code == 404


def test_odd_names_stay_themselves(tmp_path: Path) -> None:
    for name in ODD:
        write_events(tmp_path / name, [scalar("train/loss", s, 2.0, s) for s in range(10, 60, 10)])
    asked = Asked(tmp_path)
    asked.plugin.catalog.settle()
    told = asked.json("runs")
    assert sorted(told["order"]) == sorted(ODD)
    for key in told["order"]:
        assert asked.json("run", run=key)["key"] == key
        assert asked.json("curve", run=key)["panels"][0]["series"]
    names = {row["key"]: row["name"] for row in told["rows"]}
    assert names["line\nbreak"] == "line break"


def test_a_name_that_is_no_text_can_be_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / b"caf\xe9".decode("utf-8", "surrogateescape")
    try:
        write_events(folder, [scalar("train/loss", s, 2.0, s) for s in range(10, 60, 10)])
    except (OSError, UnicodeError):
        pytest.skip("the file system takes no such name")
    asked = Asked(tmp_path)
    asked.plugin.catalog.settle()
    [key] = asked.json("runs")["order"]
    key.encode()
    assert asked.json("run", run=key)["report"]["n_points"] == 5


@pytest.mark.parametrize(
    "path",
    [
        "../plugin.py",
        "..%2Fplugin.py",
        "vendor/../../plugin.py",
        "/etc/passwd",
        "//etc/passwd",
        "index.js/..",
        "vendor",
        "",
        "nope.js",
    ],
)
def test_nothing_but_the_files_of_the_page_is_served(asked: Asked, path: str) -> None:
    answer = asked(f"static/{path}")
    assert answer.status_code == 404
    assert answer.data == b"no such file"


def test_every_file_of_the_page_is_served_with_its_type(asked: Asked) -> None:
    for path in STATIC.rglob("*"):
        if not path.is_file():
            continue
        answer = asked(f"static/{quote(path.relative_to(STATIC).as_posix())}")
        assert answer.status_code == 200
        assert answer.data == path.read_bytes()
        kind = {".js": "text/javascript", ".css": "text/css"}.get(path.suffix, "text/plain")
        assert answer.content_type.startswith(kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_entry_is_a_route_of_the_plugin() -> None:
    plugin = CurveDoctorPlugin(context(""))
    metadata = plugin.frontend_metadata()
    assert metadata.es_module_path in plugin.get_plugin_apps()
    assert metadata.tab_name == "Curve Doctor"


def test_the_tab_is_active_where_there_is_a_log(tmp_path: Path) -> None:
    plugin = CurveDoctorPlugin(context(tmp_path))
    assert not CurveDoctorPlugin(context("")).is_active()
    assert not plugin.is_active()
    assert plugin.data_plugin_names() == ("scalars",)
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint-5" / "trainer_state.json").write_text("{}")
    assert plugin.is_active()


def test_the_vendored_library_is_as_published() -> None:
    told = (STATIC / "vendor" / "README.md").read_text()
    sums = dict(re.findall(r"^\| `([\w.]+)` \|.*`([0-9a-f]{64})` \|$", told, re.MULTILINE))
    there = {path.name for path in (STATIC / "vendor").iterdir()} - {"README.md"}
    assert set(sums) == there
    assert {name: hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() for name in there} == sums


def test_the_page_has_nothing_that_the_content_policy_forbids_and_asks_no_other_host() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix not in (".js", ".css"):
            continue
        source = path.read_text()
        assert not re.search(r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", source), path
        if path.parent == STATIC:
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", source), path


def test_an_error_of_ours_is_json_and_stays_ours(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(views, "runs_impl", broken)
    answer = asked("runs")
    assert answer.status_code == 500
    told = json.loads(answer.data)
    assert told["error"] == "RuntimeError: a bug"
    assert "Traceback" in told["traceback"]


def test_what_cannot_be_loaded_leaves_a_tab_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diagnose.tensorboard.plugin", None)
    loaded = CurveDoctorLoader().load(context(""))
    assert isinstance(loaded, FailedPlugin)
    app = loaded.get_plugin_apps()[loaded.frontend_metadata().es_module_path]
    answer = Client(app).get("/index.js")
    assert answer.content_type.startswith("text/javascript")
    assert b"export function render()" in answer.data
    assert b"ModuleNotFoundError" in answer.data


def test_what_tensorboard_imports_at_its_start_is_light_and_needs_nothing_of_ours() -> None:
    code = (
        "import sys, diagnose.tensorboard.loader as l\n"
        "made = l.CurveDoctorLoader()\n"
        "print(sorted(m for m in sys.modules if m.startswith('diagnose')))\n"
        "made.load(None).get_plugin_apps()\n"
        "print(sorted({'numpy', 'pandas', 'scipy', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "['diagnose', 'diagnose.tensorboard', 'diagnose.tensorboard.loader']"
    assert "pandas" not in second
    assert "scipy" not in second


def test_a_snippet_says_in_a_comment_what_cannot_be_computed() -> None:
    def told(*changes: Change) -> str:
        cure = Prescription(changes, "Do it.", "Because.", output_dir=None)
        return views.snippet(types.SimpleNamespace(prescription=cure))  # type: ignore[arg-type]

    assert told(Change("learning_rate", 2e-4, 6.7e-5, 1 / 3)) == "learning_rate=6.7e-5,  # 2e-4 → 6.7e-5, divided by 3"
    assert told(Change("learning_rate", None, None, 1 / 3)) == "# learning_rate: divided by 3"
    assert told(Change("bf16", False, True)) == "bf16=True,  # False → True"
    assert told(Change("optim", None, "adamw_torch")) == "optim='adamw_torch',  # set to adamw_torch"
    assert told() == ""
