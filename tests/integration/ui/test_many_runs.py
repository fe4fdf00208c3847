"""Airflow's database with many runs: what the tab asks stays small, and hides nothing."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from airflow.sdk import DAG
from offsets_receipts import receipt

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration

EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN"}
MANY_RESULTS = 10_000


@pytest.fixture
def add(metadata):
    """add(dag_id, runs) adds a DAG of which each run has committed, and the first one has reset."""

    def make(dag_id, runs):
        with DAG(dag_id, start_date=datetime(2026, 1, 1), schedule=None) as dag:
            CommitOffsetsOperator(task_id="commit", group_id=dag_id, offsets={"orders": {"0": 1}})
            ResetOffsetsOperator(task_id="reset", group_id=dag_id, to_offset="earliest")
        metadata.add_dag(dag)
        metadata.add_run(dag_id, {"reset": receipt(dag_id, 60, 10)}, run_id="first")
        return metadata.add_runs(dag_id, runs, {"commit": receipt(dag_id, 40, 60)})

    return make


@pytest.fixture
def statements():
    """The statements that are sent to the database, with their parameters."""
    from airflow import settings
    from sqlalchemy import event

    sent = []

    def note(connection, cursor, statement, parameters, *_):
        sent.append((statement, parameters))

    event.listen(settings.engine, "before_cursor_execute", note)
    yield sent
    event.remove(settings.engine, "before_cursor_execute", note)


def pipelines(browser):
    return browser.get("/api/pipelines").json()["pipelines"]


def history(browser, dag_id):
    (pipeline,) = browser.get(f"/api/dags/{dag_id}/pipelines").json()["pipelines"]
    return browser.get(f"/api/dags/{dag_id}/pipelines/{pipeline['key']}/history").json()


def test_the_newest_move_of_a_task_that_seldom_runs(browser, metadata, add):
    add("orders", 60)
    pipelines(browser)

    found = browser.found("orders")

    assert {(move.kind, move.instance.run_id) for move in found.last_moves} == {
        ("commit", "many__59"),
        ("reset", "first"),
    }


def test_an_old_run_that_was_cleared_is_the_newest_move(browser, metadata, add):
    add("orders", 60)

    metadata.run_again("orders", "many__2", "commit", receipt("orders", 60, 41))

    (pipeline,) = pipelines(browser)
    assert (pipeline["last_move"]["run_id"], pipeline["last_move"]["records"]) == ("many__2", -19)
    assert history(browser, "orders")["moves"][-1]["run_id"] == "many__2"


def test_the_history_has_the_newest_moves(browser, add):
    add("orders", 210)

    found = history(browser, "orders")
    while found["problems"]:
        found = history(browser, "orders")

    runs = [move["run_id"] for move in found["moves"]]
    assert len(runs) == 200
    assert {f"many__{number}" for number in range(12, 210)} <= set(runs)


def test_what_takes_too_long_is_read_when_it_is_asked_for_again(browser, add, monkeypatch):
    from airflow_kafka_offsets.ui import history as histories
    from airflow_kafka_offsets.ui.task_instances import Budget

    add("orders", 30)

    class NoTime(Budget):
        is_over = True

    with monkeypatch.context() as busy:
        busy.setattr(histories, "Budget", NoTime)
        (pipeline,) = browser.get("/api/dags/orders/pipelines").json()["pipelines"]
        first = browser.get(f"/api/dags/orders/pipelines/{pipeline['key']}/history").json()
    then = history(browser, "orders")

    # Its newest moves were read for the list; one of the others has left nothing.
    assert len(first["moves"]) == 2
    assert first["problems"] == [
        "30 results of tasks are not read yet: they appear when this page asks again, within a minute"
    ]
    assert (len(then["moves"]), then["problems"]) == (31, [])


@pytest.mark.parametrize(("dags", "runs"), [(3, 60), pytest.param(40, 500, marks=pytest.mark.long)])
def test_results_are_found_by_an_index(browser, database, add, statements, dags, runs):
    from airflow.utils.session import create_session

    for number in range(dags):
        add(f"dag{number}", runs)
    statements.clear()

    took = []
    for ask in (pipelines, lambda browser: history(browser, "dag1")):
        for _ in range(2):
            began = time.perf_counter()
            ask(browser)
            took.append(f"{(time.perf_counter() - began) * 1000:.0f} ms")
    print(f"{dags} pipelines of {runs} runs: the list {took[:2]}, the history of one {took[2:]}")

    assert len(pipelines(browser)) == dags
    asked = {statement: parameters for statement, parameters in statements if "FROM xcom" in statement}
    assert asked
    with create_session(scoped=False) as session:
        if database == "postgresql":
            if dags * runs < MANY_RESULTS:
                pytest.skip("PostgreSQL uses no index for small tables")
            session.connection().exec_driver_sql("ANALYZE")
        for statement, parameters in asked.items():
            plan = session.connection().exec_driver_sql(f"{EXPLAIN[database]} {statement}", parameters)
            steps = [step for (*_, step) in plan if "xcom" in step]
            assert steps
            # Not all results of all DAGs, nor all that any task has left.
            whole = ("SCAN xcom", "Seq Scan on xcom", "idx_xcom_key")
            assert not any(each in step for step in steps for each in whole), steps


def test_viewers_share_what_was_found(browser, add, statements):
    add("orders", 1)
    browser.forget()
    client = browser.client()

    first = client.get("/kafka-offsets/api/pipelines").json()
    before = sum("FROM xcom" in statement for statement, _ in statements)
    again = client.get("/kafka-offsets/api/pipelines").json()

    assert before > 0
    assert sum("FROM xcom" in statement for statement, _ in statements) == before
    assert first == again
