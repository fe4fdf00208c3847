"""Moves of a pipeline with a checkpoint, as Kafka's own tool shows them; its files and ours."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from airflow_task import new_run, reset
from kafka_shell import parse_describe

from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.integration

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TIMES = [int((NOON + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(10)]
ENDS = {0: 10, 1: 4, 2: 6}
COMMITTED = {0: 5, 1: 2}
READ = {0: 8, 1: 3, 2: 4}
"""Where the checkpoint stands; the group is behind, and has no commit for partition 2."""


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(config={"retention.ms": "-1"})
    produce(name, ENDS, dict.fromkeys(ENDS, TIMES))
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, COMMITTED)
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


def test_group_and_checkpoint_move_to_the_same_offsets(
    topic, new_group, new_query, commit, kafka_tools, context, tmp_path
):
    file = tmp_path / "plan.csv"
    file.write_text(f"{topic},0,7\n{topic},1,1\n")
    expected = {
        ("to_datetime", "2026-03-01T12:02:30Z"): {0: 3, 1: 3, 2: 3},
        ("to_offset", "earliest"): {0: 0, 1: 0, 2: 0},
        ("shift_by", -1): {0: 4, 1: 1, 2: 3},
        ("from_file", str(file)): {0: 7, 1: 1},
        ("to_offset", "committed"): {0: 5, 1: 2, 2: 4},
    }
    groups, stands = {}, {}
    for (scenario, value), offsets in expected.items():
        groups[new_group()] = offsets
        name = list(groups)[-1]
        commit(name, topic, COMMITTED)
        query = new_query({topic: READ})
        new_run(context)
        receipt = reset(context, query, {topic: name}, **{scenario: value})
        assert receipt["verified"] is True
        stands[name] = query.stands()
    said = kafka_tools.consumer_groups("--describe", *(part for name in groups for part in ("--group", name)))
    rows = parse_describe(said.stdout)
    theirs = {
        name: {r["partition"]: r["current_offset"] for r in rows if r["group"] == name} for name in groups
    }
    assert theirs == groups
    # What a file does not name stays.
    assert stands == {name: READ | offsets for name, offsets in groups.items()}


def test_the_receipt_has_both_parts_and_the_archive_both_images(topic, group, query, context, kafka_tools):
    receipt = reset(context, query, group, to_offset="earliest")
    assert json.loads(json.dumps(receipt)) == receipt
    assert receipt["before"] == {topic: {"0": 5, "1": 2, "2": None}}
    assert receipt["after"] == {topic: {"0": 0, "1": 0, "2": 0}}
    assert receipt["checkpoint"] == {
        "kind": "seek",
        "location": query.location,
        "query_id": "11111111-2222-3333-4444-555555555555",
        "batch_id": 1,
        "before": {"0": {topic: {"0": 8, "1": 3, "2": 4}}},
        "after": {"0": {topic: {"0": 0, "1": 0, "2": 0}}},
        "discarded": [],
        "archive": "0001-seek",
        "logs": receipt["logs"],
        "times": {"0": {**receipt["checkpoint"]["times"]["0"], "after": receipt["times"]["after"]}},
    }
    archive = query.root / "_kafka_offsets" / "0001-seek"
    assert (archive / "after.csv").read_text() == f"{topic},0,0\n{topic},1,0\n{topic},2,0\n"
    flags = ("--reset-offsets", "--group", group, "--from-file", str(archive / "before.csv"), "--dry-run")
    planned = kafka_tools.consumer_groups(*flags)
    assert planned.error is None
    rows = [line.split()[1:] for line in planned.stdout.splitlines() if line.startswith(group)]
    assert sorted(rows) == [[topic, "0", "5"], [topic, "1", "2"]]
    # The receipt was stored before the first write.
    assert context["ti"].xcoms["return_value"] == {**receipt, "verified": False}


def test_a_file_that_kafkas_tool_exported_is_put_back(
    topic, group, query, committed, kafka_tools, context, tmp_path
):
    flags = ("--reset-offsets", "--group", group, "--topic", f"{topic}:0,1", "--shift-by", "-1", "--export")
    exported = kafka_tools.consumer_groups(*flags, "--dry-run").stdout
    file = tmp_path / "plan.csv"
    file.write_text("\n".join(line for line in exported.splitlines() if line.count(",") == 2))
    names = {"group_id": group, "checkpoint_location": query.location, "quiet_period": 0}
    task = RestoreOffsetsOperator(task_id="restore", restore_when="always", from_file=str(file), **names)
    restored = task.execute(context)
    assert committed(group, topic) == {0: 4, 1: 1}
    assert query.stands() == {0: 4, 1: 1, 2: 4}
    assert restored
    assert restored["source"]["restore"] == str(file)
