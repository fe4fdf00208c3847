"""The routes of the Offsets tab, in Airflow's own app."""

from __future__ import annotations

from datetime import datetime

import pytest
from airflow.sdk import DAG

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

pytestmark = pytest.mark.integration


def receipt(group_id, before, after, *, log_end=100, **more):
    offsets = [{"orders": {"0": each}} for each in (before, after, 0, log_end)]
    names = ("before", "after", "log_start", "log_end")
    return {
        "version": 1,
        "group_id": group_id,
        **dict(zip(names, offsets, strict=True)),
        "changed": int(before != after),
        "records": (after or 0) - (before or 0),
        "plan_only": False,
        "verified": True,
        "source": {},
        **more,
    }


@pytest.fixture
def orders(metadata):
    with DAG("orders", start_date=datetime(2026, 1, 1), schedule=None) as dag:
        CommitOffsetsOperator(
            task_id="commit", group_id="orders", topics=["orders"], checkpoint_location="/data/orders"
        )
        ConsumerGroupLagSensor(task_id="wait", group_id="orders", topics=["orders"], max_lag=0)
    metadata.add_dag(dag)
    metadata.add_run("orders", {"commit": receipt("orders", 40, 60)}, run_id="manual__1")
    return "orders"


def test_lists_a_pipeline_once_with_its_tasks_and_its_last_move(browser, orders):
    found = browser.get("/api/pipelines").json()

    assert found["problems"] == []
    (pipeline,) = found["pipelines"]
    assert (pipeline["groups"], pipeline["topics"], pipeline["checkpoint"]) == (
        ["orders"],
        ["orders"],
        "/data/orders",
    )
    assert [task["task_id"] for task in pipeline["tasks"]] == ["commit", "wait"]
    assert pipeline["last_move"]["kind"] == "commit"
    assert pipeline["last_move"]["records"] == 20
