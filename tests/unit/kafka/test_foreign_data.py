"""
What other clients have written to a broker is read, shown in one line, or refused; nothing of it ends a task.
"""

from datetime import datetime, timezone

import pytest

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.groups import plan_commits, plan_group_resets
from airflow_kafka_offsets.readings.places import read_place
from airflow_kafka_offsets.readings.window import is_committed_by_run

METADATA = [
    "[" * 4_000,
    '{"a":' * 800,
    "9" * 4_000,
    f'{{"at": {"9" * 3_000}}}',
    '{"query": "\\ud800", "batch": 1e400, "token": ["t"]}',
    "\x1b[2J\r\n",
]


@pytest.mark.parametrize(
    "metadata", METADATA, ids=["lists", "objects", "number", "time", "surrogate", "escapes"]
)
def test_commits_with_any_metadata_are_planned_upon(client, make_topic, new_group, metadata):
    topic, group = make_topic(1), new_group()
    partition = TopicPartition(topic, 0)
    client.commit(group, {partition: 0}, metadata)
    scopes = {group: TopicScope.parse(topic)}
    now = datetime.now(tz=timezone.utc)

    (plan,) = plan_group_resets(
        client, scopes, read_place("shift_by", 0), now=now, metadata=CommitMetadata(token="ours")
    )

    assert plan.after == {partition: 0}
    assert not is_committed_by_run(
        client, GroupSelection.parse(group, topic), CommitMetadata(dag="dag", run="run")
    )
    (move,) = plan_commits(client, {group: {partition: 0}}, source={}, query="ours")
    assert "\n".join(move.refusals).isprintable()


def test_a_member_is_shown_without_what_would_move_the_cursor(client, memory, make_topic):
    memory.join("g", "m", "a\x1b[31mreader\n", (make_topic(1),))

    (member,) = client.describe_groups(["g"])["g"].members

    assert str(member).startswith(r"a\x1b[31mreader\n on ")
