"""Tasks that still use the connection of a cluster which their pipeline has left by a failover."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import filled_broker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_failover, plan_checkpoint_restore
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import LISTENER, CommitMetadata
from airflow_kafka_offsets.model.failover_plan import FailoverPlan
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.failover import known_group_plans
from airflow_kafka_offsets.moves.restore import plan_restore_archive
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.task.identity import commit_metadata

FIRST = TopicPartition("orders", 0)


class Pipeline:
    """A query and its group, at 90 on the cluster that they leave, and at 70 on its mirror."""

    def __init__(self, root: Any) -> None:
        names = ("source", "mirror")
        self.brokers = {name: filled_broker(range(100), cluster_id=name) for name in names}
        self.clients = {name: open_client(broker) for name, broker in self.brokers.items()}
        self.query = Query(root)
        self.query.run(0, {"orders": {0: 50}})
        self.query.run(1, {"orders": {0: 90}})
        self.commit("source", 90, at=1)

    def commit(self, cluster: str, offset: int, **by: Any) -> None:
        made = CommitMetadata(run="r", cluster=cluster, **by)
        self.clients[cluster].commit("etl", {FIRST: offset}, made.text())

    def fail_over(self, by: CommitMetadata = CommitMetadata()) -> None:  # noqa: B008  # it is frozen
        target: Any = self.clients["mirror"]
        checkpoint = SparkCheckpoint(self.query.location)
        left = self.clients["source"].log_ids(["orders"])
        moved = plan_checkpoint_failover(
            checkpoint,
            {"0": {FIRST: 70}},
            CheckpointPolicy(),
            request="failover",
            log_ids=target.log_ids(["orders"]),
            left_logs=left,
        )
        groups = known_group_plans(target, {"etl": {FIRST: 70}}, left)
        apply_pipeline(target, FailoverPlan.combine(groups, moved), by, checkpoint, 0)

    def run(self, task: Any, cluster: str, **parameters: Any) -> Any:
        names = {"group_id": "etl", "topics": "orders", "checkpoint_location": self.query.location}
        operator = task(task_id="t", kafka_config_id=cluster, **names, **parameters)
        operator.open_client = lambda *_: open_client(self.brokers[cluster])
        return operator.execute({})

    def at(self) -> list[int | None]:
        found = [
            committed_offsets(client.committed("etl", [FIRST]))[FIRST] for client in self.clients.values()
        ]
        return [*found, *self.query.stands().values()]


@pytest.fixture
def pipeline(tmp_path):
    pipeline = Pipeline(tmp_path / "checkpoint")
    pipeline.fail_over()
    return pipeline


reset = partial(ResetOffsetsOperator, quiet_period=0)
TASKS = [
    partial(CommitOffsetsOperator, allow_rewind=True),
    partial(reset, to_offset=95),
    CheckOffsetDriftOperator,
    partial(ConsumerGroupLagSensor, max_lag=10),
    partial(ConsumerGroupLagSensor, max_lag=10, position="checkpoint"),
    partial(OffsetsReachedSensor, target={"orders": {"0": 80}}),
]


@pytest.mark.parametrize("moved_on", [False, True], ids=["failed-over", "and-reset"])
@pytest.mark.parametrize("task", TASKS)
def test_on_the_cluster_that_was_left_it_is_refused_also_after_a_reset_on_the_mirror(
    pipeline, task, moved_on
):
    if moved_on:
        pipeline.run(reset, "mirror", to_offset=60)
    before = pipeline.at()
    with pytest.raises(
        AirflowFailException, match="is of cluster mirror, and the connection leads to cluster"
    ):
        pipeline.run(task, "source")
    assert pipeline.at() == before == ([90, 60, 60] if moved_on else [90, 70, 70])


@pytest.mark.parametrize("task", TASKS)
def test_a_commit_that_does_not_say_when_it_was_made_is_no_proof_that_the_pipeline_came_back(pipeline, task):
    pipeline.run(reset, "mirror", to_offset=60)
    pipeline.commit("source", 90)
    with pytest.raises(AirflowFailException, match="is of cluster mirror"):
        pipeline.run(task, "source")


@pytest.mark.parametrize("task", TASKS)
def test_a_listeners_commit_from_before_the_failover_by_a_clock_that_is_ahead_does_not_count_as_later(
    tmp_path, task
):
    pipeline = Pipeline(tmp_path / "checkpoint")
    query_id = SparkCheckpoint(pipeline.query.location).query_id()
    pipeline.commit("source", 90, tool=LISTENER, query=query_id, batch=1, at=int(time.time()) + 600)
    pipeline.fail_over()
    with pytest.raises(AirflowFailException, match="is of cluster mirror"):
        pipeline.run(task, "source")
    assert pipeline.at() == [90, 70, 70]


@pytest.mark.parametrize("task", TASKS)
def test_on_the_mirror_it_is_refused_once_the_failover_was_taken_back(tmp_path, task):
    """The restore commits the group on the mirror, which does not say that the pipeline is there."""
    pipeline = Pipeline(tmp_path / "checkpoint")
    pipeline.commit("mirror", 50, at=1)
    pipeline.fail_over()
    mirror: Any = pipeline.clients["mirror"]
    checkpoint = SparkCheckpoint(pipeline.query.location)
    plan = plan_restore_archive(mirror, "0001-failover", checkpoint, GroupSelection.parse("etl", "orders"))
    by = CommitMetadata(tool="group restore", at=int(time.time()) + 9)
    apply_pipeline(mirror, plan, by, checkpoint, 0)
    assert pipeline.at() == [90, 50, 90]
    with pytest.raises(AirflowFailException, match="is of cluster source, and the connection leads to"):
        pipeline.run(task, "mirror")
    assert pipeline.at() == [90, 50, 90]


def test_a_failover_that_was_interrupted_before_its_first_change_does_not_move_a_query_that_has_run_since(
    tmp_path, monkeypatch
):
    pipeline = Pipeline(tmp_path / "checkpoint")
    pipeline.run(reset, "source", to_offset=80)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(apply_move, "_apply_step", dies)
        with pytest.raises(KeyboardInterrupt):
            pipeline.fail_over()
    checkpoint = SparkCheckpoint(pipeline.query.location)
    # It may still be finished.
    moved = ArchivedMoves(checkpoint).newest_with_cluster()
    assert moved is not None
    assert moved.name == "0002-failover"
    pipeline.query.run(2, {"orders": {0: 85}})
    with pytest.raises(AirflowFailException, match="is of cluster source, and the connection leads to"):
        pipeline.run(CommitOffsetsOperator, "mirror")
    pipeline.run(CommitOffsetsOperator, "source")
    assert pipeline.at() == [85, None, 85]
    with pytest.raises(
        PlanRefusedError, match="interrupted before it changed the checkpoint.* nothing to take"
    ):
        plan_checkpoint_restore(checkpoint, "0002-failover")
    plan_checkpoint_restore(checkpoint, "0001-seek")
    pipeline.run(reset, "source", to_batch=0)
    assert pipeline.at() == [50, None, 50]


@pytest.mark.parametrize("task", TASKS[3:5:2])
def test_on_the_mirror_and_once_it_was_allowed_on_the_other_cluster_it_runs(pipeline, task):
    assert pipeline.run(task, "mirror", max_lag=40)["total_lag"] == 30
    pipeline.run(reset, "source", to_offset=90, allow_new_cluster=True)
    assert pipeline.run(task, "source")["total_lag"] == 10


def test_a_retry_of_a_failover_that_was_taken_back_does_not_fail_over_again(tmp_path):
    pipeline = Pipeline(tmp_path / "checkpoint")
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "max_tries": 0, "try_number": 1}
    context: Any = {"ti": SimpleNamespace(**names)}
    pipeline.fail_over(commit_metadata(context))
    checkpoint = SparkCheckpoint(pipeline.query.location)
    apply_checkpoint_plan(checkpoint, plan_checkpoint_restore(checkpoint), quiet_period=0)
    operator = FailOverOperator(
        task_id="t",
        group_id="etl",
        checkpoint_location=pipeline.query.location,
        mirror={"kafka_config_id": "mirror"},
    )
    with pytest.raises(AirflowFailException, match="0001-failover .* was taken back by 0002-restore"):
        operator.execute(context)
    assert pipeline.at() == [90, 70, 90]


@pytest.mark.parametrize("cleared", [False, True])
def test_only_a_retry_of_the_task_that_has_applied_a_plan_overwrites_a_later_commit(tmp_path, cleared):
    pipeline = Pipeline(tmp_path / "checkpoint")
    names: dict[str, Any] = {"group_id": "etl", "checkpoint_location": pipeline.query.location}
    names |= {"kafka_config_id": "source", "mirror": {"kafka_config_id": "mirror"}}

    def run(max_tries: int = 0, **parameters: Any) -> Any:
        operator: Any = FailOverOperator(task_id="t", **names, **parameters)
        operator.open_client = lambda _: open_client(pipeline.brokers["mirror"])
        operator._source = lambda _: open_client(pipeline.brokers["source"])
        ti = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "max_tries": max_tries}
        return operator.execute({"ti": SimpleNamespace(**ti, try_number=1, xcom_push=lambda **_: None)})

    plan = run(plan_only=True)
    run(plan=plan, quiet_period=0)
    pipeline.clients["mirror"].commit("etl", {FIRST: 95})
    if cleared:
        with pytest.raises(AirflowFailException, match="it was applied .* plan again"):
            run(plan=plan, quiet_period=0, max_tries=1)
    else:
        run(plan=plan, quiet_period=0)
    assert pipeline.at() == [90, 95 if cleared else 90, 90]
