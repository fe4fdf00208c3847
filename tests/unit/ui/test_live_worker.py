"""What the process that asks says of a storage."""

from __future__ import annotations

import time

import pytest

from airflow_kafka_offsets.errors import CheckpointFormatError, CheckpointUnavailableError, UsageError
from airflow_kafka_offsets.ui import live_worker

LOCATION = "s3a://lake/orders"


def answer(monkeypatch, error, cause):
    def fail(*_):
        raise error from cause

    monkeypatch.setattr(live_worker, "spark_checkpoint", fail)
    names = {"checkpoint_location": LOCATION, "checkpoint_conn_id": "lake"}
    request = {"id": 1, "question": "batches", "names": names, "end": time.monotonic() + 60}
    return live_worker.LiveWorker().answer(request)["error"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [(CheckpointUnavailableError, OSError()), (UsageError, ValueError())],
)
def test_what_a_driver_says_is_not_for_all_viewers(monkeypatch, error, cause):
    text = answer(monkeypatch, error("s3a://lake/orders: arn:aws:iam::1:role/x at https://minio:9000"), cause)

    assert text.startswith(f"{LOCATION}: the storage refuses or does not answer: see the log")
    assert "arn" not in text
    assert "minio" not in text


def test_what_this_package_says_of_a_file_is(monkeypatch):
    assert answer(monkeypatch, CheckpointFormatError("offsets/7 is cut off"), None) == "offsets/7 is cut off"
