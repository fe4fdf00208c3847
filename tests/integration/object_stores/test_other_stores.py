"""Azure, Google Cloud Storage and HDFS: a checkpoint is read, moved and put back there."""

import other_stores
import pytest
from written_query import COMMIT_LOG, offset_log

from airflow_kafka_offsets import storage
from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.history import read_history
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointNotFoundError, StorageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.long]

ORDERS_0 = TopicPartition("orders", 0)


@pytest.fixture(scope="module", params=["azure", "google", "hdfs"])
def store(request, tmp_path_factory):
    """A file system, and a location on it."""
    with getattr(other_stores, request.param)(tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def checkpoint(store, request):
    """A checkpoint with the batches 0 to 2, and a pending one."""
    fs, base = store
    location = f"{base}/{request.node.originalname}/cp"
    made = SparkCheckpoint(location, fs=fs)
    made.write_file("metadata", b'{"id":"975d5cb5-daf7-40c6-ad83-ae84395a7b2a"}')
    for batch in range(4):
        made.write_file(f"offsets/{batch}", offset_log({"orders": {0: 10 * batch}}).encode())
        if batch < 3:
            made.write_file(f"commits/{batch}", COMMIT_LOG.encode())
    return made


def stands(checkpoint):
    state = checkpoint.read()
    return state.batch_id, state.pending_batch_id, state.kafka_offsets["0"][ORDERS_0]


def test_a_checkpoint_is_read(checkpoint):
    assert stands(checkpoint) == (2, 3, 20)
    assert checkpoint.ended_at(2) is not None
    assert [each.records for each in read_history(checkpoint).batches] == [None, 10, 10, 10]


def test_a_location_without_a_checkpoint_is_not_found(store):
    fs, base = store
    with pytest.raises(CheckpointNotFoundError, match="found nothing"):
        SparkCheckpoint(f"{base}/nothing/here", fs=fs).read()


def test_an_empty_file_is_read_and_one_that_is_too_large_is_refused(checkpoint, monkeypatch):
    monkeypatch.setattr(storage, "MAX_SIZE", 1_000)
    for path, size in (("empty", 0), ("large", 1_005)):
        checkpoint.write_file(path, bytes(size))
    assert checkpoint.read_file("empty") == b""
    assert checkpoint.read_file("nothing") is None
    with pytest.raises(StorageError, match="is 1,005 bytes large"):
        checkpoint.read_file("large")


def test_a_checkpoint_is_moved_and_put_back(checkpoint):
    policy = CheckpointPolicy("discard", "kafka")
    plan = plan_seek(checkpoint, {"0": {ORDERS_0: 7}}, policy)
    apply_checkpoint_plan(checkpoint, plan, quiet_period=0.5)
    assert stands(checkpoint) == (2, None, 7)
    apply_checkpoint_plan(checkpoint, plan_checkpoint_restore(checkpoint), quiet_period=0)
    assert stands(checkpoint) == (2, 3, 20)

    plan = plan_truncate(checkpoint, 0, CheckpointPolicy(sink="noop"))
    apply_checkpoint_plan(checkpoint, plan, quiet_period=0)
    assert checkpoint.listed() == ({0}, {0})
    apply_checkpoint_plan(checkpoint, plan_checkpoint_restore(checkpoint), quiet_period=0)
    assert stands(checkpoint) == (2, 3, 20)
    assert [each.undone for each in ArchivedMoves(checkpoint)] == [True, False, True, False]
