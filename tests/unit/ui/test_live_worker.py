"""What the process that asks says of a storage."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointFormatError, StorageUnavailableError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.ui import live_worker
from airflow_kafka_offsets.ui.partition_sets import partition_set
from airflow_kafka_offsets.ui.responses import BatchResponse

RECORDED = Path(__file__).parents[2] / "checkpoints"
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
    [(StorageUnavailableError, OSError()), (UsageError, ValueError())],
)
def test_what_a_driver_says_is_not_for_all_viewers(monkeypatch, error, cause):
    text = answer(monkeypatch, error("s3a://lake/orders: arn:aws:iam::1:role/x at https://minio:9000"), cause)

    assert text.startswith(f"{LOCATION}: the storage refuses access or does not answer: see the log")
    assert "arn" not in text
    assert "minio" not in text


def test_what_this_package_says_of_a_file_is(monkeypatch):
    assert answer(monkeypatch, CheckpointFormatError("offsets/7 is cut off"), None) == "offsets/7 is cut off"


def batches(location, **names):
    names = {"group_id": None, "topics": None, "checkpoint_location": str(location), **names}
    request = {"id": 1, "question": "batches", "names": names | {"checkpoint_conn_id": None}}
    return live_worker.LiveWorker().answer({**request, "end": time.monotonic() + 60})["value"]


def test_moves_of_a_checkpoint_by_a_command_are_moves(tmp_path):
    root = shutil.copytree(RECORDED / "spark-4.0.0-plain" / "checkpoint", tmp_path / "query")
    (offsets,) = SparkCheckpoint(str(root)).read().kafka_offsets.values()
    policy = CheckpointPolicy(idempotent_sink=True, on_pending_batch="discard")
    back = dict.fromkeys(offsets, 1)
    for by in (
        CommitMetadata(tool="airflow-kafka-offsets checkpoint seek"),
        CommitMetadata(dag="orders", run="r", task="reset", tool="reset"),
    ):
        plan = plan_seek(SparkCheckpoint(str(root)), {"0": back}, policy)
        apply_checkpoint_plan(SparkCheckpoint(str(root)), plan, made_by=by, quiet_period=0)
        back = dict.fromkeys(offsets, 2)

    found = batches(root)
    (move,) = found["moves"]

    assert (move["kind"], move["tool"]) == ("seek", "airflow-kafka-offsets checkpoint seek")
    assert move["offset"] == len(offsets)
    assert move["over"] == partition_set(offsets)
    assert move["run_id"] is move["task_id"] is move["state"] is None
    assert BatchResponse.model_validate(found["batches"][-1]).moved_in == "0002-seek"


def test_sums_of_batches_are_of_the_partitions_that_the_pipeline_names():
    root = RECORDED / "spark-4.0.0-plain" / "checkpoint"
    (offsets,) = SparkCheckpoint(str(root)).read().kafka_offsets.values()
    one = min(offsets)

    of_all, of_one = (
        batches(root, topics=topics)["batches"][-1] for topics in (None, [f"{one.topic}:{one.partition}"])
    )

    assert (of_all["over"], of_all["offset"]) == (partition_set(offsets), sum(offsets.values()))
    assert (of_one["over"], of_one["offset"]) == (partition_set([one]), offsets[one])
