"""A failover that is killed after any of its steps is finished, or taken back, by whoever comes next."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from mirrored_clusters import SYNCS, Mirrored, produce
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

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

READ = {0: 70, 1: 55}
AT_MOST = 24
POLICY = FailoverPolicy(checkpoint=CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True))

DRIVER = """
import os, signal, sys
from airflow_kafka_offsets.checkpoint.reader import (SparkCheckpoint)
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.moves.failover import plan_failover

source, target, syncs, checkpoints, group = sys.argv[1:]
mirror = Mirror(prefix="other.", syncs_topic=syncs)
policy = FailoverPolicy(checkpoint=CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True))

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
    checkpoint = SparkCheckpoint(f"{checkpoints}/{last}")
    with (
        OffsetsClient({"bootstrap.servers": source}) as left,
        OffsetsClient({"bootstrap.servers": target}) as entered,
    ):
        selection = GroupSelection(f"{group}-{last}")
        plan = plan_failover(left, entered, checkpoint, selection, mirror, policy=policy)
        apply_pipeline(entered, plan, CommitMetadata(tool="test"), checkpoint, quiet_period=0)

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


@pytest.fixture(scope="module")
def topic(mirrored: Mirrored) -> str:
    name = mirrored.topic("other", partitions=2)
    for number in READ:
        produce(mirrored.source, name, 100, partition=number, first=1_000 * number)
    mirrored.wait_for_copy("other", name)
    return name


def test_a_killed_failover_is_finished_or_taken_back(mirrored, topic, new_group, tmp_path, cli):
    template, group = Query(tmp_path / "template"), new_group()
    template.run(0, {topic: {0: 10, 1: 10}})
    template.run(1, {topic: READ})
    template.plan(2, {topic: {0: 90, 1: 60}})
    for number in range(1, AT_MOST):
        shutil.copytree(template.root, tmp_path / "killed" / str(number))
    driver = subprocess.run(
        [
            *(sys.executable, "-c", DRIVER, mirrored.source, mirrored.target, SYNCS["other"]),
            *(str(tmp_path / "killed"), group),
        ],
        input=" ".join(map(str, range(1, AT_MOST))) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ends = dict(line.split(maxsplit=1) for line in driver.stdout.splitlines())
    killed = [number for number, end in ends.items() if end == "killed"]
    assert len(killed) >= 12, driver
    assert set(map(int, killed)) == set(range(1, len(killed) + 1))
    mirror = Mirror(prefix="other.", syncs_topic=SYNCS["other"])
    there = {TopicPartition(mirror.topic(topic), number): at for number, at in READ.items()}
    here = {TopicPartition(topic, number): at for number, at in READ.items()}

    def committed(number: str) -> dict[TopicPartition, int | None]:
        found = mirrored.on_target.committed(f"{group}-{number}", there)
        return {tp: commit and commit.offset for tp, commit in found.items()}

    def begun(number: str) -> bool:
        return (tmp_path / "killed" / number / "_kafka_offsets" / "0001-failover" / "manifest.json").exists()

    def finish(number: str, client: OffsetsClient) -> None:
        checkpoint = SparkCheckpoint(str(tmp_path / "killed" / number))
        # Spark would start from it, on one cluster or on the other.
        assert checkpoint.read().kafka_offsets["0"] in (here, there)
        # Once it was begun, what is left is done with what was planned: the source may be gone.
        source = None if begun(number) else mirrored.on_source
        plan = plan_failover(
            source, client, checkpoint, GroupSelection(f"{group}-{number}"), mirror, policy=POLICY
        )
        apply_pipeline(client, plan, CommitMetadata(tool="test"), checkpoint, quiet_period=0)
        assert checkpoint.read().kafka_offsets["0"] == there
        assert committed(number) == there
        receipt = json.loads(json.dumps(plan.make_receipt(verified=True)))
        assert receipt["failover"]["kinds"] == {"exact (record)": 2}, number
        assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 70, "1": 55}}}, number

    def take_back(number: str) -> None:
        root = tmp_path / "killed" / number
        options = ("--archive", "0001-failover", "--bootstrap-server", mirrored.target, "--quiet-period", "0")
        done = cli("group", "restore", f"{group}-{number}", "--checkpoint", root, *options, "--execute")
        assert done.code == 0, done
        assert sparks_files(root) == sparks_files(template.root)

    with OffsetsClient({"bootstrap.servers": mirrored.target}) as client:
        for each in killed:
            if int(each) % 2 or not begun(each):
                finish(each, client)
            else:
                take_back(each)


def sparks_files(root: Path) -> dict[str, bytes]:
    """What Spark reads: neither checksums nor archives."""
    files = [file for file in root.rglob("*") if file.is_file() and file.suffix != ".crc"]
    names = {str(file.relative_to(root)): file.read_bytes() for file in files}
    return {name: data for name, data in names.items() if not name.startswith("_kafka_offsets/")}
