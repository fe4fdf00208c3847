"""A checkpoint on S3, which an S3 server on the loopback plays: other listings, no directories, no rename."""

import os
from collections import Counter
from functools import partial

import pytest
from checkpoint_moves import ORDERS_0, THREE, write_checkpoint

from airflow_kafka_offsets.checkpoint.history import read_history
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointNotFoundError, StorageError, StorageUnavailableError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.storage import note_credentials


@pytest.fixture
def s3(storage_options):
    """s3(**more) opens the storage."""
    from s3fs import S3FileSystem  # takes half a second, in each process of a test run

    return partial(S3FileSystem, **storage_options)


@pytest.mark.parametrize(
    "location", [*(f"{it}://lake/as/cp" for it in ("s3a", "s3n", "s3")), "s3a://lake//as///cp//"]
)
def test_a_checkpoint_on_s3_is_read_as_spark_spells_it(location, s3, storage_options):
    fs = s3()
    write_checkpoint(fs, "lake/as/cp", {9: 9, 10: 10, 11: 11}, [9, 10])
    state = SparkCheckpoint(location, storage_options=storage_options).read()
    assert (state.location, state.batch_id, state.pending_batch_id) == (location, 10, 11)
    assert state.kafka_offsets == {"0": {ORDERS_0: 10}}


def test_a_batch_that_another_client_wrote_is_seen(s3):
    spark = s3(skip_instance_cache=True)
    write_checkpoint(spark, "lake/growing/cp", {0: 5}, [0])
    checkpoint = SparkCheckpoint("s3a://lake/growing/cp", fs=s3())
    assert checkpoint.read().batch_id == 0
    write_checkpoint(spark, "lake/growing/cp", {1: 6, 2: 7}, [1])
    state = checkpoint.read()
    assert (state.batch_id, state.pending_batch_id) == (1, 2)


def test_a_file_that_another_client_wrote_is_read_whatever_the_last_listing_says(s3):
    spark = s3(skip_instance_cache=True)
    write_checkpoint(spark, "lake/since/cp", {0: 5}, [0])
    checkpoint = SparkCheckpoint("s3a://lake/since/cp", fs=s3())
    assert checkpoint.batches("offsets") == {0}
    write_checkpoint(spark, "lake/since/cp", {1: 6}, [])
    assert checkpoint.has("offsets", 1)


def test_a_query_without_a_batch_has_no_directories_on_s3(s3):
    fs = s3()
    fs.pipe_file("lake/new/cp/metadata", b'{"id":"975d5cb5-daf7-40c6-ad83-ae84395a7b2a"}')
    state = SparkCheckpoint("s3a://lake/new/cp", fs=fs).read()
    assert (state.batch_id, state.pending_batch_id, state.sources) == (None, None, ())


def test_a_prefix_above_checkpoints_names_them(s3):
    fs = s3()
    for name in ("orders", "payments"):
        write_checkpoint(fs, f"lake/jobs/{name}", {0: 5}, [0])
    with pytest.raises(CheckpointNotFoundError, match="found a directory with orders, payments; expected"):
        SparkCheckpoint("s3a://lake/jobs", fs=fs).read()


def test_a_bucket_that_does_not_exist_is_not_found(storage_options):
    with pytest.raises(CheckpointNotFoundError, match=r"^s3a://no-such-lake/cp: found "):
        SparkCheckpoint("s3a://no-such-lake/cp", storage_options=storage_options).read()


def test_a_server_that_is_not_there_is_unavailable():
    options = {
        "key": "testing",
        "secret": "very-secret",
        "endpoint_url": f"http://{LOOPBACK}:{free_port()}",
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }
    with pytest.raises(StorageUnavailableError, match="Could not connect") as refused:
        SparkCheckpoint("s3a://lake/cp", storage_options=options).read()
    assert "very-secret" not in str(refused.value)


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """A machine without credentials for S3."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("no_credentials")
def test_missing_credentials_are_no_silence_and_say_where_they_are_looked_for(s3, storage_options):
    own = {"endpoint_url": storage_options["endpoint_url"], "skip_instance_cache": True}
    with pytest.raises(StorageError, match=r"NoCredentialsError.* they come from this machine") as refused:
        SparkCheckpoint("s3a://lake/cp", storage_options=own).read()
    assert not refused.value.retriable
    fs = s3(key=None, secret=None, skip_instance_cache=True)
    note_credentials(fs, "Airflow connection 'lake'")
    with pytest.raises(StorageError, match=r"NoCredentialsError.* from Airflow connection 'lake'") as refused:
        SparkCheckpoint("s3a://lake/cp", fs=fs).read()
    assert not refused.value.retriable


def test_each_directory_of_an_object_store_is_listed_once_and_no_commit_is_asked_for_its_time(s3, caplog):
    fs = s3(skip_instance_cache=True)
    write_checkpoint(fs, "lake/history/cp", {number: number for number in range(20)}, range(20))
    caplog.set_level("INFO", logger="werkzeug")
    caplog.clear()
    found = read_history(SparkCheckpoint("s3a://lake/history/cp", fs=fs)).batches
    asked = [message.split('"')[1].split() for message in caplog.messages]
    paths = Counter(path.split("&")[1] if "prefix" in path else path for _, path, *_ in asked)
    assert [each.records for each in found] == [None, *[1] * 19]
    assert [paths[f"prefix=history/cp/{directory}/"] for directory in ("offsets", "commits")] == [1, 1]
    assert [path for method, path, *_ in asked if method == "HEAD"] == []
    assert len(asked) < 20 + 8


def test_a_sink_on_the_checkpoints_storage_is_read_with_its_credentials(s3):
    fs = s3()
    write_checkpoint(fs, "lake/sink/cp", THREE | {3: 9}, [0, 1, 2])
    for number in range(3):
        fs.pipe_file(f"lake/sink/out/_spark_metadata/{number}", b"v1\n")
    checkpoint = SparkCheckpoint("s3a://lake/sink/cp", fs=fs)
    for spelled in (
        "s3a://lake/sink/out",
        "s3://lake/sink/out",
        "s3n://lake/sink/out",
        "s3a://lake/sink//out",
    ):
        policy = CheckpointPolicy("discard", "file", sink_location=spelled)
        assert plan_seek(checkpoint, {}, policy).refusals == (), spelled
