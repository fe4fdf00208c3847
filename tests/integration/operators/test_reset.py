"""Resets of a group, as Kafka's own tool makes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TIMES = [int((NOON + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(10)]
COMMITTED = {0: 5, 1: 2, 2: 0}


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(config={"retention.ms": "-1"})
    produce(name, {0: 10, 1: 4}, {0: TIMES, 1: TIMES})
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, COMMITTED)
    return name


@pytest.fixture
def twin(topic, new_group, commit):
    """Another group at the same offsets."""
    name = new_group()
    commit(name, topic, COMMITTED)
    return name


def reset(context, **parameters):
    return ResetOffsetsOperator(task_id="reset", **parameters).execute(context)


@pytest.mark.parametrize(
    ("parameters", "flags"),
    [
        ({"to_offset": "earliest"}, ["--to-earliest"]),
        ({"to_offset": "latest"}, ["--to-latest"]),
        ({"to_offset": "committed"}, ["--to-current"]),
        ({"to_datetime": "2026-03-01T12:03:00.000"}, ["--to-datetime", "2026-03-01T12:03:00.000"]),
        (
            {"to_datetime": "2026-03-01T13:05:30.000+01:00"},
            ["--to-datetime", "2026-03-01T13:05:30.000+01:00"],
        ),
        ({"to_datetime": "2026-03-02T00:00:00Z"}, ["--to-datetime", "2026-03-02T00:00:00.000Z"]),
        ({"shift_by": "+2", "topics_only": "0,1"}, ["--shift-by", "2"]),
        ({"shift_by": -2, "topics_only": "0,1"}, ["--shift-by", "-2"]),
        ({"by_duration": "PT0.001S"}, ["--by-duration", "PT0.001S"]),
        ({"by_duration": "P20000D"}, ["--by-duration", "P20000D"]),
    ],
    ids=[
        "earliest",
        "latest",
        "current",
        "datetime",
        "datetime-zone",
        "after-the-last-record",
        "shift-forward",
        "shift-back",
        "duration-after-the-last-record",
        "duration-before-the-first-record",
    ],
)
def test_a_reset_moves_to_where_kafkas_tool_would(
    parameters, flags, topic, group, twin, kafka_tools, committed, context
):
    parameters = dict(parameters)
    only = parameters.pop("topics_only", "0,1,2")
    result = kafka_tools.consumer_groups(
        "--reset-offsets", "--group", twin, "--topic", f"{topic}:{only}", *flags, "--execute"
    )
    assert not result.error
    reset(context, group_id=group, topics=f"{topic}:{only}", **parameters)
    assert committed(group, topic) == committed(twin, topic)


def test_a_file_of_kafkas_own_tool_moves_the_group(topic, group, kafka_tools, holds, context, tmp_path):
    exported = kafka_tools.consumer_groups(
        "--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--dry-run", "--export"
    )
    file = tmp_path / "plan.csv"
    file.write_text("\n".join(line for line in exported.stdout.splitlines() if line.count(",") == 2))
    receipt = reset(context, group_id=group, from_file=file.as_uri())
    assert holds(group) == {0: 10, 1: 4, 2: 0}
    assert receipt["source"] == {"from_file": file.as_uri()}
