"""What the view reads and examines, without a request: the runs and reports of `diagnose`, kept up to date cheaply."""

from __future__ import annotations

import math
import os
import random
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from event_files import scalar, tensor, text, write_events
from tensorboard_logs import RECORDED, events_of, recorded, write_recorded

from diagnose.config import rules_from
from diagnose.errors import ConfigError
from diagnose.examination import examine
from diagnose.model import Row
from diagnose.readers import events, read, read_tree
from diagnose.report.json import report_to_dict
from diagnose.rows import build_run
from diagnose.tensorboard.catalog import Catalog
from diagnose.tensorboard.examined import Examined
from diagnose.tensorboard.folder import FolderSource
from diagnose.tensorboard.parts import parts_of

RULES = rules_from()


def catalog_of(root: Path) -> Catalog:
    source = FolderSource(root)
    return Catalog(lambda: source, lambda: RULES)


def told_by(catalog: Catalog) -> dict[str, dict]:
    entries = catalog.settle().entries
    return {id: report_to_dict(entry.examined.report) for id, entry in entries.items()}


def told_by_diagnose(root: Path) -> dict[str, dict]:
    return {run.id: report_to_dict(examine(run, RULES)) for run in read_tree([root]).runs}


def append(path: Path, more) -> None:
    """Add events to a file as a writer does that goes on."""
    scratch = write_events(path.parent.parent / ".scratch", more)
    with path.open("ab") as file:
        file.write(scratch.read_bytes())
    shutil.rmtree(scratch.parent)


def loss(step: int, value: float = 2.0, tag: str = "train/loss"):
    return scalar(tag, step, value, step)


def zoo(root: Path) -> None:
    """Folders as trainers leave them: what belongs together lies side by side, above, below, or behind a link."""
    steps = range(10, 110, 10)
    write_recorded(root / "sweep", ["memorization", "lora-lr1e-3"])
    write_events(
        root / "keras" / "train", [tensor("epoch_loss", s, s, dtype=1, float_val=[2 - s / 200]) for s in steps], v2=True
    )
    write_events(root / "keras" / "validation", [tensor("epoch_loss", s, s, dtype=1, float_val=[2.1]) for s in steps], v2=True)
    write_events(
        root / "lightning" / "version_0", [loss(s, tag="train_loss_step") for s in steps] + [loss(99, 1.9, "val_loss")]
    )
    write_events(root / "curves", [loss(s, tag="lr") for s in steps])
    write_events(root / "curves" / "Loss_train", [loss(s, 2 - s / 200, "Loss") for s in steps])
    write_events(root / "curves" / "Loss_val", [loss(s, 2.2 - s / 200, "Loss") for s in steps])
    for k, folder in enumerate(("checkpoint-80", "checkpoint-160")):
        target = root / "trainer" / "out" / folder
        target.mkdir(parents=True)
        shutil.copy(RECORDED / ("lora-lr1e-3.json", "lora-lr1e-3.json")[k], target / "trainer_state.json")
    write_events(root / "trainer" / "out" / "runs" / "Dec01_host", events_of(recorded("lora-lr1e-3")))
    for k in range(3):
        write_events(root / "restarted", [loss(s, 2 + k) for s in steps], began=100 * k, number=k)
    (root / "table").mkdir()
    (root / "table" / "metrics.csv").write_text("step,train_loss\n" + "".join(f"{s},{3 - s / 100}\n" for s in steps))
    (root / "table" / "notes.txt").write_text("nothing\n")
    (root / ".hidden").mkdir()
    write_events(root / ".hidden", [loss(s) for s in steps])
    (root / "broken").mkdir()
    (root / "broken" / "events.out.tfevents.1700000000.host.1.0").write_bytes(b"no event file at all")


def test_the_runs_and_verdicts_are_those_of_diagnose_on_the_same_folder(tmp_path: Path) -> None:
    zoo(tmp_path)
    catalog = catalog_of(tmp_path)
    told = told_by(catalog)
    assert told == told_by_diagnose(tmp_path)
    assert list(told) == [run.id for run in read_tree([tmp_path]).runs]
    assert {"keras", "curves", "trainer/out", "sweep/memorization", "restarted#3", "table"} <= set(told)
    assert catalog.listing.skipped == read_tree([tmp_path]).skipped
    assert len(parts_of(tmp_path)) > 5


def test_verdicts_equal_diagnose_on_every_recorded_curve(tmp_path: Path) -> None:
    write_recorded(tmp_path)
    assert told_by(catalog_of(tmp_path)) == told_by_diagnose(tmp_path)


@pytest.mark.parametrize("name", ["train", "checkpoint-5", "plain"])
def test_the_folder_itself_may_be_called_anything(tmp_path: Path, name: str) -> None:
    write_recorded(tmp_path / name, ["memorization"])
    write_events(tmp_path / name, [loss(s) for s in range(10, 60, 10)])
    assert told_by(catalog_of(tmp_path / name)) == told_by_diagnose(tmp_path / name)


def test_linked_folders_are_followed_and_links_back_up_are_no_trap(tmp_path: Path) -> None:
    write_recorded(tmp_path / "else", ["memorization"])
    root = tmp_path / "logs"
    write_recorded(root, ["lora-lr1e-3"])
    (root / "linked").symlink_to(tmp_path / "else")
    catalog = catalog_of(root)
    assert told_by(catalog) == told_by_diagnose(root)
    assert "linked/memorization" in catalog.listing.entries
    append(next((tmp_path / "else").rglob("*tfevents*")), [loss(300)])
    assert told_by(catalog)["linked/memorization"]["last_step"] == 300
    (root / "up").symlink_to(root)
    assert told_by(catalog) == told_by_diagnose(root)


def test_only_what_has_grown_is_read_and_only_its_new_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["memorization", "lora-lr1e-3", "hidden-nan"]
    for name in names:
        write_events(tmp_path / name, events_of(recorded(name), until=100))
    asked: list[tuple[str, int]] = []
    plain = events.read_bytes

    def counted(path: Path, limit: int | None = None, skip: int = 0) -> bytes:
        asked.append((path.parent.name, skip))
        return plain(path, limit, skip)

    monkeypatch.setattr(events, "read_bytes", counted)
    catalog = catalog_of(tmp_path)
    catalog.settle()
    assert sorted(set(asked)) == sorted((name, 0) for name in names)
    versions = {id: entry.version for id, entry in catalog.listing.entries.items()}
    asked.clear()
    catalog.settle()
    assert asked == []
    assert {id: entry.version for id, entry in catalog.listing.entries.items()} == versions
    path = next((tmp_path / "memorization").iterdir())
    size = path.stat().st_size
    append(path, events_of(recorded("memorization"), after=100))
    told = told_by(catalog)
    assert asked == [("memorization", size)]
    assert told == told_by_diagnose(tmp_path)
    changed = {id for id, entry in catalog.listing.entries.items() if entry.version != versions[id]}
    assert changed == {"memorization"}


def test_a_file_that_is_being_written_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    path = write_events(tmp_path / "run", events_of(recorded("memorization")))
    whole = path.read_bytes()
    catalog = catalog_of(tmp_path)
    cuts = sorted(random.Random(1).sample(range(len(whole) // 3, len(whole)), 12))
    for cut in [*cuts, len(whole)]:
        path.write_bytes(whole[:cut])
        assert told_by(catalog) == told_by_diagnose(tmp_path), cut
    assert not catalog.listing.entries["run"].examined.run.notes


def test_a_file_that_was_begun_anew_or_is_gone_is_noticed(tmp_path: Path) -> None:
    write_recorded(tmp_path, ["memorization", "lora-lr1e-3"])
    catalog = catalog_of(tmp_path)
    catalog.settle()
    path = next((tmp_path / "memorization").iterdir())
    path.unlink()
    write_events(tmp_path / "memorization", [loss(s) for s in (10, 20, 30, 40)])
    shutil.rmtree(tmp_path / "lora-lr1e-3")
    assert told_by(catalog) == told_by_diagnose(tmp_path)
    assert list(catalog.listing.entries) == ["memorization"]


def test_a_folder_that_is_not_there_yet_is_empty_and_then_is_not(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path / "later")
    assert catalog.settle().entries == {}
    write_recorded(tmp_path / "later", ["memorization"])
    assert list(catalog.settle().entries) == ["memorization"]


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.json")))
def test_an_examination_that_goes_on_gives_the_report_of_the_whole(name: str) -> None:
    run = recorded(name)
    steps = sorted({int(step) for series in run.series.values() for step in series.step})
    cuts = sorted(random.Random(name).sample(steps, 12))
    examined = Examined(run.until(cuts[0]), RULES)
    for cut in [*cuts, run.last_step]:
        now = run.until(cut)
        examined.update(now)
        while examined.is_pending:
            examined.advance(7)
        assert report_to_dict(examined.report) == report_to_dict(examine(now, RULES)), cut


def test_metrics_of_the_last_step_may_come_one_by_one() -> None:
    rows = [Row(step, {"train/loss": 2.0, "train/grad_norm": 1.0}) for step in range(1, 40)]
    parts = [Row(40, {"train/loss": math.nan}), Row(40, {"train/grad_norm": math.nan}), Row(40, {"eval/loss": 2.0})]
    examined = None
    for k in range(1, len(parts) + 1):
        run = build_run([*rows, *parts[:k]], id="run", source="run")
        examined = examined or Examined(run, RULES)
        examined.update(run)
        while examined.is_pending:
            examined.advance(100)
        assert report_to_dict(examined.report) == report_to_dict(examine(run, RULES))


def test_a_history_that_changes_is_examined_anew() -> None:
    run = recorded("memorization")
    examined = Examined(run, RULES)
    while examined.is_pending:
        examined.advance(100)
    resumed = build_run([Row(r.step, {n: v * 2 for n, v in r.values.items()}, r.epoch) for r in run.rows()], id="a", source="b")
    assert examined.update(resumed)
    while examined.is_pending:
        examined.advance(100)
    assert report_to_dict(examined.report) == report_to_dict(examine(resumed, RULES))
    assert not examined.update(resumed)
    assert not examined.update(replace(resumed))


def test_the_thread_examines_what_is_looked_at_first_and_ends_by_itself(tmp_path: Path) -> None:
    write_recorded(tmp_path)
    catalog = catalog_of(tmp_path)
    last = sorted(path.name for path in tmp_path.iterdir())[-1]
    order: list[str] = []
    advance = catalog._advance
    catalog._advance = lambda entry: (order.append(entry.examined.run.id), advance(entry))[1]  # type: ignore[method-assign]
    end = time.monotonic() + 60
    while not (listing := catalog.ask([last])).is_read or any(e.examined.is_pending for e in listing.entries.values()):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert order[0] == last
    assert set(order) == set(catalog.listing.entries)
    assert [t.name for t in threading.enumerate()].count("curve-doctor") == 1
    catalog._asked = -math.inf
    with catalog._lock:
        catalog._wake.notify()
    assert catalog._thread is None or not catalog._thread.join(10)


def test_a_bug_of_ours_is_told_and_the_other_runs_are_shown(tmp_path: Path) -> None:
    write_recorded(tmp_path, ["memorization", "lora-lr1e-3"])
    catalog = catalog_of(tmp_path)
    catalog._guarded(catalog._scan)

    def broken(n: int) -> None:
        raise RuntimeError("a bug")

    first = next(iter(catalog.listing.entries.values()))
    first.examined._advance = broken  # type: ignore[method-assign]
    while (entry := catalog._next_pending()) is not None:
        catalog._guarded(lambda entry=entry: catalog._advance(entry))
    assert "RuntimeError: a bug" in catalog.listing.failure
    reports = [entry.examined.report for entry in catalog.listing.entries.values()]
    assert [report is None for report in reports] == [True, False]
    catalog._guarded(catalog._scan)
    assert catalog.listing.failure == ""


def test_a_wrong_configuration_is_told_and_the_default_rules_are_applied(tmp_path: Path) -> None:
    write_recorded(tmp_path, ["memorization"])

    def wrong():
        raise ConfigError("unknown rule 'x'")

    source = FolderSource(tmp_path)
    listing = Catalog(lambda: source, wrong).settle()
    assert listing.complaint == "unknown rule 'x'; the default rules are applied"
    assert listing.entries["memorization"].examined.report.verdict.value == "SICK"


def test_clocks_are_those_of_the_steps_that_were_kept(tmp_path: Path) -> None:
    write_events(tmp_path / "a", [scalar("train/loss", s, 1.0, 10 * s) for s in (1, 2, 3, 4)])
    # resumed from step 2, an hour later
    write_events(tmp_path / "a", [scalar("train/loss", s, 1.0, 3600 + s) for s in (3, 4, 5)], began=3600, process=7)
    run = read(tmp_path / "a")[0]
    assert run.clock is not None
    assert run.clock.step.tolist() == [1, 2, 3, 4, 5]
    assert (run.clock.value - run.clock.value[0]).tolist() == [0, 10, 3593, 3594, 3595]
    assert run.until(3).clock.step.tolist() == [1, 2, 3]
    assert run.after(3).clock.step.tolist() == [4, 5]


def test_an_unreadable_folder_is_told_not_tripped_over(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    write_recorded(tmp_path, ["memorization"])
    (tmp_path / "secret").mkdir(mode=0)
    assert told_by(catalog_of(tmp_path)) == told_by_diagnose(tmp_path)


def test_arguments_among_the_events_are_settings(tmp_path: Path) -> None:
    write_events(tmp_path, [text("args", '{"learning_rate": 3e-4}'), *(loss(s) for s in range(10, 60, 10))])
    catalog = catalog_of(tmp_path)
    catalog.settle()
    assert catalog.listing.entries[tmp_path.name].examined.run.settings["learning_rate"] == 3e-4
