"""Spark keeps its checkpoint on S3: committing, moving, taking back, through an Airflow connection too."""

import json
import logging

import pytest
from s3_server import KEY, REGION, SECRET
from spark_process import DriverKilledError

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_truncate
from airflow_kafka_offsets.errors import StorageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def lake(s3, bootstrap_servers, connect, monkeypatch):
    """The connection ``lake``, and ``kafka_default``; lake(secret, name) defines another one."""
    pytest.importorskip("airflow.providers.amazon")
    connect(bootstrap_servers)

    def define(secret, name="lake"):
        connection = {
            "conn_type": "aws",
            "login": KEY,
            "password": secret,
            "extra": {"endpoint_url": s3.endpoint, "region_name": REGION},
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))

    define(SECRET)
    return define


def test_a_pipeline_on_s3_is_committed_moved_and_restored_through_an_airflow_connection(
    query, s3, lake, make_topic, produce, new_group, holds, context, caplog
):
    caplog.set_level(logging.DEBUG)
    topic, location, group = make_topic(2), s3.new_location(), new_group()
    pipeline = {
        "group_id": group,
        "checkpoint_location": location,
        "checkpoint_conn_id": "lake",
    }
    produce(topic, {0: 4, 1: 4})
    assert [batch["end"] for batch in query(topic, location)] == [{"0": 4, "1": 4}]
    # From here on a listing shows what Spark writes, and a removal, only after seconds.
    with s3.faults.late_listings():
        produce(topic, {0: 2})
        assert [batch["end"] for batch in query(topic, location)] == [{"0": 6, "1": 4}]
        CommitOffsetsOperator(task_id="commit", **pipeline).execute(context)
        assert holds(group) == {(topic, 0): 6, (topic, 1): 4}
        CheckOffsetDriftOperator(task_id="drift", **pipeline).execute(context)

        move = ResetOffsetsOperator(task_id="reset", **pipeline, to_offset=3, quiet_period=0)
        receipt = move.execute(context)
        assert receipt["verified"]
        assert holds(group) == {(topic, 0): 3, (topic, 1): 3}
        CheckOffsetDriftOperator(task_id="drift", **pipeline).execute(context)
        RestoreOffsetsOperator(
            task_id="restore", receipt=receipt, restore_when="always", **pipeline, quiet_period=0
        ).execute(context)
        assert holds(group) == {(topic, 0): 6, (topic, 1): 4}
        assert spark_checkpoint(location, "lake").read().kafka_offsets["0"] == {
            (topic, 0): 6,
            (topic, 1): 4,
        }

        context["ti"].run_id = "manual__2"
        move.execute(context)
    (batch,) = query(topic, location)
    assert (batch["start"], batch["end"]) == ({"0": 3, "1": 3}, {"0": 6, "1": 4})
    assert batch["batch"] == 2
    with pytest.raises(Exception, match="checkpoint"):
        CheckOffsetDriftOperator(task_id="drift", **pipeline).execute(context)
    assert SECRET not in caplog.text
    assert SECRET not in json.dumps(context["ti"].xcoms)


def test_spark_plans_truncated_batches_again_under_their_numbers(query, opened, s3, make_topic, produce):
    topic, location = make_topic(1), s3.new_location()
    for _ in range(2):
        produce(topic, {0: 3})
        query(topic, location)
    spark = opened(location)
    plan = plan_truncate(spark, 0, CheckpointPolicy(sink="noop"))
    apply_checkpoint_plan(spark, plan, quiet_period=0)
    apply_checkpoint_plan(spark, plan_checkpoint_restore(opened(location)), quiet_period=0)
    assert opened(location).read().batch_id == 1
    plan = plan_truncate(spark, 0, CheckpointPolicy(sink="noop"))
    apply_checkpoint_plan(spark, plan, quiet_period=0)
    # What Spark removes with one request is removed in part.
    with s3.faults.fault("DELETE MANY", "", "half"), s3.faults.fault("PUT", location, "slow down", times=1):
        (batch,) = query(topic, location)
    assert (batch["batch"], batch["start"], batch["end"]) == (1, {"0": 3}, {"0": 6})


def test_a_wrong_secret_in_the_connection_is_a_refusal_that_names_it_and_does_not_show_it(s3, lake):
    location = s3.new_location()
    # Airflow keeps the storage of a connection as long as the process lives.
    lake("another-secret-c4n4ry", "pond")
    with pytest.raises(StorageError, match=r"no permission .*'pond' \(checkpoint_conn_id\)") as refused:
        spark_checkpoint(location, "pond").read()
    assert not refused.value.retriable
    assert "c4n4ry" not in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize("restore", [False, True])
def test_a_batch_in_which_spark_was_killed_is_discarded_or_run_again(
    new_spark, query, bootstrap_servers, s3, lake, make_topic, produce, new_group, context, restore
):
    topic, location, group = make_topic(1), s3.new_location(), new_group()
    pipeline = {"group_id": group, "checkpoint_location": location, "checkpoint_conn_id": "lake"}
    produce(topic, {0: 4})
    query(topic, location)
    CommitOffsetsOperator(task_id="commit", **pipeline).execute(context)
    produce(topic, {0: 4})
    doomed = new_spark()
    doomed.ready()
    with pytest.raises(DriverKilledError):
        doomed.run(topic, location, {"kafka.bootstrap.servers": bootstrap_servers}, dies=True)
    assert spark_checkpoint(location, "lake").read().pending_batch_id == 1

    receipt = ResetOffsetsOperator(
        task_id="reset", **pipeline, to_offset=2, on_pending_batch="discard", sink="noop", quiet_period=0
    ).execute(context)
    if restore:
        RestoreOffsetsOperator(
            task_id="restore", receipt=receipt, restore_when="always", **pipeline, quiet_period=0
        ).execute(context)
    (batch,) = query(topic, location)
    assert (batch["batch"], batch["start"], batch["end"]) == (1, {"0": 4 if restore else 2}, {"0": 8})
