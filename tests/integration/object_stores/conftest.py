import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_task import connect, context  # noqa: F401
from java_programs import hadoop_aws
from s3_server import S3, s3_server
from spark_process import SparkProcess
from spark_session import holds  # noqa: F401

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 server, with faults to choose."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def opened(s3: S3) -> Callable[[str], SparkCheckpoint]:
    """opened(location) -> the checkpoint, as another process would open it."""
    s3fs = pytest.importorskip("s3fs")
    # A session of its own would read botocore's description of S3 each time, which takes longer than a move.
    own = {"session": pytest.importorskip("aiobotocore.session").get_session(), "skip_instance_cache": True}
    return lambda location: SparkCheckpoint(location, fs=s3fs.S3FileSystem(**s3.storage_options, **own))


@pytest.fixture(scope="session")
def s3_settings(s3: S3, spark_settings: dict[str, str]) -> dict[str, str]:
    """What a Spark is started with that keeps its checkpoints on the S3 server."""
    import pyspark

    (client,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    if not version.startswith("3.4."):
        pytest.skip(f"Hadoop {version} has another AWS SDK")
    jars = os.pathsep.join(map(str, hadoop_aws(version)))
    return {
        **spark_settings,
        **s3.spark_settings,
        "spark.driver.extraClassPath": jars,
    }


@pytest.fixture(scope="session")
def new_spark(
    s3_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], SparkProcess]]:
    """new_spark() starts one; it is not ready yet."""
    started: list[SparkProcess] = []

    def start() -> SparkProcess:
        started.append(SparkProcess(s3_settings, tmp_path_factory.mktemp("spark") / "spark.log"))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


@pytest.fixture(scope="session")
def worker(new_spark: Callable[[], SparkProcess]) -> SparkProcess:
    """The Spark of all tests here."""
    worker = new_spark()
    worker.ready()
    return worker


@pytest.fixture
def query(worker: SparkProcess, bootstrap_servers: str) -> Callable[..., list[dict[str, Any]]]:
    """query(topic, location) -> the batches of a run to the topic's end: their numbers and offsets."""

    def run(topic: str, location: str) -> list[dict[str, Any]]:
        answer = worker.run(topic, location, {"kafka.bootstrap.servers": bootstrap_servers})
        assert "error" not in answer, answer["error"]
        batches: list[dict[str, Any]] = answer["progress"]
        return batches

    return run
