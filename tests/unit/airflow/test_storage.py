from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_kafka_offsets.errors import CheckpointError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint

RECORDED = Path(__file__).parents[2] / "checkpoints" / "spark-4.0.0-plain" / "checkpoint"


def test_a_storage_comes_from_its_airflow_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "fs"}')
    shutil.copytree(RECORDED, tmp_path / "checkpoint")
    by_connection = spark_checkpoint((tmp_path / "checkpoint").as_uri(), "lake").read()
    assert by_connection.kafka_offsets == spark_checkpoint(str(RECORDED)).read().kafka_offsets


@pytest.mark.parametrize(
    "location", ["s3a://lake/checkpoints/orders", "abfss://c@account.dfs.core.windows.net/x"]
)
def test_a_storage_that_no_installed_provider_knows_is_named_with_the_remedy(location, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "aws"}')
    with pytest.raises(CheckpointError, match="install the Airflow provider of that storage"):
        spark_checkpoint(location, "lake")


def test_a_password_in_the_location_is_refused_here_too():
    with pytest.raises(UsageError, match="holds a password"):
        spark_checkpoint("s3a://key:secret@bucket/x", "lake")
