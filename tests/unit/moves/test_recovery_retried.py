"""A restore whose result was lost, and what others have done before its retry."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from written_query import QUERY_ID, Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.recovery import Recovery
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.recovery import judge_recovery
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_receipt

PARTITIONS = [TopicPartition("orders", number) for number in (0, 1)]
NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
GROUP = GroupSelection.parse("g", "orders")
RESET = CommitMetadata(run="r", task="reset", token="a", tool="reset")
RESTORE = CommitMetadata(run="r", task="restore", token="b", tool="restore")


class Restored:
    """A pipeline that was at 90, was reset, and was put back by a restore whose result was lost."""

    def __init__(self, client, root):
        self.client, self.query = client, Query(root)
        self.query.run(0, {"orders": {0: 10, 1: 10}})
        self.query.run(1, {"orders": {0: 90, 1: 90}})
        client.commit("g", dict.fromkeys(PARTITIONS, 90))
        self.checkpoint = SparkCheckpoint(self.query.location)
        self.receipt = self.reset(50, RESET)
        plan = plan_restore_receipt(client, self.receipt, self.checkpoint, GROUP, metadata=RESTORE)
        apply_pipeline(client, plan, RESTORE, self.checkpoint, 0)

    def reset(self, offset, by):
        place = Place.parse(offset, "to_offset")
        plan = plan_reset(self.client, self.checkpoint, GROUP, place, now=NOW, metadata=by)
        return apply_pipeline(self.client, plan, by, self.checkpoint, 0)

    def judge(self):
        recovery = Recovery({RESET.identity}, RESTORE, GROUP.group_ids)
        return judge_recovery(self.client, self.checkpoint, self.receipt, recovery)


@pytest.fixture
def restored(client, tmp_path):
    return Restored(client, tmp_path / "checkpoint")


def test_everything_was_put_back(restored):
    verdict = restored.judge()
    assert verdict.restored
    assert not verdict.to_restore
    assert verdict.describe_outcome(restored.receipt, None) == "everything was put back"


def test_a_reset_and_a_commit_of_other_runs_since_stay(restored):
    restored.reset(30, replace(RESET, run="other", token="c"))
    by = CommitMetadata(run="other", task="commit", query=QUERY_ID, move=3)
    restored.client.commit("g", dict.fromkeys(PARTITIONS, 30), by.text())
    verdict = restored.judge()
    assert not verdict.to_restore
    outcome = verdict.describe_outcome(restored.receipt, None)
    assert outcome.startswith("put back: the rest, by an earlier try; not put back: checkpoint ")
    assert "was moved again by 0003-seek (run other" in outcome
