"""A reset of a group with a file of Kafka's own tool; where resets move to: ``kafka/test_acceptance.py``."""

import pytest

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration


def test_a_file_of_kafkas_own_tool_moves_the_group(
    make_topic, produce, new_group, commit, kafka_tools, holds, context, tmp_path
):
    topic, group = make_topic(), new_group()
    produce(topic, {0: 10, 1: 4})
    commit(group, topic, {0: 5, 1: 2, 2: 0})
    exported = kafka_tools.consumer_groups(
        "--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--dry-run", "--export"
    )
    file = tmp_path / "plan.csv"
    file.write_text("\n".join(line for line in exported.stdout.splitlines() if line.count(",") == 2))
    task = ResetOffsetsOperator(task_id="reset", group_id=group, from_file=file.as_uri())
    receipt = task.execute(context)
    assert holds(group) == {0: 10, 1: 4, 2: 0}
    assert receipt["source"] == {"from_file": file.as_uri()}
