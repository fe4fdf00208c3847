from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from command_line_words import words_of_dags

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture
def drift(bootstrap_servers):
    """Runs the command as a user does, in a process of its own."""

    def run(*arguments, on=bootstrap_servers):
        command = [sys.executable, "-m", "airflow_kafka_offsets.cli", "drift", *map(str, arguments)]
        command += ["--bootstrap-server", on]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert not words_of_dags(done.stderr, keys="--pipelines" in arguments), done.stderr
        assert done.stdout.startswith("{") or not words_of_dags(done.stdout), done.stdout
        return done

    return run


@pytest.fixture
def pipeline(make_topic, produce, new_group, bootstrap_servers, tmp_path):
    """A checkpoint at 10 and 4 that ended a minute ago, and its group at 10 and 3."""
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 10, 1: 4})
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
    (tmp_path / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps({topic: {"0": 10, "1": 4}}))
    ended = tmp_path / "commits" / "0"
    ended.write_text("v1\n{}")
    os.utime(ended, (time.time() - 60, time.time() - 60))
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        client.commit(group, {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 3})
    return tmp_path, group, topic


def test_drift_is_shown_with_what_to_do_and_is_exit_1(drift, pipeline):
    location, group, topic = pipeline
    done = drift(location, group)
    assert done.returncode == 1
    rows = [line.split(maxsplit=6) for line in done.stdout.splitlines()]
    assert [topic, "0", "10", "10", "0", "10", "in step"] in rows
    assert [topic, "1", "4", "3", "0", "4", "group behind"] in rows
    assert "group behind: the newest batch was not committed" in done.stdout
    assert done.stderr == ""


def test_the_report_as_json_for_a_group_by_topic(drift, pipeline):
    location, group, topic = pipeline
    done = drift(location, json.dumps({topic: group}), "--topic", f"{topic}:0", "--output", "json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert (report["version"], report["drifted"]) == (1, False)
    (shown,) = report["groups"]
    assert (shown["group_id"], shown["verdicts"], shown["checkpoint"]) == (
        group,
        {"in step": 1},
        str(location),
    )


def test_a_batch_within_grace_is_exit_0(drift, pipeline):
    location, group, _ = pipeline
    done = drift(location, group, "--grace", "600")
    assert done.returncode == 0
    assert "within grace" in done.stdout


def test_a_grace_that_is_none_is_a_usage_error(drift, pipeline):
    location, group, _ = pipeline
    done = drift(location, group, "--grace", "soon")
    assert done.returncode == 2
    assert "expected seconds" in done.stderr


@pytest.mark.parametrize("away", ["checkpoint", "broker"])
def test_what_could_not_be_checked_is_exit_3_a_sentence_and_json(away, drift, pipeline, tmp_path):
    location, group, _ = pipeline
    if away == "broker":
        done = drift(location, group, "--output", "json", "--timeout", "2", on="127.0.0.1:1")
    else:
        done = drift(tmp_path / "nothing", group, "--output", "json")
    assert done.returncode == 3
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert found.pop("error") == done.stderr.removeprefix("Error: ").rstrip("\n")
    assert found == {"version": 1, "drifted": None, "groups": []}


def test_too_little_headroom_is_drift(drift, pipeline, produce, bootstrap_servers):
    location, group, topic = pipeline
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        client.commit(group, {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 4})
    produce(topic, {0: 1})
    assert drift(location, group, "--min-headroom", "P6D").returncode == 0
    done = drift(location, group, "--min-headroom", "P8D")
    assert done.returncode == 1
    assert f"expiring on 1 of 2 partitions ({topic}-0, " in done.stdout
    done = drift(location, group, "--min-headroom", "0")
    assert done.returncode == 2
    assert "--min-headroom 0: expected seconds" in done.stderr


def write_pipelines(file, *pipelines):
    keys = ("group_id", "checkpoint_location")
    file.write_text(json.dumps([dict(zip(keys, map(str, each), strict=True)) for each in pipelines]))
    return file


def test_all_pipelines_of_a_file_are_checked_whatever_one_of_them_says(drift, pipeline, new_group, tmp_path):
    location, group, topic = pipeline
    missing = new_group()
    file = write_pipelines(tmp_path / "p.json", (missing, tmp_path / "nothing"), (group, location))
    done = drift("--pipelines", file)
    assert done.returncode == 1
    assert (
        f"group '{group}' and {location} (batch 0): group behind on 1 of 2 partitions ({topic}-1)"
        in done.stdout
    )
    assert done.stdout.endswith("2 pipelines: 1 drifted, 1 could not be checked\n")
    assert f"Error: group '{missing}' could not be checked: {tmp_path}/nothing: " in done.stderr
    report = json.loads(drift("--pipelines", file, "--output", "json").stdout)
    assert report["drifted"] is True
    assert [(each["group_id"], each["error"] is None) for each in report["pipelines"]] == [
        (missing, False),
        (group, True),
    ]


def test_one_of_a_file_that_could_not_be_checked_is_exit_3_where_nothing_has_drifted(
    drift, pipeline, tmp_path
):
    location, group, _ = pipeline
    file = write_pipelines(tmp_path / "p.json", (group, location), ("other", tmp_path / "nothing"))
    assert drift("--pipelines", file, "--grace", "10m").returncode == 3
    file = write_pipelines(tmp_path / "p.json", (group, location))
    assert drift("--pipelines", file, "--grace", "10m").returncode == 0
