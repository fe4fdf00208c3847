"""
The experiment of ``sinks.py``, in one Spark: writes what became of the records of each sink to a file.

Each query reads 30 records in three batches. Then its checkpoint is moved so that batch ids come again with
other records, and 20 new records are read. And a query whose sink records its batches loses records of a
batch that it has begun: the batch is discarded as the tool allows it, and the query reads on.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model import offsets
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
    from airflow_kafka_offsets.model.checkpoint_policy import Sink as SinkName

DEADLINE = 120
RECORDS, NEW = range(30), range(30, 50)
HARMLESS = CheckpointPolicy(on_pending_batch="discard", sink="noop")
"""Not true of most of these sinks: what the refusals prevent is what is to be seen."""


class Sink:
    """
    Somewhere to write to.

    :param spark: the session.
    :param servers: of Kafka.
    :param home: a directory for it alone.
    """

    recording: SinkName | None = None
    """Its name, if it records the batches that it has written."""

    def __init__(self, spark: SparkSession, servers: str, home: Path) -> None:
        self.spark, self.servers, self.home = spark, servers, home
        self.place = str(home / "out")
        self.table = f"local.experiment.{home.name.replace('-', '_')}"
        self.set_up()

    def set_up(self) -> None:
        """Make what has to be there before the first batch."""

    def write(self, frame: DataFrame) -> Any:
        """Return the writer of a query."""
        raise NotImplementedError

    def read(self) -> Iterable[int]:
        """Return the records that are there."""
        raise NotImplementedError


class Overwriting(Sink):
    def write(self, frame: DataFrame) -> Any:
        return frame.writeStream.foreachBatch(self._write)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        Path(self.place).mkdir(exist_ok=True)
        for row in batch.collect():
            Path(self.place, str(row["n"])).touch()

    def read(self) -> Iterable[int]:
        return [int(file.name) for file in Path(self.place).iterdir()]


class Appending(Sink):
    def write(self, frame: DataFrame) -> Any:
        return frame.writeStream.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(self.place))

    def read(self) -> Iterable[int]:
        return [row["n"] for row in self.spark.read.parquet(self.place).collect()]


class Transactions(Sink):
    def write(self, frame: DataFrame) -> Any:
        return frame.writeStream.foreachBatch(self._write)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", "orders").option("txnVersion", batch_id).save(self.place)

    def read(self) -> Iterable[int]:
        return [row["n"] for row in self.spark.read.format("delta").load(self.place).collect()]


class Kafka(Sink):
    def set_up(self) -> None:
        self.topic = self.home.name
        make_topic(self.servers, self.topic)

    def write(self, frame: DataFrame) -> Any:
        writer = frame.selectExpr("CAST(n AS STRING) AS value").writeStream.format("kafka")
        return writer.option("kafka.bootstrap.servers", self.servers).option("topic", self.topic)

    def read(self) -> Iterable[int]:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        frame = reader.option("subscribe", self.topic).load().selectExpr("CAST(value AS STRING) AS n")
        return [int(row["n"]) for row in frame.collect()]


class File(Sink):
    kind = "parquet"
    recording: SinkName | None = "file"

    def write(self, frame: DataFrame) -> Any:
        return frame.writeStream.format(self.kind).option("path", self.place)

    def read(self) -> Iterable[int]:
        return [row["n"] for row in self.spark.read.format(self.kind).load(self.place).collect()]


class Delta(File):
    kind = "delta"
    recording = "delta"


class Iceberg(Sink):
    recording = "iceberg"

    def set_up(self) -> None:
        warehouse = self.spark.conf.get("spark.sql.catalog.local.warehouse")
        self.place = f"{warehouse}/experiment/{self.table.rpartition('.')[2]}"
        self.spark.sql(f"CREATE TABLE {self.table} (n INT) USING iceberg")

    def write(self, frame: DataFrame) -> Any:
        return IcebergWriter(frame.writeStream.format("iceberg"), self.table)

    def read(self) -> Iterable[int]:
        return [row["n"] for row in self.spark.table(self.table).collect()]


class IcebergWriter:
    """A writer whose ``start`` names the table."""

    def __init__(self, writer: Any, table: str) -> None:
        self.writer, self.table = writer, table

    def option(self, name: str, value: str) -> IcebergWriter:
        return IcebergWriter(self.writer.option(name, value), self.table)

    def trigger(self, **trigger: Any) -> IcebergWriter:
        return IcebergWriter(self.writer.trigger(**trigger), self.table)

    def start(self) -> Any:
        return self.writer.toTable(self.table)


class Hudi(File):
    kind = "hudi"
    recording = "hudi"

    def write(self, frame: DataFrame) -> Any:
        options = {
            "hoodie.table.name": self.home.name.replace("-", "_"),
            "hoodie.datasource.write.recordkey.field": "n",
            "hoodie.datasource.write.operation": "insert",
            "hoodie.insert.shuffle.parallelism": "1",
            **self.identifier(),
        }
        return super().write(frame).options(**options).outputMode("append")

    def identifier(self) -> dict[str, str]:
        return {}


class HudiIdentified(Hudi):
    def identifier(self) -> dict[str, str]:
        return {"hoodie.datasource.write.streaming.checkpoint.identifier": "orders"}


SINKS: dict[str, type[Sink]] = {
    "foreachBatch that overwrites": Overwriting,
    "foreachBatch that appends": Appending,
    "foreachBatch with txnVersion": Transactions,
    "kafka": Kafka,
    "file": File,
    "delta": Delta,
    "iceberg": Iceberg,
    "hudi": Hudi,
    "hudi with an identifier": HudiIdentified,
}


def make_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE)


def produce(servers: str, topic: str, numbers: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        producer.produce(topic, b"%d" % number)
    assert producer.flush(DEADLINE) == 0


def truncate(location: str) -> None:
    """Go back to batch 0: batches 1 and 2 come again."""
    apply_checkpoint_plan(
        SparkCheckpoint(location), plan_truncate(SparkCheckpoint(location), 0, HARMLESS), quiet_period=0
    )


def discard(location: str) -> None:
    """Give up batch 2, which the sink has and Spark has not, as after a crash between the two."""
    for name in ("2", ".2.crc"):
        Path(location, "commits", name).unlink(missing_ok=True)
    checkpoint = SparkCheckpoint(location)
    plan = plan_seek(checkpoint, checkpoint.read().kafka_offsets, HARMLESS)
    apply_checkpoint_plan(checkpoint, plan, quiet_period=0)


class Query:
    """A query that reads what is produced into a topic, and ends."""

    def __init__(self, sink: Sink, topic: str) -> None:
        self.sink, self.topic, self.location = sink, topic, str(sink.home / "checkpoint")
        make_topic(sink.servers, topic)

    def run(self, numbers: range, write: Callable[[DataFrame], Any] | None = None) -> None:
        produce(self.sink.servers, self.topic, numbers)
        reader = self.sink.spark.readStream.format("kafka").option("subscribe", self.topic)
        reader = reader.option("kafka.bootstrap.servers", self.sink.servers)
        frame = reader.option("startingOffsets", "earliest").load()
        writer = (write or self.sink.write)(frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n"))
        query = writer.option("checkpointLocation", self.location).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(DEADLINE), "the query did not end"
        finally:
            query.stop()

    def fails(self, numbers: range, write: Callable[[DataFrame], Any] | None = None) -> bool:
        try:
            self.run(numbers, write)
        except StreamingQueryException:
            return True
        return False

    def read_three_batches(self) -> None:
        for part in (RECORDS[:10], RECORDS[10:20], RECORDS[20:]):
            self.run(part)
        assert sorted(self.sink.read()) == list(RECORDS), "the sink does not hold what was written"

    def result(self, expected: Iterable[int]) -> dict[str, int]:
        """Return how many of the expected records are lost, and how many of all are there twice."""
        found = Counter(self.sink.read())
        return {
            "lost": sum(number not in found for number in expected),
            "twice": sum(count > 1 for count in found.values()),
        }


def moved(query: Query, move: Callable[[str], None]) -> dict[str, int]:
    query.read_three_batches()
    move(query.location)
    for part in (NEW[:10], NEW[10:]):
        query.run(part)
    return query.result(NEW)


def after_data_loss(query: Query) -> dict[str, int] | str:
    """Delete records of a batch that was begun, discard the batch, and read on from the log start."""
    sink, location = query.sink, query.location
    if sink.recording is None:
        return "-"
    policy = CheckpointPolicy("discard", sink.recording, sink_location=sink.place)
    query.read_three_batches()
    # Written, and not finished: as after a crash between the two.
    commits = {
        path: path.read_bytes()
        for name in ("2", ".2.crc")
        if (path := Path(location, "commits", name)).exists()
    }
    for path in commits:
        path.unlink()
    (refusal,) = seek_to(location, query.topic, 20, policy).refusals
    assert "has recorded batch 2" in refusal, refusal
    for path, data in commits.items():
        path.write_bytes(data)
    # Begun, and not written.
    assert query.fails(NEW[:10], lambda frame: frame.writeStream.foreachBatch(_die))
    delete_records(sink.servers, query.topic, before=35)
    # Hudi's sink ends the process when a batch fails.
    assert sink.recording == "hudi" or (query.fails(range(0)) and query.fails(range(0)))
    plan = seek_to(location, query.topic, 35, policy)
    apply_checkpoint_plan(SparkCheckpoint(location), plan, quiet_period=0)
    query.run(NEW[10:])
    return query.result(NEW[5:])


def _die(batch: DataFrame, batch_id: int) -> None:
    raise RuntimeError("killed")


def seek_to(location: str, topic: str, offset: int, policy: CheckpointPolicy) -> CheckpointPlan:
    return plan_seek(SparkCheckpoint(location), {"0": {offsets.TopicPartition(topic, 0): offset}}, policy)


def delete_records(servers: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for deleted in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        deleted.result(DEADLINE)


EXPERIMENTS: dict[str, Callable[[Query], Any]] = {
    "truncate": lambda query: moved(query, truncate),
    "discard": lambda query: moved(query, discard),
    "data loss": after_data_loss,
}


def main() -> None:
    told = json.loads(sys.stdin.read())
    builder = SparkSession.builder.master("local[2]").appName("sinks")
    for name, value in told["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    report: dict[str, Any] = {}
    for name in told["sinks"]:
        for does, experiment in EXPERIMENTS.items():
            topic = f"{name.replace(' ', '-')}-{does.replace(' ', '-')}-{told['version']}".replace(".", "-")
            home = Path(told["directory"], f"{topic}-out")
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            try:
                found: Any = experiment(Query(SINKS[name](spark, told["servers"], home), topic))
            except Exception as error:  # noqa: BLE001  # the other sinks are of interest all the same
                found = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            print(told["version"], name, does, found, flush=True)
            report.setdefault(name, {})[does] = found
    Path(told["report"]).write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main()
