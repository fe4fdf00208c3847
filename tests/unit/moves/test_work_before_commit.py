"""A commit looks whether the query has worked since the reset of its run, also behind another run's moves."""

import time

import pytest

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit

OWN, OTHER = (CommitMetadata(run=run, task="reset", token=run, tool="reset") for run in ("own", "other"))


@pytest.fixture
def commit(pipeline):
    def plan(**allowed):
        names = (pipeline.client, pipeline.checkpoint, pipeline.group)
        made_by = CommitMetadata(run="own", task="commit")
        return plan_checkpoint_commit(*names, made_by, **allowed).plan

    return plan


def test_a_move_of_another_run_that_was_taken_back_does_not_hide_that_nothing_was_done(pipeline, commit):
    pipeline.reset(20, OWN)
    with pytest.raises(PlanRefusedError, match="0001-seek.* has finished no batch since"):
        commit()
    pipeline.reset(15, OTHER)
    pipeline.take_back("0002-seek")
    with pytest.raises(PlanRefusedError, match="0001-seek.* has finished no batch since"):
        commit()
    pipeline.run(2, 30)
    commit().check()


def test_a_run_whose_reset_was_taken_back_may_commit(pipeline, commit):
    pipeline.reset(20, OWN)
    pipeline.take_back("0001-seek")
    commit().check()


def replace_query(pipeline, start):
    """Begin a new query at ``start`` in its place."""
    pipeline.query = pipeline.query.start_over()
    pipeline.query.write("sources/0/0", f'\0v1\n{{"orders":{{"0":{start},"1":{start}}}}}')


def test_a_new_query_needs_no_work_after_a_reset_of_the_query_that_it_replaces(pipeline, commit):
    pipeline.reset(20, OWN)
    replace_query(pipeline, 20)
    pipeline.run(0, 60)
    commit(allow_new_query=True).check()


def test_moves_of_a_query_that_was_replaced_do_not_hide_what_the_new_one_has_skipped(pipeline, commit):
    pipeline.reset(50, OTHER)
    replace_query(pipeline, 80)
    pipeline.run(0, 95)
    with pytest.raises(PlanRefusedError, match="nor the group's last query has read 60 records"):
        commit(allow_new_query=True).check()


def test_where_a_query_began_is_read_once_for_all_groups_that_it_takes_over(pipeline, monkeypatch):
    groups = GroupSelection.parse({"source:0": "one", "source:1": "two"})
    replace_query(pipeline, 0)
    pipeline.query.write("sources/1/0", '\0v1\n{"orders":{"0":0}}')
    pipeline.query.run(0, {"orders": {0: 60}}, {"orders": {0: 70}})
    for group in groups.group_ids:
        pipeline.client.commit(group, {TopicPartition("orders", 0): 50}, CommitMetadata(query="old").text())
    read: list[str] = []

    def read_file(self, path, **options):
        read.append(path)
        return of_storage(self, path, **options)

    of_storage = SparkCheckpoint.read_file
    monkeypatch.setattr(SparkCheckpoint, "read_file", read_file)
    names = (pipeline.client, pipeline.checkpoint, groups, CommitMetadata())
    plan_checkpoint_commit(*names, allow_new_query=True).plan.check()
    assert read.count("sources/0/0") == 1


def test_a_batch_that_was_moved_may_end_at_newer_records_also_after_a_later_move(broker, pipeline, commit):
    def truncate(batch):
        plan = plan_truncate(pipeline.checkpoint, batch, CheckpointPolicy(sink="noop"))
        apply_checkpoint_plan(pipeline.checkpoint, plan, quiet_period=0)
        broker.forget("g")

    now = time.time()
    for partition in (0, 1):
        broker.append("orders", partition, [int(now * 1_000) - 60_000] * 10)
    pipeline.query.run(1, {"orders": {0: 90, 1: 90}}, at=now - 3_600)
    pipeline.reset(110, OTHER)
    pipeline.run(2, 110)
    truncate(1)
    commit().check()
    # The query plans the batch again, and its file has what the batch has read.
    truncate(0)
    pipeline.query.run(1, {"orders": {0: 110, 1: 110}}, at=now - 3_600)
    with pytest.raises(PlanRefusedError, match="is newer than the batch"):
        commit().check()
