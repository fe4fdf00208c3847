"""The broken pipelines of the runbook, each made by a real Spark query on a real Kafka."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import until

from airflow_kafka_offsets.cli import cli
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition as LogPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

DEADLINE = 60.0
HOUR = 3_600_000
PARTITIONS = 2

KILLED_RESET = """
import os, signal
from airflow_kafka_offsets.cli import main
from airflow_kafka_offsets.kafka.client import OffsetsClient

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

OffsetsClient.commit = die
main()
"""
"""A command that is killed between the checkpoint and the group."""


class BrokenPipeline(NamedTuple):
    """A query, its topic and its group, which all have the same name."""

    servers: str
    directory: Path
    prefix: str = ""
    own_name: str = "orders"
    other_servers: str | None = None
    """A second cluster, which has a topic of the same name."""

    @property
    def name(self) -> str:
        return f"{self.prefix}{self.own_name}"

    @property
    def group(self) -> str:
        return f"{self.name}-etl"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoints" / self.name

    @property
    def output(self) -> Path:
        return self.directory / self.name

    def make_topic(self, **settings: str) -> None:
        new = NewTopic(self.name, PARTITIONS, config=settings)
        admin = _admin(self.servers)
        admin.create_topics([new], request_timeout=DEADLINE)[self.name].result(DEADLINE)
        with OffsetsClient({"bootstrap.servers": self.servers}) as client:
            until(lambda: _is_there(client, self.name))

    def produce(
        self, records: Mapping[int, int], *, values: Mapping[int, bytes] | None = None, age: float = 0
    ) -> None:
        """
        Write so many records into each partition.

        :param values: the value of the last record of a partition.
        :param age: milliseconds since the first record of each partition.
        """
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        now = int(time.time() * 1_000)
        for partition, count in records.items():
            for number in range(count):
                value = b"%d" % number
                if number == count - 1 and values and partition in values:
                    value = values[partition]
                producer.produce(self.name, value, partition=partition, timestamp=int(now - age + number))
        assert producer.flush(DEADLINE) == 0

    def delete_records(self, before: Mapping[int, int]) -> None:
        """Delete records as retention does."""
        wanted = [TopicPartition(self.name, partition, offset) for partition, offset in before.items()]
        for deleted in _admin(self.servers).delete_records(wanted).values():
            deleted.result(DEADLINE)

    def job(self, spark: SparkSession, **options: Any) -> str | None:
        """
        Run the query until it has read all there is, and return its error if it fails.

        Each record becomes a file of its own, so that a batch that is written twice changes nothing.
        """
        from pyspark.errors import StreamingQueryException

        output = self.output

        def write(batch: DataFrame, _: int) -> None:
            output.mkdir(parents=True, exist_ok=True)
            rows = batch.selectExpr("partition", "offset", "CAST(CAST(value AS STRING) AS INT) AS amount")
            for row in rows.collect():
                (output / f"{row['partition']}-{row['offset']}.json").write_text(json.dumps(row.asDict()))

        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", self.name).option("startingOffsets", "earliest")
        writer = reader.options(**options).load().writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(DEADLINE)
        except StreamingQueryException as error:
            return _cause(str(error))
        return None

    def commit(self) -> None:
        """Commit as the command line does, in this process."""
        command = ("group", "commit", self.group, "--checkpoint", str(self.checkpoint), "--execute")
        done = CliRunner().invoke(cli, [*command, "--bootstrap-server", self.servers])
        assert done.exit_code == 0, done.output


def _cause(error: str) -> str:
    """Return the lines that say what is wrong and where, without the stack."""
    lines = error.splitlines()
    reason = next(line for line in lines if "Exception: " in line)
    return "\n".join([reason, *(line for line in lines if line.startswith("Current ") and "Offsets" in line)])


@functools.cache  # a client that is collected forgets its requests
def _admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def _is_there(client: OffsetsClient, topic: str) -> bool:
    with contextlib.suppress(KafkaOffsetsError):
        return bool(client.log_ranges([LogPartition(topic, number) for number in range(PARTITIONS)]))
    return False


def lag_grows(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """The query has read all, and the last batch was not committed."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    pipeline.produce({0: 640, 1: 598})
    pipeline.job(spark)


def headroom_is_short(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """The query was away, and retention deletes the next record in ten minutes."""
    pipeline.make_topic(**{"retention.ms": str(HOUR)})
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    pipeline.produce({0: 900, 1: 300}, age=HOUR * 5 / 6)


def records_were_deleted(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """Retention was quicker than the query, which has begun a batch that it cannot finish."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    pipeline.produce({0: 900, 1: 300})
    pipeline.delete_records({0: 900})
    assert pipeline.job(spark) is not None


def a_batch_fails_for_ever(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """The job cannot parse the last record of a partition."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    pipeline.produce({0: 900, 1: 300}, values={1: b"n/a"})
    assert pipeline.job(spark) is not None


def reprocess_since_a_time(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """Half of the table is gone."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600}, age=30 * HOUR)
    pipeline.produce({0: 900, 1: 300}, age=2 * HOUR)
    pipeline.job(spark)
    pipeline.commit()
    for number in range(600, 1500):
        (pipeline.output / f"0-{number}.json").unlink()


def drift(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """The query was given a new checkpoint, and read all again."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    pipeline.produce({0: 900, 1: 300})
    shutil.rmtree(pipeline.checkpoint)
    pipeline.job(spark)


def read_what_was_skipped(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """The query was given a new checkpoint, which began at the end of the topic."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    pipeline.produce({0: 900, 1: 300})
    shutil.rmtree(pipeline.checkpoint)
    pipeline.job(spark, startingOffsets="latest")
    pipeline.produce({0: 10, 1: 10})
    pipeline.job(spark)


def a_move_stopped_half_way(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """A reset was killed between the checkpoint and the group."""
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    reset = ("group", "reset", pipeline.group, "--checkpoint", str(pipeline.checkpoint), "--shift-by", "-100")
    command = [*reset, "--quiet-period", "0", "--execute", "--bootstrap-server", pipeline.servers]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_RESET, *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode < 0, done.stderr


def another_cluster(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """A second cluster has the newer half of the topic, and the group as a mirror translates it."""
    assert pipeline.other_servers is not None
    pipeline.make_topic()
    pipeline.produce({0: 600, 1: 600})
    pipeline.job(spark)
    pipeline.commit()
    mirror = pipeline._replace(servers=pipeline.other_servers)
    mirror.make_topic()
    mirror.produce({0: 240, 1: 220})
    partitions = [TopicPartition(pipeline.name, number) for number in range(PARTITIONS)]
    with _group_member(pipeline) as member:
        commits = member.committed(partitions, timeout=DEADLINE)
    with _group_member(mirror) as member:
        translated = [
            TopicPartition(each.topic, each.partition, 200, metadata=each.metadata) for each in commits
        ]
        member.commit(offsets=translated, asynchronous=False)


def a_whole_fleet(pipeline: BrokenPipeline, spark: SparkSession) -> None:
    """Kafka has forgotten the groups of three pipelines."""
    fleet = [pipeline._replace(own_name=name) for name in ("orders", "payments", "clicks")]
    for each in fleet:
        each.make_topic()
        each.produce({0: 600, 1: 600})
        each.job(spark)
    fleet[0].commit()
    listed = [{"group_id": each.group, "checkpoint_location": str(each.checkpoint)} for each in fleet]
    (pipeline.directory / "pipelines.json").write_text(json.dumps(listed))


@contextlib.contextmanager
def _group_member(pipeline: BrokenPipeline) -> Iterator[Consumer]:
    """Yield a client of the group that never joins it."""
    client = Consumer({"bootstrap.servers": pipeline.servers, "group.id": pipeline.group, "log_level": 0})
    try:
        yield client
    finally:
        client.close()


SITUATIONS: dict[str, Callable[[BrokenPipeline, SparkSession], None]] = {
    "lag-grows": lag_grows,
    "headroom-is-short": headroom_is_short,
    "records-were-deleted": records_were_deleted,
    "a-batch-fails-for-ever": a_batch_fails_for_ever,
    "reprocess-since-a-time": reprocess_since_a_time,
    "drift": drift,
    "read-what-was-skipped": read_what_was_skipped,
    "a-move-stopped-half-way": a_move_stopped_half_way,
    "discard-the-batch": records_were_deleted,
    "another-cluster": another_cluster,
    "a-whole-fleet": a_whole_fleet,
}
"""Anchor of the runbook -> what builds its situation."""
