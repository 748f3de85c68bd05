"""Whatever lies in a folder: a reason, never a traceback, never a hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from event_files import scalar, write_events
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diagnose.errors import NotALog, ReadError
from diagnose.readers import Skipped, read, read_tree

GOOD = '{"log_history": [{"loss": 2.0, "step": 10}, {"loss": 1.0, "step": 20}]}'
NAMES = (
    "trainer_state.json", "trainer_log.jsonl", "metrics.csv", "metrics.json", "log.txt", "events.out.tfevents.1700000000.h.1.0",
    "some.json", "some.csv", "training.log",
)  # fmt: skip


def reasons(path: Path) -> dict[str, str]:
    reading = read_tree([path])
    assert reading.runs == ()
    return {Path(s.path).name: s.reason for s in reading.skipped}


def test_a_missing_path(tmp_path):
    path = tmp_path / "nowhere" / "at all"
    assert read_tree([path]).skipped == (Skipped(path.as_posix(), "no such file or folder"),)
    with pytest.raises(ReadError, match="nowhere/at all: no such file or folder") as caught:
        read(path)
    assert not isinstance(caught.value, NotALog)
    assert reasons(Path("a\0b")) == {"a\0b": "cannot be read: embedded null byte"}


def test_an_empty_folder(tmp_path):
    assert reasons(tmp_path) == {tmp_path.name: "no training log in this folder or below it"}
    with pytest.raises(NotALog, match="no training log"):
        read(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    assert reasons(tmp_path) == {name: "the file is empty"}


@pytest.mark.parametrize("name", NAMES)
def test_a_git_lfs_pointer(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab12" * 16 + "\nsize 46082\n"
    (tmp_path / name).write_text(pointer)
    assert "git lfs pull" in reasons(tmp_path)[name]
    assert "git lfs pull" in reasons(tmp_path / name)[name]


def test_a_cut_git_lfs_pointer(tmp_path):
    (tmp_path / "trainer_state.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\n")
    assert "git lfs pull" in reasons(tmp_path)["trainer_state.json"]


def test_pointers_that_every_model_folder_has_are_not_worth_a_word(tmp_path):
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab12" * 16 + "\nsize 46082\n")
    (tmp_path / "trainer_state.json").write_text(GOOD)
    assert read_tree([tmp_path]).skipped == ()


@pytest.mark.parametrize("name", ["trainer_state.json", "metrics.csv", "trainer_log.jsonl"])
def test_no_permission(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_text(GOOD)
    real = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)  # type: ignore[call-overload]  # handed through

    monkeypatch.setattr(Path, "open", refuse)
    assert reasons(tmp_path) == {name: "no permission to read it"}
    assert reasons(path) == {name: "no permission to read it"}


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    (tmp_path / "ok").mkdir()
    (tmp_path / "ok" / "trainer_state.json").write_text(GOOD)
    (tmp_path / "locked").mkdir()
    real = os.listdir

    def refuse(path: Path) -> list[str]:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)
    reading = read_tree([tmp_path])
    assert [run.id for run in reading.runs] == ["ok"]
    assert [s.reason for s in reading.skipped] == ["no permission to read it"]


@pytest.mark.parametrize("name", NAMES)
def test_binary_junk(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(bytes(range(256)) * 40)
    assert reasons(path)[name]
    reading = read_tree([tmp_path])
    assert reading.runs == ()
    assert reading.skipped


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["trainer_state.json", "events.out.tfevents.1700000000.h.1.0"])
def test_a_named_pipe_does_not_hang(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert reasons(tmp_path / name) == {name: "not a regular file but a pipe, socket or device"}
    assert reasons(tmp_path) == {tmp_path.name: "no training log in this folder or below it"}


def test_a_folder_with_the_name_of_a_log(tmp_path):
    (tmp_path / "trainer_state.json").mkdir()
    assert reasons(tmp_path) == {tmp_path.name: "no training log in this folder or below it"}
    assert reasons(tmp_path / "trainer_state.json") == {"trainer_state.json": "no training log in this folder or below it"}


def test_links_in_a_circle_and_links_to_nowhere(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "trainer_state.json").write_text(GOOD)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "metrics.csv").symlink_to(tmp_path / "gone.csv")
    reading = read_tree([tmp_path])
    assert [run.id for run in reading.runs] == ["a"]
    assert [(Path(s.path).name, s.reason) for s in reading.skipped] == [("metrics.csv", "no such file or folder")]
    assert "no training" not in reasons(tmp_path / "self")["self"]


def test_other_files_are_passed_over_in_silence(tmp_path):
    files = {
        "config.json": '{"vocab_size": 10}',
        "train.jsonl": '{"text": "a", "label": 1}\n' * 3, "data.csv": "name,size\na,1\nb,2\n",
        "all_results.json": '{\n  "epoch": 3.0,\n  "train_loss": 1.0\n}', "train.py": "loss = 1, 2\nloss, step\n1,2\n",
        "README.md": "loss, step\n1,2\n", "notes.txt": "The loss was 3, then 2.\nstep 1, loss 2\n", "model.safetensors": "x",
        "stdout.log": "loading, loss function\nstep 1, loss 2.0\n",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "trainer_state.json").write_text(GOOD)
    (tmp_path / "trainer_state.json").write_text(GOOD)
    reading = read_tree([tmp_path])
    assert [run.source for run in reading.runs] == [(tmp_path / "trainer_state.json").as_posix()]
    assert reading.skipped == ()


def test_one_bad_file_takes_nothing_from_the_others(tmp_path):
    for name, content in (("a", GOOD), ("b", "{"), ("c", GOOD), ("d", "[" * 100_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(content)
    reading = read_tree([tmp_path, tmp_path / "none"])
    assert [run.id for run in reading.runs] == ["a", "c"]
    assert [Path(s.path).parts[-2:] for s in reading.skipped][:2] == [("b", "trainer_state.json"), ("d", "trainer_state.json")]
    assert reading.skipped[2].reason == "no such file or folder"


def test_read_says_how_many_failed(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.json").touch()
    with pytest.raises(NotALog, match=r"a.json: the file is empty \(and 1 more that cannot be read\)"):
        read(tmp_path)


def test_a_single_point_is_a_run(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"loss": 2.0, "step": 10}]}')
    write_events(tmp_path / "tb", [scalar("loss", 1, 2.0)])
    assert [run.last_step for run in read_tree([tmp_path]).runs] == [10, 1]


# What real files begin with, so that the noise gets past the first look.
STARTS = (
    b"", b"{", b'{"log_history": [', b'{"log_history": [{"loss": 1.0, "step": 1}, ', b'{"step": 1, "loss": 2.0}\n{"step": ',
    b"step,loss\n1,2.0\n", b"epoch,loss\r\r\n", b"\xff\xfe{", b"[{",
    b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"\t\0\0\0\0\0\0\0\0\x1a\rbrain.Event:2\xec\xb7",
)  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), start=st.sampled_from(STARTS), noise=st.binary(max_size=200))
@example(
    name="trainer_state.json",
    start=STARTS[2],
    noise=b'{"step": NaN, "loss": 1}, {"step": 1e400, "loss": 2}, {"epoch": Infinity}]}',
)
@example(name="metrics.csv", start=STARTS[5], noise=b'nan,inf\n-1,-2\n"')
@example(name="trainer_log.jsonl", start=STARTS[4], noise=b'null, "epoch": NaN}\n{"step": -1, "loss": 1, "epoch": 1e400}\n')
def test_random_bytes_never_raise(tmp_path, name, start, noise):
    for old in tmp_path.iterdir():
        old.unlink()
    path = tmp_path / name
    path.write_bytes(start + noise)
    for argument in (path, tmp_path):
        reading = read_tree([argument])
        assert reading.runs or reading.skipped
        for run in reading.runs:
            assert list(run.rows())


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 400), noise=st.binary(min_size=1, max_size=8))
def test_a_damaged_event_file_never_raises(tmp_path, at, noise):
    path = write_events(tmp_path, [scalar("train/loss", step, 1.0) for step in range(5)])
    content = path.read_bytes()
    path.write_bytes(content[:at] + noise + content[at + len(noise) :])
    reading = read_tree([path])
    assert reading.runs or reading.skipped
