"""Moves of a checkpoint on an S3 server that lists late and fails: never green and wrong, nothing lost."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from written_query import COMMIT_LOG, offset_log

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.batch import batch_bounds
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointError,
    KafkaOffsetsError,
    PlanRefusedError,
    StorageError,
    StorageUnavailableError,
)
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.starting import _refuse_started

pytestmark = pytest.mark.integration

ORDERS_0 = TopicPartition("orders", 0)
DISCARD = CheckpointPolicy("discard", "kafka")
TABLES = Path(__file__).parents[2] / "tables"
"""Tables that record the batches 0 to 2 of a query with the id of :class:`Checkpoint`."""


class Checkpoint:
    """A checkpoint on the S3 server, whose files another process writes."""

    def __init__(self, s3: Any, open_it: Callable[[str], SparkCheckpoint]) -> None:
        self.s3, self.faults = s3, s3.faults
        self._open = open_it
        self.location: str = s3.new_location()
        self.root = self.location.removeprefix("s3a://")
        self._spark = open_it(self.location).fs
        self.write("metadata", json.dumps({"id": "975d5cb5-daf7-40c6-ad83-ae84395a7b2a"}))

    def opened(self) -> SparkCheckpoint:
        return self._open(self.location)

    def write(self, path: str, text: str) -> None:
        self._spark.pipe_file(f"{self.root}/{path}", text.encode())

    def plan(self, *batches: int) -> None:
        """Batch N ends at the offset 10 * N."""
        for batch in batches:
            self.write(f"offsets/{batch}", offset_log({"orders": {0: 10 * batch}}))

    def run(self, *batches: int) -> None:
        for batch in batches:
            self.plan(batch)
            self.write(f"commits/{batch}", COMMIT_LOG)

    def files(self) -> dict[str, bytes]:
        """What is there for Spark, as reads and not listings say."""
        self.faults.show_all()
        self._spark.invalidate_cache()
        paths = self._spark.find(self.root)
        return {
            path.removeprefix(f"{self.root}/"): self._spark.cat_file(path)
            for path in paths
            if "/_kafka_offsets/" not in path
        }

    def offset(self) -> int:
        return self.opened().read().kafka_offsets["0"][ORDERS_0]

    def apply(self, plan: Callable[..., CheckpointPlan], *arguments: Any, **policy: Any) -> CheckpointPlan:
        spark = self.opened()
        made = plan(spark, *arguments, **policy)
        apply_checkpoint_plan(spark, made, quiet_period=0)
        return made

    def seek(self, offset: int) -> CheckpointPlan:
        return self.apply(plan_seek, {"0": {ORDERS_0: offset}}, DISCARD)

    def truncate(self, batch: int) -> CheckpointPlan:
        return self.apply(plan_truncate, batch, CheckpointPolicy(sink="noop"))

    def restore(self) -> CheckpointPlan:
        return self.apply(plan_checkpoint_restore, None, DISCARD)


@pytest.fixture
def checkpoint(s3, opened) -> Checkpoint:
    """A checkpoint with the batches 0 to 2."""
    made = Checkpoint(s3, opened)
    made.run(0, 1, 2)
    return made


@pytest.fixture
def late(checkpoint):
    """From here on no listing shows what is written or removed."""
    with checkpoint.faults.late_listings():
        yield checkpoint


# --- listings that come late


def test_batches_that_are_not_listed_yet_are_read(late):
    late.run(3, 4)
    late.plan(5)
    state = late.opened().read()
    assert (state.batch_id, state.pending_batch_id) == (4, 5)
    assert state.kafka_offsets == {"0": {ORDERS_0: 40}}


def test_the_first_batches_that_are_not_listed_yet_are_read(s3, opened):
    with s3.faults.late_listings():
        new = Checkpoint(s3, opened)
        new.run(0, 1)
        assert new.opened().read().batch_id == 1


def test_a_seek_moves_the_newest_batch_that_is_not_listed_yet(late):
    late.run(3)
    late.seek(7)
    assert late.offset() == 7
    assert b'"0":7' in late.files()["offsets/3"].replace(b" ", b"")
    assert b'"0":20' in late.files()["offsets/2"].replace(b" ", b"")


def test_a_pending_batch_that_is_not_listed_yet_is_met(late):
    late.plan(3)
    with pytest.raises(PlanRefusedError, match="batch 3 was begun and not finished"):
        late.apply(plan_seek, {"0": {ORDERS_0: 7}})
    late.seek(7)
    assert "offsets/3" not in late.files()


@pytest.mark.long
def test_a_truncation_and_its_restore_see_what_listings_do_not(late):
    late.run(3, 4)
    late.plan(5)
    before = {path: late.opened().read_file(path) for path in ("offsets/3", "commits/4", "offsets/5")}
    late.truncate(1)
    assert late.offset() == 10
    assert all(late.opened().read_file(path) is None for path in before)
    late.restore()
    assert {path: late.opened().read_file(path) for path in before} == before
    state = late.opened().read()
    assert (state.batch_id, state.pending_batch_id) == (4, 5)


def test_a_batch_begins_where_the_one_before_it_ends_that_is_not_listed_yet(late):
    late.run(3)
    late.plan(4)
    assert {name: starts for name, (starts, _) in batch_bounds(late.opened(), 4).items()} == {
        "0": {ORDERS_0: 30}
    }


def test_a_checkpoint_whose_first_batch_is_not_listed_yet_is_no_new_one(s3, opened):
    with s3.faults.late_listings():
        begun = Checkpoint(s3, opened)
        begun.plan(0)
        with pytest.raises(CheckpointError, match="found batches up to 0; expected a new checkpoint"):
            _refuse_started(begun.opened())


def test_what_is_removed_and_listed_still_is_no_batch(late):
    late.truncate(0)
    state = late.opened().read()
    assert (state.batch_id, state.pending_batch_id) == (0, None)
    late.seek(3)
    assert late.offset() == 3


@pytest.mark.long
def test_an_archive_that_is_not_listed_yet_is_not_written_over(late):
    before = late.files()
    with late.faults.late_listings():
        assert late.seek(7).archive == "0001-seek"
        assert late.seek(8).archive == "0002-seek"
        assert late.truncate(1).archive == "0003-truncate"
        assert [each.name for each in ArchivedMoves(late.opened())] == [
            "0001-seek",
            "0002-seek",
            "0003-truncate",
        ]
        for offset in (8, 7, 20):
            late.restore()
            assert late.offset() == offset
    assert late.files() == before


def test_a_move_that_is_not_listed_yet_is_found_unfinished(late):
    with late.faults.fault("PUT", "cp/offsets/2$", "denied"), pytest.raises(StorageError):
        late.seek(7)
    kept = ArchivedMoves(late.opened()).unfinished()
    assert kept is not None
    with pytest.raises(PlanRefusedError, match="was begun and not finished"):
        late.seek(8)
    late.restore()
    assert late.offset() == 20


@pytest.mark.parametrize("file", ["state/0/_metadata/metadata", "state/0/0/_metadata/schema"])
def test_state_that_is_not_listed_yet_is_state(late, file):
    late.write(file, "v1\n{}")
    with pytest.raises(PlanRefusedError, match="the query keeps state"):
        late.seek(7)


@pytest.mark.parametrize("name", ["3", "3.compact"])
def test_a_batch_that_a_file_sink_has_recorded_and_no_listing_shows_is_not_discarded(late, name):
    late.plan(3)
    sink = late.location.removesuffix("/cp") + "/out"
    late._spark.pipe_file(f"{sink.removeprefix('s3a://')}/_spark_metadata/2", b"v1")
    late._spark.pipe_file(f"{sink.removeprefix('s3a://')}/_spark_metadata/{name}", b"v1")
    policy = CheckpointPolicy("discard", "file", sink_location=sink)
    with pytest.raises(PlanRefusedError, match="the sink has recorded batch 3"):
        late.apply(plan_seek, {"0": {ORDERS_0: 7}}, policy)


@pytest.mark.parametrize(
    ("table", "newest"),
    [
        ("delta-4.0.0", "_delta_log/00000000000000000003.json"),
        ("iceberg-1.10.1", "metadata/v5.metadata.json"),
    ],
)
def test_a_batch_that_a_table_has_recorded_and_no_listing_shows_is_not_discarded(checkpoint, table, newest):
    root = checkpoint.location.removesuffix("/cp") + "/orders"
    files = {
        str(path.relative_to(TABLES / table)): path.read_text() for path in (TABLES / table).rglob("*.json")
    }
    newer = files[max(files)].replace('"version":2', '"version":3').replace('epochId":"2"', 'epochId":"3"')

    def write(name: str, text: str) -> None:
        checkpoint._spark.pipe_file(f"{root.removeprefix('s3a://')}/{name}", text.encode())

    for name, text in files.items():
        write(name, text)
    policy = CheckpointPolicy("discard", table.partition("-")[0], sink_location=root)
    with checkpoint.faults.late_listings():
        checkpoint.plan(3)
        assert plan_seek(checkpoint.opened(), {"0": {ORDERS_0: 7}}, policy).refusals == ()
        write(newest, newer)
        with pytest.raises(PlanRefusedError, match="the sink has recorded batch 3"):
            checkpoint.apply(plan_seek, {"0": {ORDERS_0: 7}}, policy)


# --- requests that fail


MOVES: dict[str, Callable[[Checkpoint], object]] = {
    "seek": lambda checkpoint: checkpoint.seek(7),
    "truncate": lambda checkpoint: checkpoint.truncate(0),
}
MOVED = {
    "seek": (7, {"offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1", "commits/2", "metadata"}),
    "truncate": (0, {"offsets/0", "commits/0", "metadata"}),
}
DENIED = pytest.param("denied", "PUT|DELETE", id="refused")
IGNORED = pytest.param("ignored", "DELETE", id="removals not carried out")
LOST = pytest.param("done, answer lost", "PUT|DELETE", id="answers lost")


class Trouble:
    """Makes a move again and again on a new checkpoint, the next time with the fault at the next request."""

    def __init__(self, s3: Any, opened: Any, move: str, outcome: Any, kinds: str) -> None:
        self.new = lambda: Checkpoint(s3, opened)
        self.move, self.outcome, self.kinds = MOVES[move], outcome, kinds
        self.moved = MOVED[move]

    def __iter__(self) -> Iterator[tuple[Checkpoint, KafkaOffsetsError | None, dict[str, bytes]]]:
        for number in itertools.count():
            checkpoint = self.new()
            checkpoint.run(0, 1, 2)
            checkpoint.plan(3)
            before, error = checkpoint.files(), None
            with checkpoint.faults.fault(
                self.kinds, checkpoint.root, self.outcome, after=number, times=1
            ) as fault:
                try:
                    self.move(checkpoint)
                except (CheckpointError, StorageError) as raised:
                    error = raised
            if not fault.met:
                assert error is None
                assert number > 3
                return
            if error is None:
                assert self.stands(checkpoint), f"green and wrong after {fault.met}"
            yield checkpoint, error, before

    def stands(self, checkpoint: Checkpoint) -> bool:
        return (checkpoint.offset(), set(checkpoint.files())) == self.moved


@pytest.mark.long
@pytest.mark.parametrize(("outcome", "kinds"), [DENIED, IGNORED, LOST])
@pytest.mark.parametrize("move", MOVES)
def test_a_move_that_meets_a_failing_request_is_finished_by_another_try(s3, opened, move, outcome, kinds):
    trouble = Trouble(s3, opened, move, outcome, kinds)
    for checkpoint, error, _ in trouble:
        if error is not None:
            trouble.move(checkpoint)
            assert trouble.stands(checkpoint)
        assert ArchivedMoves(checkpoint.opened()).unfinished() is None
        assert outcome != "done, answer lost" or error is None


@pytest.mark.long
@pytest.mark.parametrize(("outcome", "kinds"), [DENIED, IGNORED])
@pytest.mark.parametrize("move", MOVES)
def test_a_move_that_meets_a_failing_request_is_taken_back(s3, opened, move, outcome, kinds):
    for checkpoint, error, before in Trouble(s3, opened, move, outcome, kinds):
        if error is not None and not [*ArchivedMoves(checkpoint.opened())]:
            assert "the checkpoint was not changed" in str(error)
        else:
            checkpoint.restore()
        assert checkpoint.files() == before


@pytest.mark.parametrize("kind", ["LIST", "GET", "PUT", "DELETE"])
def test_a_store_that_asks_to_slow_down_for_a_moment_delays_a_move(checkpoint, kind):
    with checkpoint.faults.fault(kind, checkpoint.root, "slow down", times=1) as fault:
        checkpoint.seek(7)
    assert fault.met
    assert checkpoint.offset() == 7


@pytest.mark.long
def test_a_store_that_asks_to_slow_down_without_end_is_given_up_in_time_and_named(checkpoint):
    begin = time.monotonic()
    with checkpoint.faults.fault("PUT", checkpoint.root, "slow down"):
        with pytest.raises(
            StorageUnavailableError, match=r"could not be written .*SlowDown|reduce your"
        ) as it:
            checkpoint.seek(7)
    assert it.value.retriable
    assert time.monotonic() - begin < 60
    assert checkpoint.offset() == 20


def test_a_move_needs_no_right_on_the_bucket_and_makes_none(checkpoint):
    with checkpoint.faults.fault("LIST|HEAD|PUT|GET", r"^(lake/?)?$", "denied") as fault:
        checkpoint.seek(7)
    assert not fault.met
    assert checkpoint.offset() == 7


def test_a_move_removes_one_by_one_so_that_no_removal_is_half_done(checkpoint):
    with checkpoint.faults.fault("DELETE MANY", "", "half") as fault:
        checkpoint.truncate(0)
        checkpoint.restore()
    assert not fault.met
    assert checkpoint.offset() == 20
