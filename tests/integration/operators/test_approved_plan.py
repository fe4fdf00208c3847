"""What the text of a plan says of the records that are read again."""

from __future__ import annotations

import json

import pytest

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration

READ = {0: 60, 1: 62}


@pytest.fixture
def plan(pipeline, context):
    context["ti"].task_id = "plan"
    task = ResetOffsetsOperator(
        task_id="plan", shift_by=-3, plan_only=True, kafka_config_id="kafka_default", **pipeline.names
    )
    value = task.execute(context)
    assert context["ti"].xcoms["return_value"] == value
    return json.loads(json.dumps(value))


def test_a_plan_says_what_it_would_write_and_what_that_means(pipeline, plan):
    assert pipeline.at() == (READ, READ)
    assert plan["plan_only"] is True
    assert (plan["before"], plan["after"]) == (
        {pipeline.topic: {"0": 60, "1": 62}},
        {pipeline.topic: {"0": 57, "1": 59}},
    )
    estimate = plan["estimate"]
    assert (estimate["records_again"], estimate["lag"], estimate["partition_lag"]) == (6, 84, 43)
    assert estimate["bytes"] > 0
    assert "sample" in estimate["reasons"]["bytes"]
    assert estimate["seconds"] is None
    assert "1 batches with records and times" in estimate["reasons"]["seconds"]
    text = plan["markdown"]
    assert text.startswith(f"### Plan {plan['digest'][:8]}, made ")
    assert (
        f"| Moves | group `{pipeline.group}` and checkpoint `{pipeline.query.location}` (batch 1) |" in text
    )
    assert "| Read again | 6 records |" in text
    assert "| Sink | not named: a sink that appends gets the records twice" in text
