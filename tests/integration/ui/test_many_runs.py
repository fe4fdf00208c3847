"""Airflow's database with many runs: what the tab asks stays small, and hides nothing."""

import asyncio

import pytest
from offsets_receipts import receipt
from running_airflow import needs_fields_in_lists

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.ui import history as histories
from airflow_kafka_offsets.ui.airflow_api import INSTANCES

pytestmark = pytest.mark.integration


@pytest.fixture
def add(metadata):
    """add(dag_id, runs) adds a DAG of which each run has committed, and the first one has reset."""

    def make(dag_id, runs):
        with metadata.new_dag(dag_id):
            CommitOffsetsOperator(task_id="commit", group_id=dag_id, offsets={"orders": {"0": 1}})
            ResetOffsetsOperator(task_id="reset", group_id=dag_id, to_offset="earliest")
        metadata.add_run(dag_id, {"reset": receipt(dag_id, 60, 10)}, run_id="first")
        return metadata.add_runs(dag_id, runs, {"commit": receipt(dag_id, 40, 60)})

    return make


def pipelines(browser):
    return browser.get("/api/pipelines").json()["pipelines"]


def history(browser, dag_id):
    return browser.get(browser.address(dag_id, "history")).json()


@pytest.mark.parametrize("dags", [["orders"], ["orders", "returns", "stock"]])
def test_what_a_task_that_seldom_runs_names(browser, add, dags):
    for name in dags:
        add(name, 2 * INSTANCES)

    listed = pipelines(browser)

    assert [each["groups"] for each in listed] == [[name] for name in dags]
    assert {len(each["tasks"]) for each in listed} == {2}


@needs_fields_in_lists
def test_the_list_asks_a_few_questions_about_the_instances_of_all_dags(browser, add, monkeypatch):
    asked = questions(monkeypatch)
    for number in range(8):
        add(f"dag{number}", 1)

    assert len(pipelines(browser)) == 8

    about_all = ("dags", "~", "dagRuns", "~", "taskInstances")
    assert [steps for steps in asked if "taskInstances" in steps] == [about_all]
    assert len(asked) == 10


@needs_fields_in_lists
def test_a_login_that_may_not_ask_about_all_dags_asks_about_each(browser, add, monkeypatch):
    from airflow_kafka_offsets.ui.airflow_api import RefusedError

    asked = questions(monkeypatch, refused=lambda steps: steps[:2] == ("dags", "~") and RefusedError("no"))
    for number in range(3):
        add(f"dag{number}", 1)

    assert [each["groups"] for each in pipelines(browser)] == [["dag0"], ["dag1"], ["dag2"]]
    assert len([steps for steps in asked if "taskInstances" in steps]) == 4


def test_a_dag_that_cannot_be_read_does_not_hide_the_others(browser, add, monkeypatch):
    from airflow_kafka_offsets.ui.airflow_api import AirflowError

    questions(monkeypatch, refused=lambda steps: steps == ("dags", "dag1", "tasks") and AirflowError("ill"))
    for number in range(3):
        add(f"dag{number}", 1)

    found = browser.get("/api/pipelines").json()

    assert [each["groups"] for each in found["pipelines"]] == [["dag0"], ["dag2"]]
    assert found["problems"] == ["DAG dag1 cannot be read: ill"]


def questions(monkeypatch, refused=lambda steps: None):
    """Note what is asked of Airflow's API, and refuse some of it."""
    from airflow_kafka_offsets.ui.airflow_api import AsUser

    asked, get = [], AsUser.get

    async def noted(self, *steps, **parameters):
        asked.append(steps)
        if error := refused(steps):
            raise error
        return await get(self, *steps, **parameters)

    monkeypatch.setattr(AsUser, "get", noted)
    return asked


def test_an_old_run_that_was_cleared_is_the_newest_move(browser, metadata, add):
    add("orders", INSTANCES + 5)

    metadata.run_again("orders", "many__2", "commit", receipt("orders", 60, 41))

    newest = history(browser, "orders")["moves"][-1]
    assert (newest["run_id"], newest["moved_by"]) == ("many__2", -19)


def test_the_history_has_the_newest_moves(browser, add, monkeypatch):
    # More than a page of Airflow's API.
    most = INSTANCES + 15
    monkeypatch.setattr(histories, "MOST_MOVES", most)
    add("orders", most + 10)

    found = history(browser, "orders")

    runs = [move["run_id"] for move in found["moves"]]
    assert len(runs) == most
    assert {f"many__{number}" for number in range(12, most + 10)} <= set(runs)
    assert found["problems"] == []


def test_what_takes_too_long_is_read_when_it_is_asked_for_again(browser, add, monkeypatch):
    add("orders", 5)

    with monkeypatch.context() as busy:
        busy.setattr(histories, "READING_WITHIN", 0.0)
        first = history(browser, "orders")
    then = history(browser, "orders")

    # One of them has left nothing.
    assert first["moves"] == []
    assert first["problems"] == [
        "7 results of tasks not read yet: shown when this page refreshes, within a minute"
    ]
    assert (len(then["moves"]), then["problems"]) == (6, [])


def test_viewers_share_what_was_found(browser, add, statements):
    add("orders", 1)
    browser.forget()
    client = browser.client()

    first = client.get("/kafka-offsets/api/pipelines").json()
    before = sum("FROM task_instance" in statement for statement, _ in statements)
    again = client.get("/kafka-offsets/api/pipelines").json()

    assert before > 0
    assert sum("FROM task_instance" in statement for statement, _ in statements) == before
    assert not [statement for statement, _ in statements if "FROM xcom" in statement]
    assert first == again


def test_a_list_shows_what_is_known_in_time_and_reads_on(browser, add, monkeypatch):
    from airflow_kafka_offsets.ui import dags
    from airflow_kafka_offsets.ui.discovery import find_all_pipelines

    async def slowly(*given):
        await asyncio.sleep(0.05)
        return await find_all_pipelines(*given)

    for number in range(6):
        add(f"dag{number}", 1)
    browser.forget()
    client = browser.client()

    with monkeypatch.context() as busy:
        busy.setattr(dags, "WITHIN", 0.0)
        busy.setattr(dags, "_AT_ONCE", 1)
        busy.setattr(dags, "find_all_pipelines", slowly)
        first = client.get("/kafka-offsets/api/pipelines").json()
    then = client.get("/kafka-offsets/api/pipelines").json()

    shown = len(first["pipelines"])
    assert shown < 6
    assert first["problems"] == [
        f"{6 - shown} DAGs are not read yet: they appear when this page refreshes, within minutes"
    ]
    assert (len(then["pipelines"]), then["problems"]) == (6, [])
