"""A commit looks whether the query has worked since the reset of its run, also behind another run's moves."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit

OWN, OTHER = (CommitMetadata(run=run, task="reset", token=run, tool="reset") for run in ("own", "other"))


@pytest.fixture
def commit(pipeline):
    def plan():
        made_by = CommitMetadata(run="own", task="commit")
        return plan_checkpoint_commit(pipeline.client, pipeline.checkpoint, pipeline.group, made_by).plan

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
