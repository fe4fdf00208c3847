"""A recovery that fails is a failed run, and leaves group and checkpoint where they were."""

from __future__ import annotations

import json
import time

import pytest

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration]

QUERY_ID = "11111111-2222-3333-4444-555555555555"
TO, END = 2, 10

RECOVERY = """
import json
import re
import sys
from pathlib import Path
from airflow.sdk import DAG, Param, task
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pipelines = json.loads('PIPELINES')
dags = {}
for name, orders in pipelines.items():
    with DAG(name, default_args=orders) as dag:
        reset = ResetOffsetsOperator(task_id="reset", to_offset="99" if name == "refused" else "TO", quiet_period=0)

        @task
        def process(name=name, root=orders["checkpoint_location"]):
            if name == "fails":
                raise RuntimeError("the job failed")
            # What a query leaves that reads up to offset END.
            for directory in ("offsets", "commits"):
                text = Path(root, directory, "1").read_text()
                Path(root, directory, "2").write_text(re.sub('"0": *TO', '"0": END', text))

        commit = CommitOffsetsOperator(task_id="commit")
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, quiet_period=0)
        reset >> process() >> commit >> restore.as_teardown(setups=reset)
    dags[name] = globals()[name] = dag

if __name__ == "__main__":
    for name, dag in dags.items():
        run = dag.test()
        instances = run.get_task_instances()
        told = {"run": str(run.state), "states": {ti.task_id: str(ti.state) for ti in instances}}
        told["restore"] = run.get_task_instance("restore").xcom_pull(task_ids="restore")
        print("@@" + json.dumps({name: told}))
"""


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(1)
    produce(name, {0: 10})
    return name


@pytest.fixture(scope="module")
def runs(airflow, topic, bootstrap_servers, tmp_path_factory):
    """Runs of three DAGs, whose job fails, succeeds, or is not reached: what they told and where all is."""
    home = tmp_path_factory.mktemp("recovery")
    pipelines = {}
    for name in ("fails", "succeeds", "refused"):
        root = home / name
        for batch, offset in ((0, 3), (1, 8)):
            for directory in ("offsets", "commits"):
                (root / directory).mkdir(parents=True, exist_ok=True)
            line = json.dumps({topic: {"0": offset}})
            head = json.dumps(
                {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1_000), "conf": {}}
            )
            (root / "offsets" / str(batch)).write_text(f"v1\n{head}\n{line}")
            (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (root / "metadata").write_text(json.dumps({"id": QUERY_ID}))
        pipelines[name] = {"group_id": f"{name}-{topic}", "checkpoint_location": str(root)}
    tp = TopicPartition(topic, 0)
    dags = home / "dags"
    dags.mkdir()
    file = dags / "recovery.py"
    file.write_text(
        RECOVERY.replace("PIPELINES", json.dumps(pipelines)).replace("TO", str(TO)).replace("END", str(END))
    )
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        for orders in pipelines.values():
            client.commit(orders["group_id"], {tp: 8})
        done = airflow(str(file), AIRFLOW__CORE__DAGS_FOLDER=str(dags))
        told = {}
        for line in done.stdout.splitlines():
            if line.startswith("@@"):
                told |= json.loads(line[2:])
        assert len(told) == len(pipelines), done.stdout[-4000:] + done.stderr[-2000:]
        for name, orders in pipelines.items():
            state = SparkCheckpoint(orders["checkpoint_location"]).read()
            told[name]["checkpoint"] = state.kafka_offsets["0"][tp]
            commit = client.committed(orders["group_id"], [tp])[tp]
            assert commit is not None
            told[name]["group"] = commit.offset
    return told


def test_a_recovery_whose_job_fails_is_a_failed_run_and_everything_is_where_it_was(runs, topic):
    fails = runs["fails"]
    assert fails["states"] == {
        "reset": "success",
        "process": "failed",
        "commit": "upstream_failed",
        # It has put everything back, and fails so that the run does.
        "restore": "failed",
    }
    assert fails["run"] == "failed"
    assert (fails["group"], fails["checkpoint"]) == (8, 8)
    assert fails["restore"]["before"] == {topic: {"0": TO}}
    assert fails["restore"]["after"] == {topic: {"0": 8}}
    assert fails["restore"]["verified"] is True


def test_a_recovery_that_succeeds_is_a_success_and_nothing_is_restored(runs):
    succeeds = runs["succeeds"]
    assert set(succeeds["states"].values()) == {"success"}
    assert succeeds["run"] == "success"
    assert (succeeds["group"], succeeds["checkpoint"]) == (END, END)
    assert succeeds["restore"] is None


def test_a_reset_that_is_refused_is_a_failed_run_in_which_nothing_was_moved(runs):
    refused = runs["refused"]
    assert (refused["run"], refused["states"]["reset"]) == ("failed", "failed")
    # Airflow runs a teardown only if its setup succeeded.
    assert refused["states"]["restore"] == "upstream_failed"
    assert (refused["group"], refused["checkpoint"]) == (8, 8)
