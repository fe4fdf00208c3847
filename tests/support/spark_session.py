"""
The one Spark of all tests, of whatever version is installed, and the streams and queries that they run on it.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from deadlines import until

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.cache import lock_file
from airflow_kafka_offsets.local.environment import default_spark
from airflow_kafka_offsets.local.process import SupervisedProcess, log_tail
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CONNECTOR_JARS = "SPARK_CONNECTOR_JARS"
# The fast compiler only, as for the broker: no test runs long enough for the other one.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WARM_UP = """
from pyspark.sql import SparkSession, functions as f

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
directory = __import__("sys").argv[1]
rows = spark.createDataFrame([(1, "a"), (2, "b")], "number int, name string")
rows.groupBy("name").agg(f.sum("number")).write.parquet(f"{directory}/table")
stream = spark.readStream.schema("number int, name string").parquet(f"{directory}/table")
writer = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{directory}/checkpoint")
writer.foreachBatch(lambda batch, _: batch.collect()).start().awaitTermination()
"""
DEADLINE = 60.0
FETCH = 300.0

MARKS = (
    pytest.mark.integration,
    pytest.mark.spark,
    # PySpark leaves sockets to its JVM open until the process ends.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    # What PySpark's own modules say of themselves: 3.5 and 4.2, in this order.
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
)
"""Of each test that runs on Spark."""


def mark_below(directory: Path, items: list[pytest.Item]) -> None:
    """Give the tests of a directory the marks of tests that run on Spark."""
    for item in items:
        if item.path.is_relative_to(directory):
            for mark in MARKS:
                item.add_marker(mark)


def window(topic: str, *ranges: tuple[int, int], **kwargs: Any) -> OffsetWindow:
    """window(topic, (2, 5), (0, 0)) -> the window of partitions 0 and 1."""
    return OffsetWindow(
        {TopicPartition(topic, n): OffsetRange(*each) for n, each in enumerate(ranges)}, **kwargs
    )


def connector_setting() -> dict[str, str]:
    """
    Return the setting that loads the Kafka connector: the jars in SPARK_CONNECTOR_JARS, or what fits from
    Maven.
    """
    if jars := os.environ.get(CONNECTOR_JARS):
        return {"spark.jars": jars}
    return {"spark.jars.packages": default_spark(metadata.version("pyspark")).connector}


def prepare_spark(directory: Path) -> dict[str, str]:
    """
    Return the settings for a quick start of Spark with the Kafka connector; prepare once in a test run.

    Ivy does not bear two processes that fill its cache at the same time. The classes that a first job has
    loaded are archived: a small job then takes 12 s in place of 20.
    """
    import pyspark

    connector = connector_setting()
    archive = directory / "spark.jsa"
    with lock_file(directory / "spark.lock", "preparing Spark", FETCH):
        prepared = directory / "spark-is-prepared"
        if not prepared.exists():
            job = directory / "warm_up.py"
            job.write_text(WARM_UP, encoding="utf-8")
            (jars,) = connector.items()
            environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
            environment |= {
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
                "SPARK_SUBMIT_OPTS": f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={archive}",
            }
            loopback = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
            settings = [*loopback, "spark.ui.enabled=false", "=".join(jars)]
            submit = [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *("--master", "local[1]"),
                *(word for setting in settings for word in ("--conf", setting)),
                *(str(job), str(directory / "warm-up")),
            ]
            log = directory / "warm-up.log"
            # It ends with this process, even when that is killed.
            warm_up = SupervisedProcess(submit, log, directory, environment)
            try:
                until(lambda: warm_up.status is not None, "Spark's first job", FETCH)
            finally:
                warm_up.end()
            assert warm_up.status == 0, log_tail(log, 40)
            prepared.touch()
    # An archive that does not fit, as after a change of the class path, is left alone without a word.
    quick = f"{QUICK_JAVA} -XX:SharedArchiveFile={archive} -Xlog:cds*=off -Xlog:class+path=off"
    return {**connector, "spark.driver.extraJavaOptions": quick if archive.exists() else QUICK_JAVA}


@pytest.fixture(scope="session")
def spark_settings(run_directory: Path) -> dict[str, str]:
    """Everything that a Spark of the tests is started with; for jobs in a process of their own, too."""
    return {
        **prepare_spark(run_directory),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # To compile a query takes longer than to run it on a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.session.timeZone": "UTC",
    }


@pytest.fixture(scope="session")
def spark(spark_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark of all tests in this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.delenv("SPARK_HOME", raising=False)
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in spark_settings.items():
            builder = builder.config(name, value)
        warehouse = str(tmp_path_factory.mktemp("warehouse"))
        session = builder.config("spark.sql.warehouse.dir", warehouse).getOrCreate()
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
        del session, gateway, builder
        with warnings.catch_warnings():
            # The sockets to the JVM are left to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Where a query may keep its checkpoint."""
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def stream(spark: SparkSession, bootstrap_servers: str) -> Callable[..., DataFrame]:
    """stream(topic, **options) -> a stream over it from the start; options are the Kafka source's."""

    def read(topic: str | None = None, **options: Any) -> DataFrame:
        if topic is not None:
            options["subscribe"] = topic
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
        return reader.option("startingOffsets", "earliest").options(**options).load()

    return read


@pytest.fixture(scope="session")
def start(spark: SparkSession) -> Iterator[Callable[..., StreamingQuery]]:
    """start(frame, location, availableNow=True) -> the running query; the keywords are its trigger."""
    queries: list[StreamingQuery] = []

    def run(
        frame: DataFrame, location: str, *, batch_does: Any = None, mode: str = "append", **trigger: Any
    ) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", location).outputMode(mode)
        writer = writer.format("noop") if batch_does is None else writer.foreachBatch(batch_does)
        query = writer.trigger(**trigger).start()
        queries.append(query)
        return query

    yield run
    for query in queries:
        query.stop()


@pytest.fixture(scope="session")
def run(start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
    """run(frame, location) -> the query, which has processed everything there was and ended."""

    def to_the_end(frame: DataFrame, location: str, **parameters: Any) -> StreamingQuery:
        query = start(frame, location, availableNow=True, **parameters)
        assert query.awaitTermination(DEADLINE), "the query did not end"
        return query

    return to_the_end


@pytest.fixture
def holds(broker: OffsetsClient) -> Callable[[str], dict[tuple[str, int], int]]:
    """holds(group) -> {(topic, partition): offset} of everything that the group has committed."""

    def committed(group: str) -> dict[tuple[str, int], int]:
        found = broker.committed_everywhere(group)
        return {(partition.topic, partition.partition): commit.offset for partition, commit in found.items()}

    return committed


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], object]:
    """wait_until(condition) returns when it holds, and fails the test if that takes a minute."""
    return until


@pytest.fixture
def options(bootstrap_servers: str) -> dict[str, str]:
    """The options of a Kafka source that reach the broker."""
    return {"kafka.bootstrap.servers": bootstrap_servers}


@pytest.fixture(scope="session")
def grow(bootstrap_servers: str, broker: OffsetsClient) -> Callable[[str, int], None]:
    """grow(topic, partitions) adds partitions, and waits until they are led."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def add(topic: str, partitions: int) -> None:
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(DEADLINE)
        until(lambda: len(broker.partitions([topic]).get(topic, ())) == partitions)
        broker.log_ranges([TopicPartition(topic, number) for number in range(partitions)])

    return add
