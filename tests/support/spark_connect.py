"""A Spark Connect server for the tests, in a process of its own, and a session on it beside the classic one."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deadlines import until
from spark_session import CONNECTOR_JARS

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port, is_free
from airflow_kafka_offsets.local.process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.connect.session import SparkSession

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY = 90.0
LOG_LINES = 30


@contextmanager
def connect_server(settings: dict[str, str], directory: Path) -> Iterator[tuple[str, SupervisedProcess]]:
    """Give sc://host:port of a Spark Connect server that can read and write Kafka, and its process."""
    _skip_without_connect(settings)
    import pyspark

    port = free_port()
    settings = settings | {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    command = [submit, "--master", "local[2]", *conf, "--class", SERVER, "spark-internal"]
    log = directory / "server.log"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.delenv("SPARK_HOME", raising=False)
        # It ends with this process, even when that is killed. It writes into its directory.
        server = SupervisedProcess(command, log, directory)
        try:
            until(lambda: server.status is not None or not is_free(port), "the Spark Connect server", READY)
            if server.status is not None:
                said = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
                pytest.fail(f"the Spark Connect server has ended:\n{said}")
            yield f"sc://{LOOPBACK}:{port}", server
        finally:
            server.end()


@pytest.fixture(scope="session")
def connect_url(spark_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """sc://host:port of a Spark Connect server that can read and write Kafka; for jobs with SPARK_REMOTE, too."""
    with connect_server(spark_settings, tmp_path_factory.mktemp("connect")) as (url, _):
        yield url


@pytest.fixture(scope="session")
def connect(connect_url: str) -> Iterator[SparkSession]:
    """
    A Spark Connect session in this process.

    It may live beside the classic one as long as nobody asks ``pyspark.sql`` for it: there,
    ``SparkSession.builder`` refuses a second kind, and ``functions`` makes columns of the classic kind.
    """
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(connect_url).getOrCreate()
    yield session
    session.stop()


def _skip_without_connect(settings: dict[str, str]) -> None:
    try:
        import pyspark
        import pyspark.sql.connect.session
    except ImportError as error:
        pytest.skip(f"Spark Connect's client cannot be imported: {error}")
    own = Path(pyspark.__file__).parent.glob("jars/spark-connect_*.jar")
    if not any(own) and "spark-connect_" not in settings.get("spark.jars", ""):
        pytest.skip(f"this Spark's jars hold no Spark Connect server: name its jar in {CONNECTOR_JARS}")
