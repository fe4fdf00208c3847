"""The batches that a checkpoint still knows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checkpoint_moves import (
    ORDERS_0,
    TimelessFileSystem,
    apply_plan,
    restore,
    seek,
    truncate,
    write_checkpoint,
)
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.history import PastBatch, read_history
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    StorageUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED = Path(__file__).parents[2] / "checkpoints"
FIRST = 1_795_228_309_000
"""When the first batch was planned, in ms."""


def history(root: Path, last: int = 100) -> list[PastBatch]:
    return read_history(SparkCheckpoint(str(root)), last).batches


def log(*sources: str, at: int | None = FIRST) -> str:
    metadata = "" if at is None else json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at, "conf": {}})
    return "\n".join(["v1", metadata, *sources])


def seconds(second: float, *, offset: int) -> str:
    """One Kafka source, planned so many seconds after the first batch."""
    return log(f'{{"orders":{{"0":{offset}}}}}', at=FIRST + int(second * 1000))


def written(root: Path, *, offsets: Mapping[int, float], commits: Mapping[int, float]) -> None:
    """Set when the files were written, in seconds after the first batch was planned."""
    for directory, times in (("offsets", offsets), ("commits", commits)):
        for number, second in times.items():
            os.utime(root / directory / str(number), (FIRST / 1000 + second,) * 2)


# --- recorded checkpoints


RECORDS: dict[tuple[str, str], list[int | None]] = {
    ("plain", "3.5.4 4.0.0 4.2.0"): [None, 9, 9, 3],
    ("purged", "3.5.4 4.0.0 4.2.0"): [None, 3, 3],
    ("stateful", "3.5.4 4.0.0 4.2.0"): [None, 12, 12, 3],
    ("stateful-ckpt-v2", "4.0.0 4.2.0"): [None, 15, 9],
    ("uncommitted-last", "3.5.4 4.0.0 4.2.0"): [None, 9, 9],
    ("minus-source", "3.5.4 4.0.0 4.2.0"): [None],
    ("multi-kafka-file-kafka-rate", "3.5.4 4.0.0 4.2.0"): [None],
    ("subscribe-pattern", "3.5.4 4.0.0 4.2.0"): [None],
    ("named-sources-v2", "4.2.0"): [None],
    ("named-sink", "4.2.0"): [None, 2, 4],
    ("async-progress", "4.0.0"): [None, 3, 6, 15],
    ("async-progress", "4.2.0"): [None, 3, 6, 6, 6, 9, 6],
    ("continuous", "4.0.0"): [None, 0, 20, *[0] * 11],
    ("continuous", "4.2.0"): [None, 0, 20, *[0] * 13],
}
"""Case and versions -> records of each batch."""
CASES = [
    (version, case, counts) for (case, versions), counts in RECORDS.items() for version in versions.split()
]


def test_every_recorded_checkpoint_has_its_numbers():
    names = {f"spark-{version}-{case}" for version, case, _ in CASES}
    assert names == {path.parent.name for path in RECORDED.glob("*/expected.json")}


@pytest.mark.parametrize(("version", "case", "records"), CASES)
def test_the_batches_of_a_recorded_checkpoint(version, case, records):
    root = RECORDED / f"spark-{version}-{case}"
    expected = json.loads((root / "expected.json").read_text())
    found = history(root / "checkpoint")
    ended = [each for each in found if not each.pending][-1]
    as_json = ended.as_json()
    assert ended.batch == expected["batch"]
    assert as_json["offsets"] == {name: ends for name, ends in expected["sources"].items() if ends}
    assert [each.batch for each in found if each.pending] == ([2] if case == "uncommitted-last" else [])
    assert {each.moved_in for each in found} == {None}
    assert {each.at is None for each in found} == {case == "continuous"}
    assert [each.previous for each in found] == [None, *(each.batch for each in found[:-1])]
    assert [each.records for each in found] == records


def test_the_time_is_when_spark_planned_the_batch():
    (*_, newest) = history(RECORDED / "spark-4.2.0-plain" / "checkpoint")
    assert newest.at == datetime(2026, 11, 21, 2, 31, 49, 758000, tzinfo=timezone.utc)


# --- durations


@pytest.mark.parametrize(
    ("planned", "offsets", "commits", "durations"),
    [
        ([0, 10, 20], [0.1, 12, 20], [2.5, 19], [2.5, 9, None]),
        ([0.9, 10], [0, 10], [0, 5], [0, None]),
        ([0, 10, 500], [400, 400, 500], [400, 400, 504], [None, None, 4]),
        ([0], [-60], [2], [None]),
    ],
    ids=["planning to commit", "times in whole seconds", "a copy that runs on", "another clock"],
)
def test_a_batch_took_from_its_planning_to_its_commit_where_that_is_known(
    checkpoint, planned, offsets, commits, durations
):
    root = checkpoint(
        {batch: seconds(at, offset=5 + batch) for batch, at in enumerate(planned)}, range(len(commits))
    )
    written(root, offsets=dict(enumerate(offsets)), commits=dict(enumerate(commits)))
    assert [each.duration for each in history(root)] == durations


def test_a_storage_without_times_gives_no_durations(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    found = read_history(SparkCheckpoint(str(root), fs=TimelessFileSystem())).batches
    assert [(each.records, each.duration) for each in found] == [(None, None), (1, None)]


# --- what was read


def test_records_are_counted_for_each_source_and_topic(checkpoint):
    first = log('{"orders":{"0":5,"1":5},"pay":{"0":1}}', '{"logOffset":0}', '{"orders":{"0":2}}')
    second = log('{"orders":{"0":9,"1":6},"pay":{"0":1}}', '{"logOffset":3}', '{"orders":{"0":4}}')
    (*_, newest) = history(checkpoint({0: first, 1: second}, [0, 1]))
    assert newest.read == {"0": {"orders": 5, "pay": 0}, "2": {"orders": 2}}
    assert newest.records == 7


def test_a_new_partition_leaves_the_count_open_unless_it_is_empty(checkpoint):
    logs = ['{"orders":{"0":5}}', '{"orders":{"0":6,"1":0}}', '{"orders":{"0":7,"1":3,"2":4}}']
    found = history(checkpoint({n: log(text) for n, text in enumerate(logs)}, [0, 1, 2]))
    assert [each.read for each in found] == [{}, {"0": {"orders": 1}}, {"0": {"orders": None}}]
    assert [each.records for each in found] == [None, 1, None]


def test_a_source_that_begins_or_is_gone_is_not_guessed(checkpoint):
    begins = {0: log("-", '{"pay":{"0":3}}'), 1: log('{"orders":{"0":6}}', '{"pay":{"0":4}}')}
    gone = {2: 'v2\n{}\n1:{"pay":{"0":9}}'}
    found = history(checkpoint(begins | gone, [0, 1, 2]))
    assert [each.read for each in found[1:]] == [{"0": {"orders": None}, "1": {"pay": 1}}, {"1": {"pay": 5}}]
    assert [each.records for each in found] == [None, None, 5]


def test_an_end_before_the_previous_one_has_no_count(checkpoint):
    assert [each.records for each in history(checkpoint({0: 9, 1: 5, 2: 7}, [0, 1, 2]))] == [None, None, 2]


def test_a_query_without_kafka_has_batches_without_records(checkpoint):
    found = history(checkpoint({0: log('{"logOffset":0}'), 1: log('{"logOffset":1}')}, [0, 1]))
    assert [(each.records, each.read, each.offsets) for each in found] == [(None, {}, {})] * 2


# --- which batches


def test_the_last_batches_are_shown_and_the_first_of_them_is_counted(checkpoint):
    root = checkpoint({number: number * 2 for number in range(8, 112)}, range(8, 112))
    found = history(root, last=3)
    assert [(each.batch, each.records) for each in found] == [(109, 2), (110, 2), (111, 2)]
    assert len(history(root)) == 100


def test_a_hole_in_the_commits_is_skipped_and_not_pending(checkpoint):
    found = history(checkpoint({0: 5, 1: 6, 2: 7, 3: 8}, [0, 2]))
    assert [each.pending for each in found] == [False, False, False, True]
    assert [each.skipped for each in found] == [False, True, False, False]


def test_a_query_without_a_batch_has_no_history(checkpoint):
    assert history(checkpoint({}, [])) == []


def test_a_checkpoint_that_is_not_there_is_not_empty(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="expected the directory that the Spark job has"):
        history(tmp_path / "nothing")


@pytest.mark.parametrize("path", ["offsets/0", "offsets/1", "commits/1"])
def test_an_unknown_format_is_refused_with_the_name_of_its_file(path, checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    (root / path).write_text("v4\n{}\n-")
    with pytest.raises(CheckpointFormatError, match=f"{path}: found version v4"):
        history(root)


def test_a_batch_that_the_query_removes_meanwhile_is_left_out(memory):
    class Purging(MemoryFileSystem):
        cachable = False

        def cat_file(self, path: str, **options: Any) -> bytes:
            if path.endswith("offsets/0"):
                raise FileNotFoundError(path)
            data: bytes = super().cat_file(path, **options)
            return data

    root = write_checkpoint(memory, "/cp", {0: 5, 1: 6, 2: 9}, [0, 1, 2])

    found = read_history(SparkCheckpoint(f"memory:/{root}", fs=Purging())).batches

    assert [(each.batch, each.records) for each in found] == [(1, None), (2, 3)]


# --- moves


def test_after_a_seek_a_batch_keeps_its_end_and_the_next_begins_elsewhere(three):
    apply_plan(three, seek(three, 3))
    moved = history(three)[-1]
    assert (moved.batch, moved.records, moved.offsets) == (2, 1, {"0": {ORDERS_0: 7}})
    assert (moved.moved_in, moved.moved_to) == ("0001-seek", {"0": {ORDERS_0: 3}})
    _run(three, 3, end=10)
    found = history(three)
    assert [(each.batch, each.records, each.moved_in) for each in found] == [
        (0, None, None),
        (1, 1, None),
        (2, 1, "0001-seek"),
        (3, 7, None),
    ]


@pytest.mark.parametrize("last", [1, 2, 100])
def test_more_moves_than_batches_lead_back_to_the_end_of_the_batch(last, checkpoint):
    root = checkpoint({9: 900, 10: 1000}, [9, 10])
    apply_plan(root, seek(root, 500))
    apply_plan(root, seek(root, 200))
    newest = history(root, last)[-1]
    assert (newest.offsets, newest.records, newest.moved_in) == ({"0": {ORDERS_0: 1000}}, 100, "0002-seek")
    assert newest.moved_to == {"0": {ORDERS_0: 200}}


def test_a_seek_that_was_taken_back_leaves_no_mark(three):
    before = history(three)
    apply_plan(three, seek(three, 3))
    apply_plan(three, restore(three))
    assert history(three) == before


def test_a_truncate_that_was_taken_back_does_not_hide_an_older_seek(three):
    apply_plan(three, seek(three, 3))
    before = history(three)
    apply_plan(three, truncate(three, 1, idempotent_sink=True))
    apply_plan(three, restore(three))
    assert [each.moved_in for each in before] == [None, None, "0001-seek"]
    assert history(three) == before
    assert history(three, 1) == before[-1:]


def test_a_batch_that_came_again_after_a_truncate_is_not_the_one_that_was_moved(three):
    apply_plan(three, seek(three, 3))
    apply_plan(three, truncate(three, 1, idempotent_sink=True))
    _run(three, 2, end=9)
    newest = history(three)[-1]
    assert (newest.batch, newest.records, newest.moved_in) == (2, 3, None)


def _run(root: Path, number: int, *, end: int) -> None:
    (root / "offsets" / str(number)).write_text(log(f'{{"orders":{{"0":{end}}}}}'))
    (root / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


# --- storages


def test_a_storage_that_does_not_answer_ends_at_the_deadline(memory):
    answer = threading.Event()

    class Hanging(MemoryFileSystem):
        cachable = False

        def cat_file(self, path: str, **options: Any) -> bytes:
            if path.endswith("offsets/1"):
                answer.wait(30)
            data: bytes = super().cat_file(path, **options)
            return data

    root = write_checkpoint(memory, "/cp", {0: 5, 1: 6, 2: 9}, [0, 1, 2])
    try:
        with pytest.raises(StorageUnavailableError, match=r"answered 3 of 4 reads within 0\.2 s"):
            read_history(SparkCheckpoint(f"memory:/{root}", fs=Hanging()), within=0.2)
    finally:
        answer.set()


_DEAD = """
import sys, time
from fsspec.implementations.memory import MemoryFileSystem
from airflow_kafka_offsets.checkpoint.history import read_history
from airflow_kafka_offsets.checkpoint.reader import (SparkCheckpoint)

class Dead(MemoryFileSystem):
    def cat_file(self, path, **options):
        if path.endswith(sys.argv[1]):
            time.sleep(60)
        return super().cat_file(path, **options)

fs = Dead()
fs.pipe_file("/cp/offsets/0", b"")
fs.pipe_file("/cp/commits/0", b"v1\\n{}")
fs.pipe_file("/cp/metadata", b'{"id": "x"}')
read_history(SparkCheckpoint("memory://cp", fs=fs), within=0.2)
"""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metadata", "answered 0 of 1 reads within 0.2 s: try again"),
        ("offsets/0", "within 0.2 s: ask for"),
    ],
)
def test_a_call_that_is_never_answered_does_not_keep_the_process_alive(path, text):
    done = subprocess.run(
        [sys.executable, "-c", _DEAD, path], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert text in done.stderr
