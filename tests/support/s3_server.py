"""An S3 server in memory, S3Proxy, behind a proxy that fails as a test says."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deadlines import until
from java_programs import s3proxy
from s3_faults import FaultyS3

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port, is_free
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.process import SupervisedProcess

KEY, SECRET = "lake-key", "lake-secret-c4n4ry"
REGION = "us-east-1"
BUCKET = "lake"
READY = 60.0


class S3(NamedTuple):
    """The server: its faults, and how to reach it."""

    faults: FaultyS3

    @property
    def endpoint(self) -> str:
        return f"http://{self.faults.address}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What fsspec needs."""
        return _options(self.endpoint)

    @property
    def spark_settings(self) -> dict[str, str]:
        """What Spark needs, beside hadoop-aws."""
        settings = {
            "endpoint": self.endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "access.key": KEY,
            "secret.key": SECRET,
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}

    def new_location(self) -> str:
        """Return where nothing is, as Spark spells it."""
        return f"s3a://{BUCKET}/{uuid.uuid4().hex[:12]}/cp"


def _options(endpoint: str) -> dict[str, Any]:
    client = {"region_name": REGION}
    return {"key": KEY, "secret": SECRET, "endpoint_url": endpoint, "client_kwargs": client}


@contextmanager
def s3_server(directory: Path) -> Iterator[S3]:
    """Start the server, with an empty bucket ``lake`` in it; it ends with the ``with`` block."""
    s3fs = pytest.importorskip("s3fs")
    port = free_port()
    (jar,) = s3proxy()
    properties, log = directory / "s3proxy.conf", directory / "s3proxy.log"
    settings = {
        "s3proxy.endpoint": f"http://{LOOPBACK}:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        # s3fs asks for checksums of what it reads.
        "s3proxy.ignore-unknown-headers": "true",
        # With transient-nio2 a directory is an object, which S3A takes for a file.
        "jclouds.provider": "transient",
        "jclouds.identity": "none",
        "jclouds.credential": "none",
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    command = [str(find_java().path), *quick, "-jar", str(jar), "--properties", str(properties)]
    server = SupervisedProcess(command, log, directory)
    try:
        until(lambda: server.status is not None or not is_free(port), "S3Proxy", READY)
        assert server.status is None, f"S3Proxy has ended:\n{log.read_text(errors='replace')[-3000:]}"
        own = s3fs.S3FileSystem(**_options(f"http://{LOOPBACK}:{port}"))
        own.call_s3("create_bucket", Bucket=BUCKET)

        def remove(bucket: str, key: str) -> None:
            own.call_s3("delete_object", Bucket=bucket, Key=key)

        with FaultyS3(f"{LOOPBACK}:{port}", remove) as faults:
            yield S3(faults)
    finally:
        server.end()
