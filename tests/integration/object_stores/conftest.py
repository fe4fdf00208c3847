from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from java_programs import hadoop_aws
from s3_server import S3, s3_server

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKER = Path(__file__).with_name("spark_worker.py")
ANSWER = "answer: "


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 server, with faults to choose."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def opened(s3: S3) -> Callable[[str], SparkCheckpoint]:
    """opened(location) -> the checkpoint, as another process would open it."""
    s3fs = pytest.importorskip("s3fs")
    return lambda location: SparkCheckpoint(
        location, fs=s3fs.S3FileSystem(**s3.storage_options, skip_instance_cache=True)
    )


class SparkWorker:
    """A Spark in a process of its own, which has hadoop-aws; see spark_worker.py."""

    def __init__(self, settings: dict[str, str], log: Path) -> None:
        self._log = log
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**environment, "PYSPARK_PYTHON": sys.executable},
            )
        self._send(settings)

    def run(self, topic: str, location: str, **options: Any) -> list[dict[str, Any]]:
        """Run a query over a topic to its end; return its batches that had records."""
        self._send({"topic": topic, "location": location, **options})
        return self._answer()

    def ready(self) -> None:
        """Wait until it is there."""
        self._answer()

    def die(self, topic: str, location: str, in_batch: int, **options: Any) -> None:
        """Run a query in whose batch the process is killed."""
        self._send({"topic": topic, "location": location, "die_in": in_batch, **options})
        assert self._process.stdout is not None
        assert "answer" not in self._process.stdout.read(), "the query has ended"
        self.end()

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def _send(self, line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                answer = json.loads(line.removeprefix(ANSWER))
                assert "error" not in answer, answer["error"]
                return answer
        return pytest.fail(f"Spark has ended:\n{self._log.read_text(errors='replace')[-3000:]}")


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
) -> Iterator[Callable[[], SparkWorker]]:
    """new_spark() starts one; it is not ready yet."""
    started: list[SparkWorker] = []

    def start() -> SparkWorker:
        started.append(SparkWorker(s3_settings, tmp_path_factory.mktemp("spark") / "spark.log"))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


@pytest.fixture(scope="session")
def worker(new_spark: Callable[[], SparkWorker]) -> SparkWorker:
    """The Spark of all tests here."""
    worker = new_spark()
    worker.ready()
    return worker


@pytest.fixture
def query(worker: SparkWorker, bootstrap_servers: str) -> Callable[..., list[dict[str, Any]]]:
    """query(topic, location) -> the batches of a run to the topic's end: numbers, offsets, records."""
    source = {"kafka.bootstrap.servers": bootstrap_servers, "startingOffsets": "earliest"}
    return lambda topic, location, **more: worker.run(topic, location, options=source, **more)
