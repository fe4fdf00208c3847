"""The estimate of a plan beside what the replay then takes, on real Spark."""

import time
from datetime import datetime, timezone

import pytest
from confluent_kafka import Producer

from airflow_kafka_offsets.checkpoint.history import read_history
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.readings.estimate import estimate

pytestmark = pytest.mark.timeout(600)

REPLAYS = {
    "all of it in one batch": ([4_000, 8_000, 12_000, 16_000, 20_000], 300, "earliest", {}),
    "batches of one size": ([10_000] * 6, 300, "earliest", {}),
    "the last two batches": ([4_000, 8_000, 12_000, 16_000, 20_000], 300, -36_000, {}),
    "large records": ([500, 1_000, 1_500, 2_000, 2_500], 8_000, "earliest", {}),
    "at most so many a batch": (
        [5_000, 10_000, 10_000, 10_000, 10_000],
        300,
        "earliest",
        {"maxOffsetsPerTrigger": "10000"},
    ),
}


FIRST, *OTHERS = REPLAYS


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_a_replay_takes_about_as_long_as_was_estimated(
    name, stream, run, make_topic, bootstrap_servers, tmp_path
):
    sizes, size, place, options = REPLAYS[name]
    topic, group = make_topic(1), f"estimated-{time.time_ns()}"
    location, table = str(tmp_path / "checkpoint"), str(tmp_path / "table")

    def write(frame, _):
        frame.selectExpr("CAST(value AS STRING)", "length(value)").write.mode("append").parquet(table)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 50})
    for records in sizes:
        for number in range(records):
            producer.produce(topic, f"{number:x}".ljust(size, "a"))
            producer.poll(0)
        producer.flush(60)
        run(stream(topic, **options), location, batch_does=write)

    checkpoint = SparkCheckpoint(location)
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        selection = GroupSelection.parse(group)
        by = CommitMetadata(tool="test")
        first, by, known = plan_checkpoint_commit(client, checkpoint, selection, by)
        apply_position(client, first, by, known)
        to = Place.parse(place, "shift_by" if isinstance(place, int) else "to_offset")
        plan = plan_reset(client, checkpoint, selection, to, now=datetime.now(tz=timezone.utc))
        began = time.monotonic()
        found = estimate(client, plan, checkpoint)
        took = time.monotonic() - began
        apply_pipeline(client, plan, by, checkpoint, 0)
    newest = read_history(checkpoint).batches[-1].batch
    began = time.monotonic()
    run(stream(topic, **options), location, batch_does=write)
    whole = time.monotonic() - began
    batches = [batch for batch in read_history(checkpoint).batches if batch.batch > newest]
    records = sum(batch.records or 0 for batch in batches)
    seconds = sum(batch.duration or 0 for batch in batches)
    print(
        f"\n@@ {name}: {found.lag:,} records and {found.bytes:,} bytes estimated, {records:,} and "
        f"{records * size:,} read; {found.seconds} s estimated ({found.reasons}), {seconds:.2f} s in "
        f"{len(batches)} batches, {whole:.2f} s with the query's start; estimating took {took:.2f} s"
    )
    assert found.lag == records
    assert found.bytes == pytest.approx(records * size, rel=0.05)
    if found.seconds is not None:
        # The machine does other things meanwhile.
        assert found.seconds.least / 4 < seconds < found.seconds.most * 4
