"""A failover that is killed after any of its steps is finished, or taken back, by whoever comes next."""

import json

import pytest
from checkpoint_moves import files, sparks_own
from killed_moves import kill_at_each_step
from mirrored_clusters import READ, SYNCS
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.failover import plan_failover

pytestmark = pytest.mark.integration

POLICY = FailoverPolicy(checkpoint=CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True))

MOVE = """
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.moves.failover import plan_failover

def move(checkpoint, number, source, target, syncs, group):
    mirror = Mirror(prefix="other.", syncs_topic=syncs)
    policy = FailoverPolicy(checkpoint=CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True))
    with (
        OffsetsClient({"bootstrap.servers": source}) as left,
        OffsetsClient({"bootstrap.servers": target}) as entered,
    ):
        selection = GroupSelection(f"{group}-{number}")
        plan = plan_failover(left, entered, checkpoint, selection, mirror, policy=policy)
        apply_pipeline(entered, plan, CommitMetadata(tool="test"), checkpoint, quiet_period=0)
"""


def test_a_killed_failover_is_finished_or_taken_back(mirrored, topic, new_group, tmp_path, cli):
    template, group = Query(tmp_path / "template"), new_group()
    template.run(0, {topic: {0: 10, 1: 10}})
    template.run(1, {topic: READ})
    template.plan(2, {topic: {0: 90, 1: 60}})
    names = (mirrored.source, mirrored.target, SYNCS["other"], group)
    killed, _ = kill_at_each_step(MOVE, template.root, tmp_path / "killed", *names)
    mirror = Mirror(prefix="other.", syncs_topic=SYNCS["other"])
    there = {TopicPartition(mirror.topic(topic), number): at for number, at in READ.items()}
    here = {TopicPartition(topic, number): at for number, at in READ.items()}

    def begun(root):
        return (root / "_kafka_offsets" / "0001-failover" / "manifest.json").exists()

    def finish(root, client):
        checkpoint, selection = SparkCheckpoint(str(root)), GroupSelection(f"{group}-{root.name}")
        # Spark would start from it, on one cluster or on the other.
        assert checkpoint.read().kafka_offsets["0"] in (here, there)
        # Once it was begun, what is left is done with what was planned: the source may be gone.
        source = None if begun(root) else mirrored.on_source
        plan = plan_failover(source, client, checkpoint, selection, mirror, policy=POLICY)
        apply_pipeline(client, plan, CommitMetadata(tool="test"), checkpoint, quiet_period=0)
        assert checkpoint.read().kafka_offsets["0"] == there
        found = client.committed(selection.group_id, there)
        assert {tp: commit and commit.offset for tp, commit in found.items()} == there
        receipt = json.loads(json.dumps(plan.make_receipt(verified=True)))
        assert receipt["failover"]["kinds"] == {"exact (record)": 2}, root.name
        assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 70, "1": 55}}}, root.name

    def take_back(root):
        options = ("--archive", "0001-failover", "--bootstrap-server", mirrored.target, "--quiet-period", "0")
        done = cli("group", "restore", f"{group}-{root.name}", "--checkpoint", root, *options, "--execute")
        assert done.code == 0, done
        assert sparks_own(files(root)) == sparks_own(files(template.root))

    with OffsetsClient({"bootstrap.servers": mirrored.target}) as client:
        for root in killed:
            if int(root.name) % 2 or not begun(root):
                finish(root, client)
            else:
                take_back(root)
