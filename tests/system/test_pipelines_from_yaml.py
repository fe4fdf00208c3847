"""Does the example of pipelines in a file run, and does one that fails leave the others alone?"""

import os
import shutil
import time
from pathlib import Path

import pytest
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration]

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "pipelines_from_yaml.py"


def test_of_many_pipelines_one_that_fails_fails_alone_and_is_named(
    run_dag, make_topic, produce, new_group, broker, tmp_path
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
    found = {name: broker.committed_everywhere(name) for name in (here, missing, last)}
    assert [commits and commits[TopicPartition(topic, 0)].offset for commits in found.values()] == [3, {}, 3]
    report = told["results"]["check"]
    assert [(each["group_id"], each["drifted"]) for each in report["pipelines"]] == [
        (here, False),
        (missing, False),
        (last, False),
    ]
    assert [each["error"] is None for each in report["pipelines"]] == [True, False, True]


def test_a_commit_that_fails_fails_the_run_although_the_check_finds_no_drift(
    run_dag, make_topic, new_group, tmp_path
):
    topic = make_topic(1)
    Query(tmp_path / "checkpoint").plan(0, {topic: {0: 3}})
    dag = Path(shutil.copy(EXAMPLE, tmp_path))
    dag.with_name("pipelines.yaml").write_text(
        f"- {{group_id: {new_group()}, topics: [{topic}], checkpoint_location: {tmp_path}/checkpoint}}\n"
    )
    told = run_dag(dag)
    assert (told["state"], told["results"]["check"]["drifted"]) == ("failed", False)


def test_groups_that_had_no_commit_for_long_do_not_fail_the_run_that_commits_them(
    run_dag, make_topic, produce, new_group, tmp_path
):
    """As in the first run, or after a pause of the DAG."""
    topic = make_topic(1)
    produce(topic, {0: 5})
    Query(tmp_path / "checkpoint").run(0, {topic: {0: 3}})
    os.utime(tmp_path / "checkpoint" / "commits" / "0", (time.time() - 3600,) * 2)
    dag = Path(shutil.copy(EXAMPLE, tmp_path))
    dag.with_name("pipelines.yaml").write_text(
        f"- {{group_id: {new_group()}, checkpoint_location: {tmp_path}/checkpoint}}\n"
    )
    assert run_dag(dag)["state"] == "success"


def test_each_job_of_a_file_is_followed_by_its_own_commit(
    run_dag, make_topic, produce, new_group, broker, tmp_path
):
    """A script stands in for Spark: it fails for the second checkpoint."""
    topic, good, bad = make_topic(1), new_group(), new_group()
    produce(topic, {0: 5})
    Query(tmp_path / "good").run(0, {topic: {0: 3}})
    Query(tmp_path / "bad").run(0, {topic: {0: 3}})
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text('#!/bin/sh\ncase "$*" in *bad*) exit 1;; esac\n')
    submit.chmod(0o755)
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "pipelines.yaml").write_text(
        f"- {{group_id: {good}, checkpoint_location: {tmp_path}/good}}\n"
        f"- {{group_id: {bad}, checkpoint_location: {tmp_path}/bad}}\n"
    )
    dag = tmp_path / "jobs.py"
    dag.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom pipelines_from_yaml import jobs as dag\n"
    )
    told = run_dag(dag, variables={"PATH": f"{submit.parent}{os.pathsep}{os.environ['PATH']}"})
    assert told["state"] == "failed"
    assert broker.committed_everywhere(good)[TopicPartition(topic, 0)].offset == 3
    assert broker.committed_everywhere(bad) == {}
