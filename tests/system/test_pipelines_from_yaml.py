"""Does the example of pipelines in a file run, and does one that fails leave the others alone?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from written_query import Query

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration]

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "pipelines_from_yaml.py"


def test_of_many_pipelines_one_that_fails_fails_alone_and_is_named(
    run_dag, make_topic, produce, new_group, bootstrap_servers, tmp_path
):
    topic, here, missing, last = make_topic(1), new_group(), new_group(), new_group()
    produce(topic, {0: 5})
    Query(tmp_path / "checkpoint").run(0, {topic: {0: 3}})
    dag = Path(shutil.copy(EXAMPLE, tmp_path))
    dag.with_name("pipelines.yaml").write_text(
        f"- {{group_id: {here}, checkpoint_location: {tmp_path}/checkpoint}}\n"
        f"- {{group_id: {missing}, checkpoint_location: {tmp_path}/nowhere}}\n"
        f"- {{group_id: {last}, checkpoint_location: {tmp_path}/checkpoint}}\n"
    )
    told = run_dag(dag)
    assert told["state"] == "failed"
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        found = {name: client.committed_everywhere(name) for name in (here, missing, last)}
    assert [commits and commits[TopicPartition(topic, 0)].offset for commits in found.values()] == [3, {}, 3]
    report = told["results"]["check"]
    assert [(each["group_id"], each["drifted"]) for each in report["pipelines"]] == [
        (here, False),
        (missing, False),
        (last, False),
    ]
    assert [each["error"] is None for each in report["pipelines"]] == [True, False, True]
