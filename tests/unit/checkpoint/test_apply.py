"""
A move waits until the query is quiet, and is not carried out on another checkpoint than it was planned on.
"""

import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_moves import (
    ORDERS_0,
    TimelessFileSystem,
    apply_plan,
    files,
    offset_of,
    restore,
    seek,
    truncate,
)
from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.checkpoint import apply_move, archive
from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan, verify_checkpoint
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.text import size_error


def written_ago(root: Path, seconds: float) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


def begin_batch(root: Path) -> None:
    shutil.copy(root / "offsets/2", root / "offsets/3")


@pytest.fixture
def waiting(monkeypatch):
    """waiting(action): runs the action in place of the wait of a move, and lists the seconds."""
    waited = []

    def when_waiting(action):
        def sleep(seconds):
            waited.append(seconds)
            action()

        monkeypatch.setattr(apply_move, "time", SimpleNamespace(sleep=sleep))
        return waited

    yield when_waiting
    assert waited, "the move did not wait"


def test_a_move_whose_manifest_could_not_be_read_copies_nothing(three, monkeypatch):
    before = files(three)
    monkeypatch.setattr(archive, "size_error", partial(size_error, max_values=20))
    with pytest.raises(CheckpointError, match="the move changes 2 files, more than an archive can record"):
        apply_plan(three, truncate(three, 1, idempotent_sink=True))
    assert [path for path in files(three) if path not in before and not path.endswith("claim")] == []
    assert files(three).items() >= before.items()


def test_a_move_waits_for_the_rest_of_the_period_after_a_write(three, waiting):
    written_ago(three, 200)
    waited = waiting(lambda: None)
    apply_plan(three, seek(three), quiet_period=600)
    assert waited == [pytest.approx(400, abs=100)]
    assert offset_of(three) == 3


def written_every(root: Path, seconds: float, *, planned: float) -> None:
    """Let each batch take these seconds, the newest until now; ``planned``: when its plan came (0 to 1)."""
    for number in range(3):
        ended = time.time() - (2 - number) * seconds
        file = root / f"offsets/{number}"
        began = int((ended - seconds) * 1_000)
        file.write_text(re.sub(r'"batchTimestampMs":\s*\d+', f'"batchTimestampMs":{began}', file.read_text()))
        os.utime(file, (ended - (1 - planned) * seconds,) * 2)
        os.utime(root / f"commits/{number}", (ended,) * 2)


IN_REAL_TIME = partial(written_every, seconds=300, planned=1)


def test_a_move_waits_for_a_whole_batch_of_real_time_mode_whose_files_are_written_at_its_end(three, waiting):
    IN_REAL_TIME(three)
    waited = waiting(lambda: None)
    apply_plan(three, seek(three), quiet_period=10)
    assert waited == [pytest.approx(310, abs=5)]
    assert offset_of(three) == 3


def written_at(root: Path, **seconds: float) -> None:
    for directory, later in seconds.items():
        os.utime(root / directory / "2", (time.time() + later,) * 2)


def without_time(root: Path) -> None:
    (root / "offsets/1").write_text("v1\n\n{}")


@pytest.mark.parametrize(
    "changes",
    [
        [partial(written_every, seconds=300, planned=0)],
        [IN_REAL_TIME, partial(written_ago, seconds=5), partial(written_at, commits=-4)],
        [partial(written_every, seconds=300, planned=0), partial(written_at, commits=-99, offsets=-5)],
        [partial(written_every, seconds=20, planned=0), partial(written_at, offsets=99, commits=99)],
        [IN_REAL_TIME, without_time],
    ],
    ids=["another mode", "a copy", "a file that was moved", "a batch that was put back", "no time"],
)
def test_a_move_waits_for_the_period_alone_unless_both_files_are_of_a_batchs_end(changes, three, waiting):
    for change in changes:
        change(three)
    waited = waiting(lambda: None)
    apply_move.wait_until_quiet(SparkCheckpoint(str(three)), 10)
    assert waited == [pytest.approx(10, abs=6)]


def test_a_move_waits_for_no_longer_than_the_period_where_the_storages_clock_is_ahead(three, waiting):
    written_ago(three, -3600)
    waited = waiting(lambda: None)
    apply_plan(three, seek(three), quiet_period=60)
    assert waited == [60]


@pytest.mark.parametrize(
    ("age", "offset", "quiet_period"),
    [(120, 3, 60), (0, 3, 0), (0, 7, 60)],
    ids=["nothing was written for that long", "a period of 0", "no step"],
)
def test_a_move_does_not_wait(age, offset, quiet_period, three, caplog):
    written_ago(three, age)
    with caplog.at_level(logging.INFO):
        apply_plan(three, seek(three, offset), quiet_period=quiet_period)
    assert "Waiting" not in caplog.text
    assert offset_of(three) == offset


@pytest.mark.parametrize(
    "write",
    [
        begin_batch,
        lambda root: [shutil.copy(root / d / "2", root / d / "3") for d in ("offsets", "commits")],
        lambda root: os.utime(root / "commits/2", (1, 1)),
    ],
    ids=["a batch begins", "a batch is finished", "a commit is written again"],
)
def test_a_write_while_a_move_waits_is_a_running_query(write, three, waiting):
    checkpoint_plan = seek(three)
    after: dict[str, bytes] = {}

    def spark() -> None:
        write(three)
        after.update(files(three))

    waiting(spark)

    with pytest.raises(PlanRefusedError, match=r"was written to within the last 600 s: the query is running"):
        apply_plan(three, checkpoint_plan, quiet_period=600)
    assert files(three) == after


def test_a_move_waits_on_a_storage_that_does_not_tell_when_files_were_written(three, waiting):
    written_ago(three, 3600)
    waited = waiting(lambda: None)
    spark = SparkCheckpoint(str(three), fs=TimelessFileSystem())
    apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=60)
    assert waited == [60]
    assert offset_of(three) == 3


@pytest.mark.parametrize(
    ("location", "instead"), [("dbfs:/jobs/cp", "abfss://"), ("hdfs://namenode/jobs/cp", "webhdfs://")]
)
def test_a_move_on_a_storage_that_cannot_replace_files_does_not_begin(three, location, instead, monkeypatch):
    written_ago(three, 3600)
    before = files(three)
    spark = SparkCheckpoint(str(three))
    monkeypatch.setattr(spark, "location", location)
    refused = plan_seek(spark, {"0": {ORDERS_0: 3}})
    assert [instead in refusal for refusal in refused.refusals] == [True]
    with pytest.raises(PlanRefusedError, match=f"cannot replace a file.*{instead}"):
        apply_checkpoint_plan(spark, refused, quiet_period=0)
    assert files(three) == before
    assert plan_seek(spark, {"0": {ORDERS_0: 7}}).refusals == ()


class SlowClockFileSystem(LocalFileSystem):
    """A storage whose clock is an hour behind this machine's."""

    cachable = False

    def modified(self, path: str) -> datetime:
        moment: datetime = super().modified(path)
        return moment - timedelta(hours=1)


@pytest.mark.parametrize("storage", [TimelessFileSystem, SlowClockFileSystem])
def test_a_batch_that_begins_is_seen_on_a_storage_without_times_or_whose_clock_is_behind(
    storage, three, waiting
):
    spark = SparkCheckpoint(str(three), fs=storage())
    before = files(three)
    waiting(lambda: begin_batch(three))
    with pytest.raises(PlanRefusedError, match="the query is running"):
        apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=60)
    assert files(three) == before | {"offsets/3": before["offsets/2"]}


def test_a_checkpoint_that_is_only_read_is_as_it_was_after_the_wait(three):
    before = sorted(three.rglob("*"))
    apply_move.wait_until_quiet(SparkCheckpoint(str(three)), 0.01)
    assert sorted(three.rglob("*")) == before


MOVES: dict[str, Callable[[Path], CheckpointPlan]] = {
    "seek": seek,
    "truncate": lambda root: truncate(root, 1, sink="noop"),
    "restore": restore,
}


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize(
    "changes",
    [lambda write: write({2: 8}, []), lambda write: write({3: 8}, [3]), lambda write: write({3: 8}, [])],
    ids=["the newest offsets are others", "a batch was finished", "a batch was begun"],
)
def test_a_plan_is_refused_once_the_checkpoint_is_another(changes, kind, three, checkpoint):
    if kind == "restore":
        apply_plan(three, seek(three))
    checkpoint_plan = MOVES[kind](three)
    changes(checkpoint)
    before = files(three)
    with pytest.raises(PlanRefusedError, match="has changed since the plan was made"):
        apply_plan(three, checkpoint_plan)
    assert files(three) == before


@pytest.mark.parametrize("kind", MOVES)
def test_a_query_that_begins_a_batch_while_files_are_archived_is_not_moved(kind, three, monkeypatch):
    """The storage may be slow, or the worker frozen: Spark would read on, and the file be of a move."""
    if kind == "restore":
        apply_plan(three, seek(three))
    checkpoint_plan, write_archive = MOVES[kind](three), archive.write_archive

    def slow(*given: Any) -> None:
        write_archive(*given)
        begin_batch(three)

    before = files(three / "offsets")
    monkeypatch.setattr(apply_move, "write_archive", slow)
    with pytest.raises(PlanRefusedError, match="has changed since the plan was made"):
        apply_plan(three, checkpoint_plan)
    (three / "offsets/3").unlink()
    assert files(three / "offsets") == before
    assert not (three / f"_kafka_offsets/{checkpoint_plan.archive}/manifest.json").exists()


@pytest.mark.parametrize("kind", MOVES)
def test_a_move_during_which_a_batch_begins_is_not_done(kind, three):
    if kind == "restore":
        apply_plan(three, seek(three))
    checkpoint_plan = MOVES[kind](three)
    with pytest.raises(
        CheckpointError, match="batch 3 was begun during the move, .*: the query is running; stop it; the "
    ) as running:
        apply_plan(three, checkpoint_plan, last_check=lambda: begin_batch(three))
    assert str(running.value).endswith(f" files are in archive {checkpoint_plan.archive}")
    assert not (three / f"_kafka_offsets/{checkpoint_plan.archive}/done").exists()


def test_a_batch_that_was_finished_during_a_plan_without_a_change_names_no_archive(three, checkpoint):
    unchanged = seek(three, 7)
    checkpoint({3: 8}, [3])
    with pytest.raises(CheckpointError, match=r"\(batch 3\): the query is running.*; stop it$"):
        verify_checkpoint(SparkCheckpoint(str(three)), unchanged)
