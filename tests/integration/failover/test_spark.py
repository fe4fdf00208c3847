"""A real Spark query goes on on the mirror with its state: each record counts once."""

from __future__ import annotations

from typing import Any

import pytest
from mirrored_clusters import SYNCS, Mirrored, produce, produce_in_transactions

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.mark.parametrize("kind", ["aggregate", "join"])
def test_totals_are_exact_over_a_failover(mirrored: Mirrored, spark, run, location, new_group, cli, kind):
    from pyspark.sql import functions as f

    topic, other = mirrored.topic("other", partitions=2), mirrored.topic("other")
    produce(mirrored.source, topic, 300)
    produce_in_transactions(mirrored.source, topic, 100, partition=1, first=1_000)
    produce(mirrored.source, other, 300)

    def read(servers: str, name: str) -> Any:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        reader = reader.option("kafka.isolation.level", "read_committed").option(
            "startingOffsets", "earliest"
        )
        return reader.option("subscribe", name).load().select(f.col("value").cast("string").alias("value"))

    totals: dict[str, int] = {}

    def query(servers: str, prefix: str) -> None:
        left = read(servers, prefix + topic)
        if kind == "aggregate":
            frame, mode = left.groupBy((f.col("value").cast("int") % 7).alias("key")).count(), "complete"
        else:
            # Each pair comes out once, when the later one of the two has arrived.
            right = read(servers, prefix + other).withColumnRenamed("value", "other")
            frame, mode = left.join(right, f.expr("value = other")), "append"

        def take(batch: Any, _: int) -> None:
            if kind == "aggregate":
                totals.update({str(row["key"]): row["count"] for row in batch.collect()})
            else:
                for row in batch.collect():
                    totals[row["value"]] = totals.get(row["value"], 0) + 1

        run(frame, location, batch_does=take, mode=mode)

    query(mirrored.source, "")
    # Read before the failover by half of the join only: the other half is in the state.
    produce(mirrored.source, topic, 200, first=300)
    query(mirrored.source, "")
    for name in (topic, other):
        mirrored.wait_for_copy("other", name)
    groups = new_group()
    done = cli(
        *("failover", "apply", location, groups, "--prefix", "other.", "--syncs-topic", SYNCS["other"]),
        *(
            "--bootstrap-server",
            mirrored.source,
            "--to-bootstrap-server",
            mirrored.target,
            "--quiet-period",
            "0",
        ),
    )
    assert done.code == 0, done
    produce(mirrored.target, f"other.{topic}", 100, first=500)
    produce(mirrored.target, f"other.{other}", 300, first=300)
    query(mirrored.target, "other.")
    committed = mirrored.values(mirrored.on_source, TopicPartition(topic, 1))
    if kind == "aggregate":
        values = [*range(600), *(int(value or 0) for value in committed)]
        assert totals == {str(key): sum(value % 7 == key for value in values) for key in range(7)}
    else:
        assert totals == {str(value): 1 for value in range(600)}
