import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from botocore.exceptions import ConnectTimeoutError, ProfileNotFound
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.errors import StorageError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.hooks.store import stored_offsets
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.task.windows import load_window, write_text
from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger

DEADLINE = 30

RECORDED = Path(__file__).parents[2] / "checkpoints" / "spark-4.0.0-plain" / "checkpoint"


def test_a_storage_comes_from_its_airflow_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "fs"}')
    shutil.copytree(RECORDED, tmp_path / "checkpoint")
    by_connection = spark_checkpoint((tmp_path / "checkpoint").as_uri(), "lake").read()
    assert by_connection.kafka_offsets == spark_checkpoint(str(RECORDED)).read().kafka_offsets


@pytest.mark.parametrize(
    "location", ["gs://lake/checkpoints/orders", "abfss://c@account.dfs.core.windows.net/x"]
)
def test_a_storage_that_no_installed_provider_knows_is_named_with_the_remedy(location, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "aws"}')
    with pytest.raises(StorageError, match="install the Airflow provider of that storage"):
        spark_checkpoint(location, "lake")


def test_a_password_in_the_location_is_refused_here_too():
    with pytest.raises(UsageError, match="holds a password"):
        spark_checkpoint("s3a://key:secret@bucket/x", "lake")


def uses_of(conn_id):
    """What opens a storage with a connection, by the parameter that names it."""
    pipeline = {"checkpoint_location": "s3a://lake/cp", "checkpoint_conn_id": conn_id}
    sensor = ConsumerGroupLagSensor(task_id="s", **pipeline, max_lag=0)
    return {
        "checkpoint_conn_id": [
            lambda: spark_checkpoint("s3a://lake/cp", conn_id),
            lambda: spark_checkpoint("gs://lake/cp", conn_id),
            lambda: spark_checkpoint("file:///lake/cp", conn_id),
            lambda: CommitOffsetsOperator(task_id="c", group_id="g", **pipeline).execute({}),
            lambda: ResetOffsetsOperator(task_id="r", group_id="g", to_offset=0, **pipeline).execute({}),
            lambda: sensor.poke({}),
        ],
        "window_conn_id": [
            lambda: load_window("s3a://lake/window.json", conn_id),
            lambda: write_text("s3a://lake/window.json", "", conn_id, "window_file", "window_conn_id"),
        ],
        "store_conn_id": [
            lambda: stored_offsets(conn_id, "orders"),
        ],
    }


def test_a_connection_that_is_not_defined_is_refused_whatever_credentials_the_machine_has(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-somebody-else")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for parameter, calls in uses_of("lakee").items():
        for call in calls:
            with pytest.raises(
                (UsageError, AirflowFailException), match=r"lakee.* is(n't| not) defined"
            ) as refused:
                call()
            assert parameter in str(refused.value)


def test_a_wait_in_the_triggerer_ends_at_once_for_a_connection_that_is_not_defined():
    trigger = ConsumerGroupLagTrigger(
        checkpoint_location="s3a://lake/cp", checkpoint_conn_id="lakee", max_lag=0, poll_interval=60
    )
    event = asyncio.run(asyncio.wait_for(anext(trigger.run()), DEADLINE))
    assert event.payload["status"] == "error"
    assert "connection 'lakee' is not defined: correct checkpoint_conn_id" in event.payload["message"]


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """A machine without credentials for S3, and a Kafka connection of which nothing is asked."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))


@pytest.mark.usefixtures("no_credentials")
def test_a_wait_ends_at_once_for_a_storage_without_credentials():
    wait: dict[str, Any] = {"checkpoint_location": "s3a://lake-without-credentials/cp", "max_lag": 0}
    with pytest.raises(AirflowFailException, match="NoCredentialsError"):
        ConsumerGroupLagSensor(task_id="s", **wait).poke({})
    trigger = ConsumerGroupLagTrigger(**wait, poll_interval=60)
    event = asyncio.run(asyncio.wait_for(anext(trigger.run()), DEADLINE))
    assert event.payload["status"] == "failed"
    assert "no valid credentials" in event.payload["message"]


@pytest.mark.parametrize(
    ("error", "retriable", "says"),
    [
        (ProfileNotFound(profile="etl"), False, r"no valid credentials .*profile \(etl\)"),
        (ConnectTimeoutError(endpoint_url="https://sts"), True, "could not be read .*https://sts"),
    ],
)
def test_a_connection_of_which_no_storage_can_be_made_is_named(error, retriable, says, monkeypatch):
    def get_fs(*args, **kwargs):
        raise error

    # Airflow keeps the storages of connections.
    monkeypatch.setenv("AIRFLOW_CONN_NO_LAKE", '{"conn_type": "aws"}')
    monkeypatch.setattr("airflow.sdk.io.get_fs", get_fs)
    with pytest.raises(StorageError, match=rf"{says}.*Airflow connection 'no_lake'") as refused:
        spark_checkpoint("s3a://lake-of-nobody/x", "no_lake")
    assert refused.value.retriable is retriable


def test_a_connection_that_was_changed_opens_its_storage_again(monkeypatch):
    opened = []

    def get_fs(*_):
        opened.append(MemoryFileSystem())
        return opened[-1]

    monkeypatch.setattr("airflow.sdk.io.get_fs", get_fs)

    def connect(password):
        connection = {"conn_type": "aws", "login": "key", "password": password}
        monkeypatch.setenv("AIRFLOW_CONN_ROTATED", json.dumps(connection))
        return spark_checkpoint("s3a://lake/cp", "rotated").fs

    fs = connect("old")
    assert (connect("old") is fs, len(opened)) == (True, 1)
    connect("new")
    assert len(opened) == 2


def test_a_location_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match="checkpoint_location: found PosixPath; expected text"):
        spark_checkpoint(tmp_path, None)


@pytest.mark.parametrize(
    "location",
    [
        "abfss://lake@account.dfs.core.windows.net/cp",
        "wasbs://lake@account.blob.core.windows.net/cp",
        "s3n://lake/cp",
    ],
)
def test_the_given_connection_opens_the_storage_whatever_the_container_is_called(location, monkeypatch):
    name = "az_" + location.partition(":")[0]
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", '{"conn_type": "adls"}')
    asked = []

    def get_fs(scheme, conn_id, *_, **__):
        asked.append(conn_id)
        return MemoryFileSystem()

    monkeypatch.setattr("airflow.sdk.io.get_fs", get_fs)
    spark_checkpoint(location, name)
    assert set(asked) == {name}
