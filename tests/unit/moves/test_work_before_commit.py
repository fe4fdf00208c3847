"""A commit looks whether the query has worked since the reset of its run, also behind another run's moves."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive

NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
GROUP = GroupSelection.parse("g", "orders")
OWN, OTHER = (CommitMetadata(run=run, task="reset", token=run, tool="reset") for run in ("own", "other"))


class Pipeline:
    """A query and its group, at 90."""

    def __init__(self, client, root):
        self.client, self.query = client, Query(root)
        self.query.run(0, {"orders": {0: 10, 1: 10}})
        self.query.run(1, {"orders": {0: 90, 1: 90}})
        client.commit("g", {TopicPartition("orders", number): 90 for number in (0, 1)})
        self.checkpoint = SparkCheckpoint(self.query.location)

    def reset(self, offset, by):
        place = Place.parse(offset, "to_offset")
        plan = plan_reset(self.client, self.checkpoint, GROUP, place, now=NOW, metadata=by)
        apply_pipeline(self.client, plan, by, self.checkpoint, 0)

    def take_back(self, archive):
        plan = plan_restore_archive(self.client, archive, self.checkpoint, GROUP)
        apply_pipeline(self.client, plan, CommitMetadata(tool="group restore"), self.checkpoint, 0)

    def commit(self):
        made_by = CommitMetadata(run="own", task="commit")
        return plan_checkpoint_commit(self.client, self.checkpoint, GROUP, made_by).plan


@pytest.fixture
def pipeline(client, tmp_path):
    return Pipeline(client, tmp_path / "checkpoint")


def test_a_move_of_another_run_that_was_taken_back_does_not_hide_that_nothing_was_done(pipeline):
    pipeline.reset(20, OWN)
    with pytest.raises(PlanRefusedError, match="0001-seek.* has finished no batch since"):
        pipeline.commit()
    pipeline.reset(15, OTHER)
    pipeline.take_back("0002-seek")
    with pytest.raises(PlanRefusedError, match="0001-seek.* has finished no batch since"):
        pipeline.commit()
    pipeline.query.run(2, {"orders": {0: 30, 1: 30}})
    pipeline.commit().check()


def test_a_run_whose_reset_was_taken_back_may_commit(pipeline):
    pipeline.reset(20, OWN)
    pipeline.take_back("0001-seek")
    pipeline.commit().check()
