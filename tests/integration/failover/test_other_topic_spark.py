"""A real Spark query continues on another topic of its cluster with its state: each record counts once."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_totals_are_exact_over_a_move_to_a_copy(
    spark, run, location, make_topic, produce, new_group, broker, bootstrap_servers, cli
):
    from pyspark.sql import functions as f

    old, new = make_topic(2), make_topic(2)
    produce(old, {0: 30, 1: 20})
    produce(new, {0: 4})
    totals: dict[int, int] = {}

    def query(topic: str) -> None:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
        frame = reader.option("startingOffsets", "earliest").option("subscribe", topic).load()
        key = (f.col("value").cast("string").cast("int") % 7).alias("key")
        run(
            frame.groupBy(key).count(),
            location,
            batch_does=lambda batch, _: totals.update({row["key"]: row["count"] for row in batch.collect()}),
            mode="complete",
        )

    query(old)
    produce(old, {0: 5, 1: 5})
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0, "linger.ms": 1})
    for number, end in ((0, 35), (1, 25)):
        broker.read_records(
            {TopicPartition(old, number): OffsetRange(0, end)},
            lambda tp, each: producer.produce(
                new, each.value, each.key, partition=tp.partition, timestamp=each.timestamp
            ),
        )
    assert producer.flush(30) == 0
    servers = ("--bootstrap-server", bootstrap_servers, "--to-bootstrap-server", bootstrap_servers)
    names = ("--topic-map", f"{old}={new}", "--quiet-period", "0")
    done = cli("failover", "apply", location, new_group(), *servers, *names)
    assert done.code == 0, done
    produce(new, {1: 3})
    query(new)
    values = [*range(30), *range(20), *range(5), *range(5), *range(3)]
    assert totals == {key: sum(value % 7 == key for value in values) for key in range(7)}
