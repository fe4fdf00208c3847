"""Resets that were interrupted, and what follows before the same task runs again."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves import apply, write
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive

NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
RESET = CommitMetadata(run="r", task="reset", token="a", tool="reset")
PARTITIONS = {"a": TopicPartition("orders", 0), "b": TopicPartition("refunds", 0)}
GROUPS = GroupSelection.parse({"orders": "a", "refunds": "b"}, None)


class Pipeline:
    """A query of two topics, each with a group, at 90."""

    def __init__(self, client, broker, root, monkeypatch):
        self.client, self._patches = client, monkeypatch
        broker.create("refunds")
        broker.append("refunds", 0, range(100))
        self.query = Query(root)
        self.run(0, 10)
        self.run(1, 90)
        for group, tp in PARTITIONS.items():
            client.commit(group, {tp: 90})
        self.checkpoint = SparkCheckpoint(self.query.location)

    def run(self, batch, offset):
        self.query.run(batch, {"orders": {0: offset}, "refunds": {0: offset}})

    def reset(self, by=RESET, interrupted=None, **to):
        ((name, value),) = to.items()
        place = Place.parse(value, name)
        how = {"now": NOW, "metadata": by, "interrupted": interrupted}
        plan = plan_reset(self.client, self.checkpoint, GROUPS, place, **how)
        return apply_pipeline(self.client, plan, by, self.checkpoint, 0)

    def interrupt(self, groups, by=RESET, **to):
        """Reset in a process that ends after it has committed this number of groups."""
        committed = []

        def overwrite(client, plan, texts):
            if len(committed) == groups:
                raise KeyboardInterrupt
            committed.append(plan)
            write.overwrite(client, plan, texts)

        with self._patches.context() as patched:
            patched.setattr(apply, "overwrite", overwrite)
            with pytest.raises(KeyboardInterrupt):
                self.reset(by, **to)

    def at(self):
        (offsets,) = self.checkpoint.read().kafka_offsets.values()
        groups = [
            committed_offsets(self.client.committed(group, [tp]))[tp] for group, tp in PARTITIONS.items()
        ]
        return [*groups, *offsets.values()]


@pytest.fixture
def pipeline(client, broker, tmp_path, monkeypatch):
    return Pipeline(client, broker, tmp_path / "checkpoint", monkeypatch)


@pytest.mark.parametrize("by", [RESET, replace(RESET, token="b")], ids=["retry", "clear"])
def test_after_the_query_has_run_an_interrupted_reset_does_not_hide_other_parameters(pipeline, by):
    pipeline.interrupt(1, to_offset=50)
    pipeline.run(2, 60)
    assert pipeline.at() == [50, 90, 60, 60]
    receipt = pipeline.reset(by, interrupted=True, to_offset=20)
    assert pipeline.at() == [20] * 4
    assert [group["before"] for group in receipt["groups"]] == [{"orders": {"0": 90}}, {"refunds": {"0": 90}}]


@pytest.mark.parametrize("to", [{"to_offset": 50}, {"shift_by": -40}])
@pytest.mark.parametrize("groups", [0, 1])
def test_a_retry_does_not_move_again_what_was_taken_back_meanwhile_and_clearing_the_task_does(
    pipeline, groups, to
):
    pipeline.interrupt(groups, **to)
    plan = plan_restore_archive(pipeline.client, "0001-seek", pipeline.checkpoint, GROUPS)
    apply_pipeline(pipeline.client, plan, CommitMetadata(tool="group restore"), pipeline.checkpoint, 0)
    assert pipeline.at() == [90] * 4
    with pytest.raises(
        PlanRefusedError, match=r"0001-seek .* was taken back by 0002-restore \(group restore,"
    ):
        pipeline.reset(**to)
    assert pipeline.at() == [90] * 4
    pipeline.reset(replace(RESET, token="b"), **to)
    assert pipeline.at() == [50] * 4


def test_a_retry_does_not_move_again_after_another_runs_move_that_was_taken_back(pipeline):
    pipeline.reset(shift_by=-10)
    pipeline.reset(replace(RESET, run="other", token="c"), to_offset=20)
    plan = plan_restore_archive(pipeline.client, "0002-seek", pipeline.checkpoint, GROUPS)
    apply_pipeline(pipeline.client, plan, CommitMetadata(tool="group restore"), pipeline.checkpoint, 0)
    assert pipeline.at() == [80] * 4
    pipeline.reset(shift_by=-10)
    assert pipeline.at() == [80] * 4
