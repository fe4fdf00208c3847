from __future__ import annotations

import gc
import json
import logging
import sys
import threading
import time
import warnings

import pytest
from confluent_kafka import Consumer

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
DEADLINE = 60.0


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The Spark of all tests in this folder."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.delenv("SPARK_HOME", raising=False)
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars.packages", CONNECTOR)
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        # It logs once more when the interpreter ends and pytest has closed its streams.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        yield session
        session.stop()
        # PySpark keeps its JVM, and the pipes to it, for the next session; here there is none.
        gateway = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(DEADLINE)
        SparkContext._gateway = SparkContext._jvm = None
        del session, gateway
        with warnings.catch_warnings():
            # The sockets to the JVM are left to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(autouse=True)
def kafka_connection(bootstrap_servers, monkeypatch):
    """The connection ``kafka_default``."""
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def stream(spark, bootstrap_servers):
    """stream(topic, **options) -> a stream over it from the start; options are the Kafka source's."""

    def read(topic=None, **options):
        if topic is not None:
            options["subscribe"] = topic
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
        return reader.option("startingOffsets", "earliest").options(**options).load()

    return read


@pytest.fixture(scope="session")
def start(spark):
    """start(frame, location, availableNow=True) -> the running query; the keywords are its trigger."""
    queries = []

    def run(frame, location, *, batch_does=None, mode="append", **trigger):
        writer = frame.writeStream.option("checkpointLocation", location).outputMode(mode)
        writer = writer.format("noop") if batch_does is None else writer.foreachBatch(batch_does)
        query = writer.trigger(**trigger).start()
        queries.append(query)
        return query

    yield run
    for query in queries:
        query.stop()


@pytest.fixture(scope="session")
def run(start):
    """run(frame, location) -> the query, which has processed everything there was and ended."""

    def to_the_end(frame, location, **parameters):
        query = start(frame, location, availableNow=True, **parameters)
        assert query.awaitTermination(DEADLINE), "the query did not end"
        return query

    return to_the_end


@pytest.fixture
def commit():
    return lambda group, location, **parameters: CommitOffsetsOperator(
        task_id="commit", group_id=group, checkpoint_location=location, **parameters
    ).execute({})


@pytest.fixture
def holds(bootstrap_servers):
    """holds(group) -> {(topic, partition): offset} of everything that the group has committed."""

    def committed(group):
        return {tuple(tp): commit.offset for tp, commit in _commits(bootstrap_servers, group).items()}

    return committed


@pytest.fixture
def says(bootstrap_servers):
    """says(group) -> the metadata that is beside all its commits."""

    def metadata(group):
        (text,) = {commit.metadata for commit in _commits(bootstrap_servers, group).values()}
        return json.loads(text)

    return metadata


def _commits(bootstrap_servers, group):
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        return client.committed_everywhere(group)


@pytest.fixture
def reading_member(bootstrap_servers):
    """reading_member(group, topic) -> a function that ends it; the consumer has joined and polls until then."""
    ends = []

    def join(group, topic):
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "client.id": "a-reader",
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        joined, stop = threading.Event(), threading.Event()
        consumer.subscribe([topic], on_assign=lambda *_: joined.set())

        def read():
            while not stop.is_set():
                consumer.poll(0.1)
            consumer.close()

        thread = threading.Thread(target=read)

        def end():
            stop.set()
            thread.join(DEADLINE)

        ends.append(end)
        thread.start()
        assert joined.wait(DEADLINE), "the consumer did not join its group"
        return end

    yield join
    for end in ends:
        end()


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture(name="wait_until")
def wait_until_fixture():
    return wait_until
