"""A real Spark query goes on on the mirror with its state: each record counts once."""

from typing import Any

import pytest
from mirrored_clusters import SYNCS, Mirrored, produce, produce_in_transactions

from airflow_kafka_offsets.model.offsets import TopicPartition

STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def values_of(spark: Any, servers: str, topic: str) -> Any:
    """Return a stream of the values of a topic's committed records."""
    from pyspark.sql import functions as f

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
    return reader.option("subscribe", topic).load().select(f.col("value").cast("string").alias("value"))


def fail_over(cli: Any, mirrored: Mirrored, location: str, group: str) -> None:
    clusters = ("--bootstrap-server", mirrored.source, "--to-bootstrap-server", mirrored.target)
    names = ("--prefix", "other.", "--syncs-topic", SYNCS["other"])
    done = cli("failover", "apply", location, group, *names, *clusters, "--quiet-period", "0")
    assert done.code == 0, done


@pytest.mark.parametrize("kind", ["aggregate", pytest.param("join", marks=pytest.mark.long)])
def test_totals_are_exact_over_a_failover(mirrored: Mirrored, spark, run, location, new_group, cli, kind):
    from pyspark.sql import functions as f

    topic, other = mirrored.topic("other", partitions=2), mirrored.topic("other")
    produce(mirrored.source, topic, 300)
    produce_in_transactions(mirrored.source, topic, 100, partition=1, first=1_000)
    produce(mirrored.source, other, 300)

    def read(servers: str, name: str) -> Any:
        return values_of(spark, servers, name)

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
    fail_over(cli, mirrored, location, new_group())
    produce(mirrored.target, f"other.{topic}", 100, first=500)
    produce(mirrored.target, f"other.{other}", 300, first=300)
    query(mirrored.target, "other.")
    committed = mirrored.values(mirrored.on_source, TopicPartition(topic, 1))
    if kind == "aggregate":
        values = [*range(600), *(int(value or 0) for value in committed)]
        assert totals == {str(key): sum(value % 7 == key for value in values) for key in range(7)}
    else:
        assert totals == {str(value): 1 for value in range(600)}


@pytest.fixture
def rocksdb(spark):
    """Spark keeps the state in RocksDB, as transformWithState needs it."""
    spark.conf.set(STORE, ROCKSDB)
    yield
    spark.conf.unset(STORE)


@pytest.mark.long
def test_the_state_of_transform_with_state_moves_along(
    mirrored: Mirrored, spark, run, location, new_group, cli, rocksdb
):
    from pyspark.sql import GroupedData, Row
    from pyspark.sql import functions as f
    from pyspark.sql.streaming import StatefulProcessor

    if not hasattr(GroupedData, "transformWithState"):
        pytest.skip("transformWithState with rows needs PySpark 4.1 or later")

    class Total(StatefulProcessor):  # in the test, so that it is sent to Spark's workers by value
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "records long, sum long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            records, total = self.total.get() if self.total.exists() else (0, 0)
            for row in rows:
                records, total = records + 1, total + int(row["value"])
            self.total.update((records, total))
            yield Row(key=key[0], records=records, sum=total)

    topic = mirrored.topic("other", partitions=2)
    produce(mirrored.source, topic, 300)
    produce_in_transactions(mirrored.source, topic, 100, partition=1, first=1_000)
    totals: dict[int, tuple[int, int]] = {}

    def query(servers: str, name: str) -> None:
        frame = values_of(spark, servers, name).withColumn("key", f.col("value").cast("int") % 7)
        frame = frame.groupBy("key").transformWithState(
            Total(), "key int, records long, sum long", "Update", "None"
        )

        def take(batch: Any, _: int) -> None:
            totals.update({row["key"]: (row["records"], row["sum"]) for row in batch.collect()})

        run(frame, location, batch_does=take, mode="update")

    query(mirrored.source, topic)
    produce(mirrored.source, topic, 200, first=300)
    query(mirrored.source, topic)
    mirrored.wait_for_copy("other", topic)
    fail_over(cli, mirrored, location, new_group())
    produce(mirrored.target, f"other.{topic}", 100, first=500)
    query(mirrored.target, f"other.{topic}")
    committed = mirrored.values(mirrored.on_source, TopicPartition(topic, 1))
    values = [*range(600), *(int(value or 0) for value in committed)]
    by_key = {key: [value for value in values if value % 7 == key] for key in range(7)}
    assert totals == {key: (len(each), sum(each)) for key, each in by_key.items()}
