"""To which batches can a query be truncated whose state is in RocksDB: snapshots, and changes since?"""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy

STORE = "spark.sql.streaming.stateStore"
SNAPSHOTS_AND_CHANGES = {
    f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
SNAPSHOTS_ONLY = {**SNAPSHOTS_AND_CHANGES, f"{STORE}.rocksdb.changelogCheckpointing.enabled": "false"}


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.long)])
def store_format(request, spark):
    """Spark's format of its state store: ``4.changelog`` or ``4_<id>.changelog``."""
    name = f"{STORE}.checkpointFormatVersion"
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.unset(name)


@pytest.fixture(scope="module")
def topic(store_format, make_topic, produce):
    name = make_topic(1)
    produce(name, {0: 2})
    return name


@pytest.fixture(scope="module")
def count(store_format, spark, stream, run, topic):
    """count(location, settings, **options) -> how many records a query has counted, at the log's end."""

    def to_the_end(location, settings=SNAPSHOTS_AND_CHANGES, **options):
        found = []
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            frame = stream(topic, **options).groupBy("topic").count()
            run(frame, location, batch_does=lambda rows, _: found.extend(rows.collect()), mode="complete")
        finally:
            for name in settings:
                spark.conf.unset(name)
        return found[-1]["count"]

    return to_the_end


@pytest.fixture(scope="module")
def counted(count, topic, produce, tmp_path_factory):
    """The batches 0 to 4: versions 1 and 2 of the state are snapshots, of 3 to 5 there are the changes."""
    location = tmp_path_factory.mktemp("rocksdb") / "checkpoint"
    assert count(str(location), SNAPSHOTS_ONLY, maxOffsetsPerTrigger=1) == 2
    produce(topic, {0: 3})
    assert count(str(location), maxOffsetsPerTrigger=1) == 5
    return location


@pytest.fixture
def without(counted, tmp_path):
    """without(*patterns) -> a copy of the checkpoint in which these files of each store are gone."""

    def copy(*patterns):
        location = tmp_path / "checkpoint"
        shutil.copytree(counted, location)
        for pattern in patterns:
            found = list(location.glob(f"state/0/[01]/{pattern}"))
            assert len(found) == 2
            for file in found:
                file.unlink()
        return str(location)

    return copy


def truncate(location, batch_id):
    """Truncate a checkpoint, or return why that is refused."""
    checkpoint = SparkCheckpoint(location)
    plan = plan_truncate(checkpoint, batch_id, CheckpointPolicy(idempotent_sink=True))
    if not plan.refusals:
        apply_checkpoint_plan(checkpoint, plan, quiet_period=0)
    return plan.refusals


def test_a_truncate_to_a_batch_whose_first_changes_are_gone_is_refused_with_those_that_are_left(
    without, count
):
    location = without("3*.changelog")
    (refusal,) = truncate(location, 3)
    assert refusal.endswith("batches that can be truncated to: 0 to 1"), refusal
    assert truncate(location, 1) == ()
    assert count(location) == 5


def test_a_truncate_to_a_batch_whose_snapshot_is_gone_is_refused(without):
    (refusal,) = truncate(without("1*.zip", "2*.zip"), 3)
    assert refusal.endswith("Spark keeps the state of no earlier batch: start a new checkpoint")


def test_a_batch_with_its_snapshot_and_all_changes_since_can_be_truncated_to(without, count):
    location = without("1*.zip")
    assert truncate(location, 3) == ()
    assert count(location) == 5


def test_spark_itself_does_not_start_where_a_truncate_is_refused(without, count):
    location = Path(without("3*.changelog"))
    for file in ("commits/4", "commits/.4.crc", "offsets/4", "offsets/.4.crc"):
        (location / file).unlink()
    with pytest.raises(StreamingQueryException, match=r"3\w*.changelog does not exist|STATE_STORE"):
        count(str(location))
