"""Groups that follow queries as Kafka's own tool shows them, through trouble, and under the launcher."""

import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pyspark
import pytest
from breakable_kafka import BreakableKafka
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.errors import StreamingQueryException

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerUnavailableError,
    DriftError,
    GroupActiveError,
    PlanRefusedError,
)
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark import spark_py_files
from airflow_kafka_offsets.spark.jvm_client import JvmOffsetsClient
from airflow_kafka_offsets.spark.listener import launcher
from airflow_kafka_offsets.spark.listener import listener as listener_module
from airflow_kafka_offsets.spark.listener.listener import KafkaOffsetCommitterListener, committing

OPTION = "consumer.commit.groupid"
QUERIES = 50 if os.environ.get("LONG_TESTS") else 10
PASSWORD = "can-we-fix-it"
LOGIN = (
    f'org.apache.kafka.common.security.scram.ScramLoginModule required username="bob" password="{PASSWORD}";'
)


@pytest.fixture
def describe(kafka_tools):
    """describe(group) -> {(topic, partition): (offset, lag)} as Kafka's own tool shows it."""

    def rows(group):
        found = kafka_tools.describe_rows(group)
        return {(row["topic"], row["partition"]): (row["current_offset"], row["lag"]) for row in found}

    return rows


def test_kafkas_describe_follows_a_union_into_a_kafka_sink_batch_by_batch(
    spark, stream, make_topic, produce, bootstrap_servers, location, new_group, describe
):
    first, second, sink = make_topic(2), make_topic(1), make_topic(1)
    groups = [new_group(), new_group()]

    def shown():
        return {row: found for group in groups for row, found in describe(group).items()}

    def lag_free(ends):
        return {(first, 0): (ends[0], 0), (first, 1): (0, 0), (second, 0): (ends[1], 0)}

    produce(first, {0: 4})
    produce(second, {0: 2})
    union = stream(first, **{OPTION: groups[0]}).union(stream(second, **{OPTION: groups[1]}))
    with committing(spark, raise_errors=True) as listener:
        writer = union.select("value").writeStream.format("kafka").option("topic", sink)
        writer = writer.option("kafka.bootstrap.servers", bootstrap_servers)
        query = writer.option("checkpointLocation", location).trigger(processingTime="0 seconds").start()
        for ends in [(4, 2), (7, 2), (7, 5)]:
            query.processAllAvailable()
            # A batch's event comes after the batch.
            listener.flush()
            assert shown() == lag_free(ends)
            produce(first if ends == (4, 2) else second, {0: 3})
        query.processAllAvailable()
        query.stop()
    assert shown() == lag_free((7, 8))


def test_a_group_with_members_is_theirs(
    spark, stream, run, make_topic, produce, location, new_group, member, holds
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    member(group, topic)
    with committing(spark) as listener:
        run(stream(topic, **{OPTION: group}), location)
    (error,) = listener.errors
    assert isinstance(error, GroupActiveError)
    assert holds(group) == {}


def test_a_topic_of_a_pattern_that_goes_and_comes_back_is_followed_as_a_new_one(
    spark,
    stream,
    start,
    run,
    make_topic,
    produce,
    location,
    new_group,
    holds,
    bootstrap_servers,
    wait_for_topic,
    wait_until,
):
    topic, group = make_topic(1), new_group()
    other = f"{topic}-more"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def create_with(records):
        def created():
            error = admin.create_topics([NewTopic(other, 1)])[other].exception(20)
            assert error is None or "TOPIC_ALREADY_EXISTS" in repr(error), error  # it is not gone yet
            return error is None

        wait_until(created)
        wait_for_topic(other, 1)
        produce(other, {0: records})
        wait_until(lambda: holds(group).get((other, 0)) == records)

    produce(topic, {0: 1})
    frame = stream(subscribePattern=f"{topic}.*", failOnDataLoss="false", **{OPTION: group})
    with committing(spark, raise_errors=True):
        query = start(frame, location, processingTime="200 milliseconds")
        create_with(5)
        admin.delete_topics([other])[other].result(20)
        wait_until(lambda: (other, 0) not in holds(group))
        produce(topic, {0: 1})
        wait_until(lambda: holds(group) == {(topic, 0): 2})
        create_with(2)
        query.stop()
    produce(other, {0: 1})
    with committing(spark, raise_errors=True):
        run(frame, location)
    assert holds(group) == {(topic, 0): 2, (other, 0): 3}


def test_a_query_that_goes_on_in_a_topic_that_was_created_again_ends_with_an_error(
    spark, stream, start, make_topic, produce, location, new_group, holds, recreate, wait_until
):
    topic, group, read = make_topic(1), new_group(), []

    def collect(batch, batch_id):
        read.extend(sorted(row.offset for row in batch.select("offset").collect()))
        if batch_id == 1:
            recreate(topic, 1)
            produce(topic, {0: 6})

    produce(topic, {0: 3})
    with committing(spark) as listener:
        query = start(
            stream(topic, **{OPTION: group}), location, batch_does=collect, processingTime="0 seconds"
        )
        wait_until(lambda: holds(group) == {(topic, 0): 3})
        produce(topic, {0: 1})
        query.processAllAvailable()
        query.stop()
    with pytest.raises(DriftError, match=f"topic '{topic}' was deleted and created again: what query"):
        listener.raise_errors()
    # Spark has not noticed it: the first four records of the new topic were never read.
    assert (read, holds(group)) == ([0, 1, 2, 3, 4, 5], {(topic, 0): 6})


def test_a_query_whose_topic_was_created_again_between_two_runs_ends_with_an_error(
    spark, stream, run, make_topic, produce, location, new_group, holds, recreate, wait_until
):
    topic, group = make_topic(1), new_group()
    frame = stream(topic, **{OPTION: group})
    produce(topic, {0: 3})
    with committing(spark, raise_errors=True):
        run(frame, location)
    planned = SparkCheckpoint(location).read().batch_timestamp_ms or 0
    recreate(topic, 1)
    wait_until(lambda: time.time() * 1_000 > planned + 1_000)
    produce(topic, {0: 5})
    with committing(spark) as listener:
        run(frame, location)
    # Spark has not noticed it: the first three records of the new topic were never read.
    with pytest.raises(DriftError, match=f"topic '{topic}' was deleted and created again: what query"):
        listener.raise_errors()
    # A retry of the job, which has nothing left to read, does not hide it.
    with committing(spark) as listener:
        run(frame, location)
    with pytest.raises(PlanRefusedError, match=f"topic '{topic}' was deleted and created again: the last"):
        listener.raise_errors()
    assert holds(group) == {(topic, 0): 5}
    with committing(spark, raise_errors=True, allow_new_cluster=True):
        run(frame, location)
    assert holds(group) == {(topic, 0): 5}


def test_a_topic_that_was_created_again_and_is_shorter_is_not_committed_unread(
    spark, stream, run, make_topic, produce, location, new_group, holds, recreate
):
    topic, group = make_topic(2), new_group()
    frame = stream(topic, **{OPTION: group})
    produce(topic, {0: 5, 1: 1})
    run(frame, location)
    recreate(topic, 2)
    # Shorter in one of its partitions.
    produce(topic, {0: 2, 1: 3})
    with committing(spark), pytest.raises(StreamingQueryException, match="data may have been"):
        run(frame, location)
    assert holds(group) == {}


@pytest.mark.long
def test_many_quick_queries_leave_no_thread_and_no_client(
    spark, stream, start, make_topic, produce, tmp_path, new_group, holds
):
    def clients():
        threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet().toString()
        return threads.count("kafka-admin-client-thread")

    topic, groups = make_topic(1), [new_group() for _ in range(QUERIES)]
    produce(topic, {0: 2})
    # PySpark starts two threads with the first listener of a process, and keeps them.
    before, first_group = clients(), new_group()
    with committing(spark):
        query = start(stream(topic, **{OPTION: first_group}), str(tmp_path / first_group), availableNow=True)
        assert query.awaitTermination(60)
    threads = set(threading.enumerate())
    listener = KafkaOffsetCommitterListener(spark)
    spark.streams.addListener(listener)
    for first in range(0, QUERIES, 10):
        queries = [
            start(stream(topic, **{OPTION: group}), str(tmp_path / group), availableNow=True)
            for group in groups[first : first + 10]
        ]
        for query in queries:
            assert query.awaitTermination(60)
        listener.flush()
        assert clients() == before
    listener.stop()
    for thread in set(threading.enumerate()) - threads:
        thread.join(1)
    assert not {thread for thread in threading.enumerate() if thread not in threads}
    assert listener.errors == []
    for group in groups:
        assert holds(group) == {(topic, 0): 2}


# A broker in trouble


@pytest.fixture(scope="module")
def other_kafka():
    """A broker on which bob may read topics, but no group."""
    with BreakableKafka(
        users={"alice": "wonderland", "bob": PASSWORD},
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
            "offsets.retention.minutes": "8",
        },
    ) as kafka:
        yield kafka


@pytest.fixture
def troubled(other_kafka, make_topic, produce, new_group):
    """(topic with 3 records, group, options of a source) on that broker."""
    topic, group = make_topic(1, on=other_kafka.bootstrap_servers), new_group()
    produce(topic, {0: 3}, on=other_kafka.bootstrap_servers)
    return topic, group, {"kafka.bootstrap.servers": other_kafka.bootstrap_servers, OPTION: group}


@pytest.fixture
def impatient(monkeypatch):
    """Questions to brokers that end after two seconds."""
    monkeypatch.setattr(listener_module, "REQUEST", 2.0)


def held_on(kafka, group):
    with OffsetsClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        return {tuple(tp): commit.offset for tp, commit in client.committed_everywhere(group).items()}


def test_a_broker_that_is_down_during_the_query_gets_the_commit_when_it_is_back(
    spark, stream, run, location, other_kafka, troubled, impatient
):
    topic, group, options = troubled

    def crash(batch, batch_id):
        batch.collect()
        other_kafka.kill()

    with committing(spark, raise_errors=True) as listener:
        run(stream(topic, **options), location, batch_does=crash)
        other_kafka.restart()
    assert held_on(other_kafka, group) == {(topic, 0): 3}
    assert listener.errors == []


def test_a_broker_that_stays_silent_costs_the_query_nothing_and_its_end_a_bounded_time(
    spark, stream, run, location, other_kafka, troubled, impatient
):
    topic, group, options = troubled

    def freeze(batch, batch_id):
        batch.collect()
        other_kafka.freeze()

    began = []
    try:
        # The request ends at the same moment as the wait for it: on a busy machine the wait is first.
        with pytest.raises(BrokerUnavailableError, match="no usable answer from|was not done within"):
            with committing(spark, raise_errors=True, timeout=5):
                began.append(run(stream(topic, **options), location, batch_does=freeze) and time.monotonic())
        assert time.monotonic() - began[0] < 20
    finally:
        other_kafka.thaw()
    # The next run, with nothing new, makes up for it.
    with committing(spark, raise_errors=True):
        run(stream(topic, **options), location)
    assert held_on(other_kafka, group) == {(topic, 0): 3}


def test_a_user_who_may_not_read_the_group_is_told_what_to_grant(
    spark, stream, run, location, other_kafka, troubled, caplog
):
    topic, group, options = troubled
    options |= {
        "kafka.bootstrap.servers": other_kafka.sasl_bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": LOGIN,
    }
    admin = AdminClient({"bootstrap.servers": other_kafka.bootstrap_servers, "log_level": 0})

    def grant(kind, name):
        bob = ("User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW)
        binding = AclBinding(kind, name, ResourcePatternType.LITERAL, *bob)
        admin.create_acls([binding])[binding].result(20)

    grant(ResourceType.TOPIC, topic)
    with pytest.raises(BrokerAuthenticationError, match=f"{group}.*grant it Read on the group"):
        with committing(spark, raise_errors=True):
            run(stream(topic, **options), location)
    assert PASSWORD not in caplog.text
    grant(ResourceType.GROUP, group)
    with committing(spark, raise_errors=True):
        run(stream(topic, **options), location)
    assert held_on(other_kafka, group) == {(topic, 0): 3}


def test_the_driver_learns_how_long_a_broker_keeps_groups_if_it_may(spark, other_kafka):
    def minutes(**settings):
        with closing(JvmOffsetsClient(spark._jvm, settings)) as client:
            return client.offsets_retention_minutes()

    assert minutes(**{"bootstrap.servers": other_kafka.bootstrap_servers}) == 8
    bob = {
        "bootstrap.servers": other_kafka.sasl_bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": LOGIN,
    }
    assert minutes(**bob) is None


def test_the_driver_reads_ids_and_times_as_the_operators_do(
    spark, stream, run, make_topic, produce, new_group, location, broker, bootstrap_servers
):
    # Half of all ids have a letter that the forms of base64 write in different ways.
    topics = [make_topic(1) for _ in range(5)]
    group, both = new_group(), [TopicPartition(topic, 0) for topic in topics[:2]]
    for topic in topics[:2]:
        produce(topic, {0: 3})
    settings = {"bootstrap.servers": bootstrap_servers}
    with closing(JvmOffsetsClient(spark._jvm, settings)) as client:
        assert client.log_ids([*topics, "not-there"]) == broker.log_ids([*topics, "not-there"])
        for moment, first in ((0, 0), (int(time.time() * 1_000) + 60_000, None)):
            assert client.offsets_for_time(both, moment) == dict.fromkeys(both, first)
            assert broker.offsets_for_time(both, moment) == dict.fromkeys(both, first)
    with committing(spark, raise_errors=True):
        run(stream(",".join(topics[:2]), **{OPTION: group}), location)
    now = broker.log_ids(topics)
    for tp, commit in broker.committed_everywhere(group).items():
        made = CommitMetadata.parse(commit.metadata)
        assert (made.cluster, made.topic) == (now.cluster, now.topics[tp.topic])


# The launcher

JOB = """
import sys
from pyspark.sql import SparkSession
import beside_the_job
import airflow_kafka_offsets

assert airflow_kafka_offsets.__file__.startswith(sys.argv[3]), airflow_kafka_offsets.__file__
assert "confluent_kafka" not in sys.modules
spark = SparkSession.builder.getOrCreate().newSession()
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", sys.argv[1])
frame = reader.option("subscribe", sys.argv[2]).option("startingOffsets", "earliest").load()
writer = frame.writeStream.format("noop").option("checkpointLocation", sys.argv[4])
writer.trigger(availableNow=True).start().awaitTermination()
spark.stop()
print("arguments:", sys.argv[5:])
sys.exit(3)
"""

NOTHING_INSTALLED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("confluent_kafka", "fsspec", "airflow", "tenacity", "click", "rich"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
sys.path[:] = [entry for entry in sys.path if entry != {package!r}]
"""


def test_the_launcher_runs_a_job_with_nothing_but_the_zip(
    spark_settings, make_topic, produce, bootstrap_servers, tmp_path, new_group, holds, broker
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 5})
    elsewhere, job = tmp_path / "application", tmp_path / "jobs" / "job.py"
    elsewhere.mkdir()
    job.parent.mkdir()
    application = elsewhere / "launcher.py"
    application.write_bytes(Path(launcher.launcher_path()).read_bytes())
    job.write_text(JOB)
    (job.parent / "beside_the_job.py").touch()
    package = str(Path(launcher.__file__).parents[2])
    (elsewhere / "sitecustomize.py").write_text(NOTHING_INSTALLED.format(package=package))
    zipped = spark_py_files()
    settings = [word for name, value in spark_settings.items() for word in ("--conf", f"{name}={value}")]
    arguments = [bootstrap_servers, topic, zipped, str(tmp_path / "checkpoint"), "--its", "own"]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(elsewhere),
        "AIRFLOW_CTX_DAG_ID": "orders",
        "AIRFLOW_CTX_DAG_RUN_ID": "manual__1",
        "AIRFLOW_CTX_TASK_ID": "copy",
    }
    done = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[1]", *settings, "--py-files", zipped, str(application)),
            *("--group-id", group, str(job), *arguments),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr[-3000:]
    assert "arguments: ['--its', 'own']" in done.stdout
    assert holds(group) == {(topic, 0): 5, (topic, 1): 0}
    (text,) = {commit.metadata for commit in broker.committed_everywhere(group).values()}
    made = CommitMetadata.parse(text)
    assert (made.dag, made.run, made.task) == ("orders", "manual__1", "copy")
