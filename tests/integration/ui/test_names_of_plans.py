"""Tasks that take the names of their pipeline from a plan or a receipt."""

from typing import Any

import pytest
from offsets_receipts import receipt

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.integration

UNNAMED = {"group_id": None, "topics": None, "checkpoint_location": None, "kafka_config_id": "kafka_default"}


def test_the_resets_of_a_fleet_are_in_the_history_of_each_pipeline(browser, metadata):
    names: list[dict[str, Any]] = [
        {"group_id": group, "topics": [group], "kafka_config_id": "kafka_eu"} for group in ("orders", "users")
    ]
    with metadata.new_dag("fleet"):
        plans = PlanResetsOperator(task_id="plans", pipelines=names, to_offset="earliest")
        ResetOffsetsOperator.partial(task_id="reset").expand(plan=plans.output)
    with metadata.new_dag("orders"):
        CommitOffsetsOperator(task_id="commit", offsets={"orders": {"0": 1}}, **names[0])
    metadata.add_run("orders")
    rendered: dict[Any, Any] = {"plans": {"pipelines": [dict(each) for each in names]}}
    results = {}
    for index, each in enumerate(names):
        rendered["reset", index] = {**UNNAMED, "plan": "Truncated. You can change this behaviour in ..."}
        results["reset", index] = receipt(
            each["group_id"], 60, 10 + index, topic=each["group_id"], kafka_config_id="kafka_eu", names=each
        )
    metadata.add_run("fleet", results, rendered=rendered)

    pipelines = browser.get("/api/dags/fleet/pipelines").json()["pipelines"]
    assert [(each["groups"], each["tasks"]) for each in pipelines] == [
        (["orders"], ["plans", "reset"]),
        (["users"], ["plans", "reset"]),
    ]
    for index, pipeline in enumerate(pipelines):
        history = browser.get(f"/api/dags/fleet/pipelines/{pipeline['key']}/history").json()["moves"]
        assert [(move["kind"], move["map_index"], move["offset"]) for move in history] == [
            ("reset", index, 10 + index)
        ]
    # Also in the DAG of the pipeline itself.
    assert [(move["dag_id"], move["kind"], move["offset"]) for move in browser.moves("orders")] == [
        ("fleet", "reset", 10)
    ]


def test_the_restore_of_a_receipt_that_names_the_pipeline_is_in_its_history(browser, metadata):
    names = {"group_id": "orders", "topics": None, "kafka_config_id": "kafka_default"}
    with metadata.new_dag("back"):
        reset = ResetOffsetsOperator(task_id="reset", plan="/data/plan.json")
        RestoreOffsetsOperator(task_id="restore", receipt=reset.output)
    results = {"reset": receipt("orders", 60, 10, names=names), "restore": receipt("orders", 10, 60)}
    rendered = {
        "reset": {**UNNAMED, "plan": "/data/plan.json"},
        "restore": {**UNNAMED, "receipt": results["reset"]},
    }
    metadata.add_run("back", results, rendered=rendered)

    (pipeline,) = browser.get("/api/dags/back/pipelines").json()["pipelines"]
    assert pipeline["groups"] == ["orders"]
    assert {(move["kind"], move["offset"]) for move in browser.moves("back")} == {
        ("reset", 10),
        ("restore", 60),
    }


def test_a_failover_is_found_where_it_has_moved_the_pipeline(browser, metadata):
    left = {"group_id": {"orders": "orders"}, "topics": ["orders"], "kafka_config_id": "kafka_eu"}
    with metadata.new_dag("failover"):
        FailOverOperator(task_id="failover", plan="/data/plan.json")
    moved = receipt("orders", None, 10, topic="eu.orders", kafka_config_id="kafka_us", names=left)
    rendered = {"failover": {**UNNAMED, "plan": "/data/plan.json"}}
    metadata.add_run("failover", {"failover": moved}, rendered=rendered)

    (pipeline,) = browser.get("/api/dags/failover/pipelines").json()["pipelines"]
    assert (pipeline["kafka_config_id"], pipeline["groups"], pipeline["topics"]) == (
        "kafka_us",
        ["orders"],
        None,
    )


def test_a_plan_that_was_refused_names_nothing(browser, metadata):
    with metadata.new_dag("refused"):
        ResetOffsetsOperator(task_id="reset", plan="/data/plan.json")
    rendered = {"reset": {**UNNAMED, "plan": "/data/plan.json"}}
    metadata.add_run("refused", {}, rendered=rendered, state="failed")

    assert browser.get("/api/dags/refused/pipelines").json() == {"pipelines": [], "problems": []}
