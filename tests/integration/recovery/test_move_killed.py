"""A reset of group and checkpoint that is killed after any of its steps is finished by its retry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest

from airflow_kafka_offsets.checkpoint.plan_move import plan_put_back_archive
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

TOKEN = "one-task-run"
POLICY = CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True)
COMMITTED = {0: 5, 1: 2}
READ = {0: 8, 1: 3, 2: 4}
TARGET = {0: 4, 1: 1, 2: 3}
"""One back from the commit; the partition without one from where the checkpoint stood."""

DRIVER = """
import os, signal, sys
from datetime import datetime, timezone
from airflow_kafka_offsets.checkpoint.reader import (SparkCheckpoint)
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.groups import GroupSelection

servers, checkpoints, group, token = sys.argv[1:]

def run(last):
    done = 0

    def step():
        nonlocal done
        done += 1
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call):
        def counting(*args):
            result = call(*args)
            step()
            return result
        return counting

    SparkCheckpoint.write_file = counted(SparkCheckpoint.write_file)
    SparkCheckpoint.remove_file = counted(SparkCheckpoint.remove_file)
    commit = counted(OffsetsClient.commit)

    def commit_counted(*args):
        step()
        return commit(*args)

    OffsetsClient.commit = commit_counted
    policy = CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True)
    checkpoint = SparkCheckpoint(f"{checkpoints}/{last}")
    with OffsetsClient({"bootstrap.servers": servers}) as client:
        plan = plan_reset(
            client, checkpoint, GroupSelection(f"{group}-{last}"), Place("shift", -1),
            now=datetime.now(tz=timezone.utc), policy=policy, metadata=CommitMetadata(token=token),
        )
        apply_pipeline(client, plan, CommitMetadata(token=token), checkpoint, quiet_period=0)

# The modules are imported once; the client's threads are each child's own. Two at a time, for as many cores.
numbers, running, finished = map(int, sys.stdin.readline().split()), {}, False
while not finished or running:
    while not finished and len(running) < 2:
        number = next(numbers)
        child = os.fork()
        if child == 0:
            run(number)
            os._exit(0)
        running[child] = number
    child, status = os.wait()
    killed = os.WIFSIGNALED(status)
    finished = finished or not killed
    print(running.pop(child), "killed" if killed else f"exit {os.waitstatus_to_exitcode(status)}", flush=True)
"""
AT_MOST = 20


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
        shutil.copytree(template.root, tmp_path / "killed" / str(number))
        broker.commit(
            f"{group}-{number}", {TopicPartition(topic, p): offset for p, offset in COMMITTED.items()}
        )

    def committed(number):
        found = broker.committed(f"{group}-{number}", partitions)
        return {tp.partition: commit and commit.offset for tp, commit in found.items()}

    def files(number):
        root = tmp_path / "killed" / str(number)
        found = {
            str(file.relative_to(root)): file.read_bytes()
            for directory in ("offsets", "commits")
            for file in (root / directory).iterdir()
        }
        return found | {"metadata": (root / "metadata").read_bytes()}

    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, bootstrap_servers, str(tmp_path / "killed"), group, TOKEN],
        input=" ".join(map(str, range(1, AT_MOST))) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ends = dict(line.split(maxsplit=1) for line in driver.stdout.splitlines())
    killed = [number for number, end in ends.items() if end == "killed"]
    undisturbed = next(number for number, end in ends.items() if end == "exit 0")
    assert len(killed) >= 12
    assert set(map(int, killed)) == set(range(1, len(killed) + 1))
    assert committed(undisturbed) == TARGET

    def finish(number):
        checkpoint = SparkCheckpoint(str(tmp_path / "killed" / number))
        # Spark would start from it, where it stood or where it goes.
        found = checkpoint.read().kafka_offsets["0"]
        assert {tp.partition: offset for tp, offset in found.items()} in (READ, TARGET)
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
            plan = plan_reset(
                client,
                checkpoint,
                GroupSelection(f"{group}-{number}"),
                Place("shift", -1),
                now=datetime.now(tz=timezone.utc),
                policy=POLICY,
                metadata=CommitMetadata(token=TOKEN),
            )
            apply_pipeline(client, plan, CommitMetadata(token=TOKEN), checkpoint, quiet_period=0)
        receipt = json.loads(json.dumps(plan.make_receipt(verified=True)))
        assert committed(number) == committed(undisturbed), number
        assert files(number) == files(undisturbed), number
        assert receipt["before"] == {topic: {"0": 5, "1": 2, "2": None}}, number
        assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 8, "1": 3, "2": 4}}}, number
        assert plan_put_back_archive(checkpoint, receipt["checkpoint"]["archive"]).after == {"0": original}, (
            number
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, killed))
