"""The command that the Offsets tab shows really takes a move back: it is run, and Kafka's own tool asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration


@pytest.fixture
def default_connection(bootstrap_servers, monkeypatch):
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))


@pytest.fixture
def moved(browser, metadata, default_connection):
    """moved(...) -> (receipt, what the tab says) of a reset that was really made."""

    def make(**parameters):
        if "checkpoint_location" in parameters:
            parameters["quiet_period"] = 0
        with metadata.new_dag("moved"):
            reset = ResetOffsetsOperator(task_id="reset", **parameters)
        receipt = reset.execute({})
        run_id = metadata.add_run("moved", {"reset": receipt})
        return receipt, browser.get(f"/api/dags/moved/runs/{run_id}/tasks/reset/-1").json()

    return make


@pytest.fixture
def paste(tmp_path):
    """paste(command, execute=...) runs it as a person would."""

    def run(command, *, execute):
        if execute:
            command = command.replace("group restore", "group restore --execute")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_of_two_groups(moved, paste, make_topic, produce, commit, new_group, oracle):
    topics, groups = [make_topic(1), make_topic(1)], [new_group(), f"{new_group()} it's; $(exit 9)"]
    for topic, group in zip(topics, groups, strict=True):
        produce(topic, {0: 10})
        commit(group, topic, {0: 7})
    receipt, shown = moved(group_id=dict(zip(topics, groups, strict=True)), to_offset="earliest")
    assert receipt["changed"] == 2
    assert oracle.committed(*groups) == {
        group: {(topic, 0): 0} for topic, group in zip(topics, groups, strict=True)
    }

    paste(shown["restore_command"], execute=False)
    assert set(oracle.committed(groups[0])[groups[0]].values()) == {0}
    paste(shown["restore_command"], execute=True)

    assert oracle.committed(*groups) == {
        group: {(topic, 0): 7} for topic, group in zip(topics, groups, strict=True)
    }


def test_of_a_group_and_its_checkpoint(
    moved, paste, make_topic, produce, commit, new_group, new_query, oracle
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    query = new_query({topic: {0: 7}})
    commit(group, topic, {0: 7})
    _, shown = moved(group_id=group, checkpoint_location=query.location, to_offset=2)
    assert oracle.committed(group)[group] == {(topic, 0): 2}

    # Nothing has written to it for a while, as the command wants it.
    for path in Path(query.location).rglob("*"):
        os.utime(path, (1, 1))
    paste(shown["restore_command"], execute=True)

    assert oracle.committed(group)[group] == {(topic, 0): 7}
    (offsets,) = SparkCheckpoint(query.location).read().kafka_offsets.values()
    assert set(offsets.values()) == {7}
