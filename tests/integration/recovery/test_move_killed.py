"""A reset of group and checkpoint that is killed after any of its steps is finished by its retry."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from killed_moves import AT_MOST, kill_at_each_step

from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_reset

pytestmark = pytest.mark.integration

POLICY = CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True)
TASK = CommitMetadata(token="one-task-run")
COMMITTED = {0: 5, 1: 2}
READ = {0: 8, 1: 3, 2: 4}
TARGET = {0: 4, 1: 1, 2: 3}
"""One back from the commit; the partition without one from where the checkpoint stood."""

MOVE = """
from datetime import datetime, timezone
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.reset import plan_reset

def move(checkpoint, number, servers, group):
    policy = CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True)
    task = CommitMetadata(token="one-task-run")
    with OffsetsClient({"bootstrap.servers": servers}) as client:
        plan = plan_reset(
            client, checkpoint, GroupSelection(f"{group}-{number}"), Place("shift", -1),
            now=datetime.now(tz=timezone.utc), policy=policy, metadata=task,
        )
        apply_pipeline(client, plan, task, checkpoint, quiet_period=0)
"""


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic()
    produce(name, {0: 10, 1: 4, 2: 6})
    return name


def test_a_killed_reset_is_finished_by_its_retry_whatever_step_it_had_reached(
    topic, new_group, new_query, broker, bootstrap_servers, tmp_path
):
    partitions = [TopicPartition(topic, number) for number in READ]
    group = new_group()
    template = new_query({topic: READ})
    template.plan(2, {topic: {0: 9, 1: 4, 2: 6}})
    original = {TopicPartition(topic, number): offset for number, offset in READ.items()}
    for number in range(1, AT_MOST):
        broker.commit(
            f"{group}-{number}", {TopicPartition(topic, p): offset for p, offset in COMMITTED.items()}
        )

    def committed(root):
        found = broker.committed(f"{group}-{root.name}", partitions)
        return {tp.partition: commit and commit.offset for tp, commit in found.items()}

    def files(root):
        paths = [root / "metadata", *(root / "offsets").iterdir(), *(root / "commits").iterdir()]
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}

    killed, undisturbed = kill_at_each_step(
        MOVE, template.root, tmp_path / "killed", bootstrap_servers, group
    )
    assert committed(undisturbed) == TARGET

    def finish(root):
        checkpoint = SparkCheckpoint(str(root))
        # Spark would start from it, where it stood or where it goes.
        found = checkpoint.read().kafka_offsets["0"]
        assert {tp.partition: offset for tp, offset in found.items()} in (READ, TARGET)
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
            plan = plan_reset(
                client,
                checkpoint,
                GroupSelection(f"{group}-{root.name}"),
                Place("shift", -1),
                now=datetime.now(tz=timezone.utc),
                policy=POLICY,
                metadata=TASK,
            )
            apply_pipeline(client, plan, TASK, checkpoint, quiet_period=0)
        receipt = json.loads(json.dumps(plan.make_receipt(verified=True)))
        assert committed(root) == committed(undisturbed), root.name
        assert files(root) == files(undisturbed), root.name
        assert receipt["before"] == {topic: {"0": 5, "1": 2, "2": None}}, root.name
        assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 8, "1": 3, "2": 4}}}, root.name
        restored = plan_checkpoint_restore(checkpoint, receipt["checkpoint"]["archive"])
        assert restored.after == {"0": original}, root.name

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, killed))
