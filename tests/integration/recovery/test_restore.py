"""A reset is taken back from a file of Kafka's own tool."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.integration

ENDS = {0: 10, 1: 4, 2: 6}
COMMITTED = {0: 5, 1: 2}
READ = {0: 8, 1: 3, 2: 4}
"""Where the checkpoint stands; the group is behind, and has no commit for partition 2."""


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic()
    produce(name, ENDS)
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, COMMITTED)
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


@pytest.fixture
def committed(committed, group, topic):
    """committed() -> {partition: offset} of the group."""
    return partial(committed, group, topic)


@pytest.fixture
def restore(context, query, group):
    """Moves both back; parameters are the operator's."""

    def run(**parameters):
        names = {"group_id": group, "checkpoint_location": query.location, "quiet_period": 0}
        task = RestoreOffsetsOperator(task_id="restore", restore_when="always", **names, **parameters)
        return task.execute(context)

    return run


def test_a_file_that_kafkas_tool_exported_is_put_back(
    topic, group, query, committed, kafka_tools, restore, tmp_path
):
    flags = ("--reset-offsets", "--group", group, "--topic", f"{topic}:0,1", "--shift-by", "-1", "--export")
    exported = kafka_tools.consumer_groups(*flags, "--dry-run").stdout
    file = tmp_path / "plan.csv"
    file.write_text("\n".join(line for line in exported.splitlines() if line.count(",") == 2))
    restored = restore(from_file=str(file))
    assert committed() == {0: 4, 1: 1}
    assert query.stands() == {0: 4, 1: 1, 2: 4}
    assert restored["source"]["restore"] == str(file)
