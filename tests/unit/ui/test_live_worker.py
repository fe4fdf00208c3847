"""What the process that asks says of a storage."""

import json
import queue
import shutil
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointFormatError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import partitions_digest
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS
from airflow_kafka_offsets.storage import plain_errors
from airflow_kafka_offsets.ui import live_worker

RECORDED = Path(__file__).parents[2] / "checkpoints"
LOCATION = "s3a://lake/orders"


def answer(monkeypatch, error):
    def fail(*_):
        with plain_errors(LocalFileSystem(), LOCATION):
            raise error

    return answer_with(monkeypatch, fail)


def answer_with(monkeypatch, opened):
    monkeypatch.setattr(live_worker, "spark_checkpoint", opened)
    names = {"checkpoint_location": LOCATION, "checkpoint_conn_id": "lake"}
    request = {"id": 1, "question": "batches", "names": names, "end": time.monotonic() + 60}
    return live_worker.LiveWorker().answer(request)["error"]


@pytest.mark.parametrize(
    "said",
    [
        "arn:aws:iam::1:role/x at https://minio:9000",
        "404 for url: http://minio:9870/webhdfs/v1/orders?op=GETFILESTATUS&user.name=arn",
    ],
)
def test_what_a_driver_says_is_not_for_all_viewers(monkeypatch, said):
    text = answer(monkeypatch, OSError(said))

    assert text.startswith(f"{LOCATION}: the storage refuses access or does not answer: see the log")
    assert "arn" not in text
    assert "minio" not in text


@pytest.mark.parametrize(
    ("attribute", "value"), [("url", "http://minio:9870/webhdfs/v1"), ("account_name", "minio")]
)
def test_the_address_of_a_connection_is_not_for_all_viewers(monkeypatch, attribute, value):
    fs: Any = SimpleNamespace(**{attribute: value})
    location = "abfss://lake@other.example.net/orders"

    text = answer_with(monkeypatch, lambda *_: SparkCheckpoint(location, fs=fs))

    said = "is not on the storage of its connection: correct the location or the connection"
    assert text == f"the location {location} {said}"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CheckpointFormatError("offsets/7 is cut off"), "offsets/7 is cut off"),
        (FileNotFoundError(), "cannot be read, because a directory or bucket above it does not exist"),
    ],
)
def test_what_this_package_says_of_a_file_is(monkeypatch, error, text):
    assert text in answer(monkeypatch, error)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "connection 'kafka_bad' of type 'kafka' has no bootstrap.servers"),
        ({"bootstrap.servers": "minio:9092", "sasl.jaas.config": "arn"}, "is a setting of Java clients only"),
    ],
)
def test_a_connection_that_no_client_can_use_is_not_called_a_storage(monkeypatch, extra, text):
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_BAD", json.dumps({"conn_type": "kafka", "extra": extra}))
    names = dict.fromkeys(PIPELINE_PARAMETERS) | {"group_id": "g", "kafka_config_id": "kafka_bad"}
    request = {"id": 1, "question": "now", "names": names, "end": time.monotonic() + 60}
    found = live_worker.LiveWorker().answer(request)["error"]

    assert text in found
    assert "minio" not in found
    assert "arn" not in found


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

    (move,) = batches(root)["moves"]

    assert (move["kind"], move["tool"]) == ("seek", "airflow-kafka-offsets checkpoint seek")
    assert move["checkpoint"] == len(offsets)
    assert "offset" not in move
    assert move["over"] == partitions_digest(offsets)
    assert move["state"] is None
    # A person may have written the archive's time without a zone.
    for file in root.rglob("*.json"):
        file.write_text(file.read_text().replace("+00:00", ""))
    assert batches(root)["moves"] == [move]
    for _ in range(2):
        spark, by = SparkCheckpoint(str(root)), CommitMetadata(tool="airflow-kafka-offsets group restore")
        plan = plan_checkpoint_restore(spark, policy=policy)
        apply_checkpoint_plan(spark, plan, made_by=by, quiet_period=0)
    assert [each["state"] for each in batches(root)["moves"]] == ["taken back", None, None]


def test_a_batch_that_spark_has_skipped_is_not_one_of_the_finished_ones(tmp_path):
    root = shutil.copytree(RECORDED / "spark-4.0.0-plain" / "checkpoint", tmp_path / "query")
    done = sorted(int(file.name) for file in (root / "commits").iterdir() if file.name.isdecimal())
    (root / "commits" / str(done[-2])).unlink()

    assert [each["batch"] for each in batches(root)["batches"] if each["pending"]] == [done[-2]]


def test_sums_of_batches_are_of_the_partitions_that_the_pipeline_names():
    root = RECORDED / "spark-4.0.0-plain" / "checkpoint"
    (offsets,) = SparkCheckpoint(str(root)).read().kafka_offsets.values()
    one = min(offsets)

    of_all, of_one = (
        batches(root, topics=topics)["batches"][-1] for topics in (None, [f"{one.topic}:{one.partition}"])
    )

    assert (of_all["over"], of_all["offset"]) == (partitions_digest(offsets), sum(offsets.values()))
    assert (of_one["over"], of_one["offset"]) == (partitions_digest([one]), offsets[one])


def test_a_connection_that_was_changed_to_another_cluster_is_opened_again(monkeypatch):
    def connect(server):
        connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": server}}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_MOVED", json.dumps(connection))

    cluster = live_worker.ClusterClient("kafka_moved")

    def lent():
        with cluster.lend(time.monotonic() + 60) as client:
            return client

    connect("127.0.0.1:1")
    first = lent()
    connect("127.0.0.1:2")
    assert lent() is first
    monkeypatch.setattr(live_worker, "_CHECKED", 0.0)
    second = lent()
    assert (first.servers, second.servers) == ("127.0.0.1:1", "127.0.0.1:2")
    assert lent() is second
    second.close()


def test_the_rates_of_one_cluster_are_not_continued_on_another(monkeypatch):
    worker, of = live_worker.LiveWorker(), []
    clients = [SimpleNamespace(servers=server) for server in ("left:9092", "left:9092", "right:9092")]
    monkeypatch.setattr(worker, "_lend", lambda *_: nullcontext(clients.pop(0)))
    monkeypatch.setattr(live_worker, "PipelineNow", lambda *_: SimpleNamespace(read=dict))
    monkeypatch.setattr(worker._progress, "rates", lambda names, _: of.append(json.dumps(names)))
    names = dict.fromkeys(PIPELINE_PARAMETERS) | {"group_id": "g"}
    for _ in range(3):
        request = {"id": 1, "question": "now", "names": names, "end": time.monotonic() + 60}
        assert "error" not in worker.answer(request)

    assert of[0] == of[1] != of[2]


def test_nothing_is_said_of_the_move_of_a_topic_that_is_another_one(monkeypatch):
    """Where the group had no commit before, it would look as if the move was taken back."""
    worker, now = live_worker.LiveWorker(), LogIds("cluster", {"orders": "another"})
    client = SimpleNamespace(log_ids=lambda _: now, log_ranges=lambda _: {}, record_times=lambda *_, **__: {})
    monkeypatch.setattr(worker, "_lend", lambda *_: nullcontext(client))
    row = ["g", "orders", 0, None, 7, None, 0, 9]
    asked = {"rows": [row], "topics": {"orders": "its-id"}, "plan_only": False}
    names = dict.fromkeys(PIPELINE_PARAMETERS) | {"group_id": "g"}
    request = {"id": 1, "question": "times", "names": names, "end": time.monotonic() + 60}
    found = worker.answer({**request, **asked})["value"]
    assert (found["since"], found["times"]["after"]) == (None, [None])


def test_requests_that_wait_for_one_broker_do_not_keep_the_others_waiting(monkeypatch):
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lines: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    go = threading.Event()

    def answer(_, request):
        if request["names"]["kafka_config_id"] == "slow":
            go.wait(60)
        return request["names"]["kafka_config_id"]

    # A template may have rendered another value than text, which ends no other request.
    for name in (*["slow"] * 20, ["wrong"], "quick"):
        lines.put(bytearray(json.dumps({"names": {"kafka_config_id": name}}).encode()))
    monkeypatch.setattr(live_worker, "open_channel", lambda: (lines, answers.put))
    monkeypatch.setattr(live_worker.LiveWorker, "answer", answer)
    monkeypatch.setattr(live_worker, "_IDLE", 2.0)
    monkeypatch.setattr("os._exit", lambda _: None)
    monkeypatch.setattr("logging.disable", lambda _: None)
    try:
        live_worker.main()
        assert answers.get(timeout=10) == {"ready": True}
        assert sorted(map(str, (answers.get(timeout=10), answers.get(timeout=10)))) == ["['wrong']", "quick"]
    finally:
        go.set()


def login(_):
    return "token", 0.0


def other_login(_):
    return "another token", 0.0


def test_a_connection_with_another_token_function_gets_another_client(monkeypatch):
    config: dict[str, Any] = {"bootstrap.servers": "kafka:9092", "oauth_cb": login}
    monkeypatch.setattr(KafkaOffsetsHook, "client_config", lambda _: dict(config))
    monkeypatch.setattr(live_worker, "_CHECKED", 0.0)
    cluster = live_worker.ClusterClient("kafka_default")

    def lent():
        with cluster.lend(time.monotonic() + 10) as client:
            return client

    first = lent()
    assert lent() is first
    config["oauth_cb"] = other_login
    assert lent() is not first
