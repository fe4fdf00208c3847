"""A restore whose result was lost, and what others have done before its retry."""

from dataclasses import replace

import pytest
from written_query import QUERY_ID

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.recovery import Recovery
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.recovery import judge_recovery
from airflow_kafka_offsets.moves.restore import plan_restore_receipt

RESET = CommitMetadata(run="r", task="reset", token="a", tool="reset")
RESTORE = CommitMetadata(run="r", task="restore", token="b", tool="restore")


@pytest.fixture
def receipt(pipeline):
    """The receipt of a reset that was taken back by a restore whose result was lost."""
    receipt = Receipt.parse(pipeline.reset(50, RESET))
    plan = plan_restore_receipt(
        pipeline.client, receipt, pipeline.checkpoint, pipeline.group, metadata=RESTORE
    )
    apply_pipeline(pipeline.client, plan, RESTORE, pipeline.checkpoint, 0)
    return receipt


def judge(pipeline, receipt):
    recovery = Recovery({RESET.identity}, RESTORE, pipeline.group.group_ids)
    return judge_recovery(pipeline.client, pipeline.checkpoint, receipt, recovery)


def test_everything_was_put_back(pipeline, receipt):
    verdict = judge(pipeline, receipt)
    assert verdict.restored
    assert not verdict.to_restore
    assert verdict.describe_outcome(receipt, None) == "everything was put back"


def test_a_reset_and_a_commit_of_other_runs_since_stay(pipeline, receipt):
    pipeline.reset(30, replace(RESET, run="other", token="c"))
    by = CommitMetadata(run="other", task="commit", query=QUERY_ID, move=3)
    pipeline.client.commit("g", dict.fromkeys(pipeline.partitions, 30), by.text())
    verdict = judge(pipeline, receipt)
    assert not verdict.to_restore
    outcome = verdict.describe_outcome(receipt, None)
    assert outcome.startswith("put back: the rest, by an earlier try; not put back: checkpoint ")
    assert "was moved again by 0003-seek (run other" in outcome
