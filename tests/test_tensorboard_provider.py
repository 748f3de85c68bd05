"""Runs that TensorBoard itself has loaded, by its fast loader and by the plain one, against the same files read by us."""

from __future__ import annotations

import math
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_files import scalar, tensor, write_events
from tensorboard.backend.event_processing.data_ingester import LocalDataIngester
from tensorboard.context import RequestContext
from tensorboard.data.server_ingester import SubprocessServerDataIngester, get_server_binary
from tensorboard.util.grpc_util import ChannelCredsType
from tensorboard_logs import write_recorded

from diagnose.config import rules_from
from diagnose.examination import examine
from diagnose.readers import read_tree
from diagnose.report.json import report_to_dict
from diagnose.tensorboard.catalog import Catalog
from diagnose.tensorboard.provider import ProviderSource, homes

# TensorBoard's fast loader never waits for its data server to end, nor cleans up behind it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RULES = rules_from()
LOADERS = ("fast", "plain")


@pytest.fixture
def provided(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function that loads a folder as TensorBoard does: its data provider."""
    started = []

    def load(loader: str, logdir: Path, kept: dict[str, int] | None = None) -> Any:
        kept = kept or {}
        if loader == "fast":
            ingester = SubprocessServerDataIngester(
                get_server_binary(),
                str(logdir),
                reload_interval=0,
                channel_creds_type=ChannelCredsType.LOCAL,
                samples_per_plugin=kept,
            )
        else:
            flags = types.SimpleNamespace(
                logdir=str(logdir), logdir_spec="", path_prefix="", samples_per_plugin=kept, purge_orphaned_data=True,
                max_reload_threads=1, reload_interval=0, reload_task="blocking", window_title="", reload_multifile=False,
                reload_multifile_inactive_secs=4000, generic_data="auto", detect_file_replacement=None,
            )  # fmt: skip
            ingester = LocalDataIngester(flags)
        ingester.start()
        started.append(ingester)
        known, same = None, 0
        while known is None or same < 3:  # it loads in a thread, or a process, of its own
            time.sleep(0.15)
            listed = ingester.data_provider.list_scalars(RequestContext(), experiment_id="", plugin_name="scalars")
            now = {run: {tag: series.max_step for tag, series in tags.items()} for run, tags in listed.items()} or None
            same = same + 1 if now == known else 0
            known = now
        return ingester.data_provider

    yield load
    for ingester in started:
        stdin = getattr(ingester, "_stdin_handle", None)
        if stdin is not None:
            stdin.close()  # which ends the data server


def catalog_of(provider: Any, kept: int | None = None) -> Catalog:
    source = ProviderSource(provider, kept)
    return Catalog(lambda: source, lambda: RULES)


def reports(catalog: Catalog) -> dict[str, dict]:
    told = {id: report_to_dict(entry.examined.report) for id, entry in catalog.settle().entries.items()}
    return {id: {key: value for key, value in report.items() if key != "source"} for id, report in told.items()}


def read_by_us(root: Path) -> dict[str, dict]:
    told = {run.id: report_to_dict(examine(run, RULES)) for run in read_tree([root]).runs}
    return {id: {key: value for key, value in report.items() if key != "source"} for id, report in told.items()}


@pytest.mark.parametrize("loader", LOADERS)
def test_verdicts_are_those_of_the_files(loader: str, tmp_path: Path, provided: Any) -> None:
    steps = range(10, 110, 10)
    write_recorded(tmp_path, ["memorization", "lora-lr1e-3", "nan-unfiltered"])
    keras = tmp_path / "keras"
    write_events(keras / "train", [tensor("epoch_loss", s, s, dtype=1, float_val=[2 - s / 200]) for s in steps], v2=True)
    write_events(keras / "validation", [tensor("epoch_loss", s, s, dtype=1, float_val=[2.1]) for s in steps], v2=True)
    write_events(tmp_path / "lightning" / "version_0", [scalar("train_loss_step", s, 2.0, s) for s in steps])
    told = reports(catalog_of(provided(loader, tmp_path)))
    assert told == read_by_us(tmp_path)
    assert told["memorization"]["settings"]["num_train_epochs"] == 80
    assert told["memorization"]["verdict"] == "SICK"


@pytest.mark.parametrize("loader", LOADERS)
def test_a_sample_is_never_taken_for_the_whole_in_silence(loader: str, tmp_path: Path, provided: Any) -> None:
    values = [2.0] * 1500
    values[700] = 40.0
    write_events(tmp_path / "long", [scalar("train/loss", s, v, s) for s, v in enumerate(values, 1)])
    write_events(tmp_path / "short", [scalar("train/loss", s, 2.0, s) for s in range(1, 900)])
    sampled = catalog_of(provided(loader, tmp_path))
    notes = {id: [n["kind"] for n in report["notes"]] for id, report in reports(sampled).items()}
    assert notes == {"long": ["sampled"], "short": []}
    text = sampled.listing.entries["long"].examined.report.notes[0].text
    assert "--samples_per_plugin scalars=0" in text
    whole = catalog_of(provided(loader, tmp_path, {"scalars": 0}), kept=0)
    assert reports(whole) == read_by_us(tmp_path)


def test_only_runs_with_new_points_are_read_again(tmp_path: Path, provided: Any) -> None:
    write_recorded(tmp_path, ["memorization", "lora-lr1e-3"])
    provider = provided("plain", tmp_path)
    asked: list[list[str]] = []
    plain = provider.read_scalars

    def counted(*args: Any, run_tag_filter: Any, **more: Any) -> Any:
        asked.append(sorted(run_tag_filter.runs))
        return plain(*args, run_tag_filter=run_tag_filter, **more)

    provider.read_scalars = counted
    catalog = catalog_of(provider)
    catalog.settle()
    catalog.settle()
    assert asked == [["lora-lr1e-3"], ["memorization"]]


def test_values_that_are_not_finite_come_through(tmp_path: Path, provided: Any) -> None:
    write_events(tmp_path / "a", [scalar("loss", s, v, s) for s, v in enumerate([2.0, math.nan, math.inf, 1.0], 1)])
    catalog = catalog_of(provided("fast", tmp_path))
    value = catalog.settle().entries["a"].examined.run.series["train/loss"].value
    assert [str(v) for v in value.tolist()] == ["2.0", "nan", "inf", "1.0"]


def test_the_two_sides_of_a_run_are_one_also_at_the_top() -> None:
    assert homes({"train": 0, "validation": 0}) == {".": {"train": "train/", "validation": "validation/"}}
    assert homes({".": 0}) == {".": {".": ""}}
