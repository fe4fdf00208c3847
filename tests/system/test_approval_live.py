"""Approvals on a real scheduler: through Airflow's REST API, by users with names."""

import contextlib
import json
from pathlib import Path

import pytest
from airflow_users import User
from written_query import Query

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration, pytest.mark.timeout(400)]

READ, BACK, END = 60, 57, 100


@pytest.fixture(scope="module")
def topic(airflow_with_users, produce):
    name = airflow_with_users.variables["APPROVAL_TOPIC"]
    produce(name, {0: END})
    return name


@pytest.fixture(scope="module")
def live(airflow_with_users, topic, broker):
    """The Airflow in which ada has triggered every DAG once."""
    variables = airflow_with_users.variables
    pipelines, names = Path(variables["APPROVAL_HOME"]), variables["APPROVAL_NAMES"].split(",")
    for name in names:
        query = Query(pipelines / name, f"11111111-2222-3333-4444-{name:x>12.12}")
        for batch, offset in enumerate((10, READ)):
            query.run(batch, {topic: {0: offset}})
        broker.commit(f"{name}-{topic}", {TopicPartition(topic, 0): READ})
    airflow = airflow_with_users
    with contextlib.closing(User(airflow, "ada")) as ada, contextlib.closing(User(airflow, "bob")) as bob:
        ada.trigger("feeds")
        airflow.wait_for_runs("follows", 1)
        begun = {name: ada.trigger(name) for name in names}
        vars(airflow).update(pipelines=pipelines, ada=ada, bob=bob, begun=begun)
        yield airflow


def request_of(live, name):
    return live.request_of(name, live.begun[name])


def ended(live, name):
    return live.ended(name, live.begun[name])


def wait_for_log(live, name, task, text, tries=1):
    """Airflow tells a task's state before the last lines of its log."""
    path = f"dags/{name}/dagRuns/{live.begun[name]}/taskInstances/{task}/logs/{tries}"

    def says():
        return text in json.dumps(live.api("GET", path, headers={"Accept": "application/json"}))

    live.wait_until(says, f"{text!r} in the log of {name}.{task}")


def test_an_approved_plan_is_carried_out_and_says_who_approved_it(live, at, topic, broker):
    asked = request_of(live, "approved")
    plan = live.xcom("approved", live.begun["approved"], "plan")
    assert asked["subject"] == f"Move approved-{topic}? Plan {plan['digest'][:8]}"
    assert "| Read again | 3 records |" in asked["body"]
    assert at("approved") == (READ, READ)
    live.bob.respond("approved", live.begun["approved"], asked["options"][0])
    assert ended(live, "approved") == {"plan": "success", "approve": "success", "reset": "success"}
    assert at("approved") == (BACK, BACK)
    receipt = live.xcom("approved", live.begun["approved"], "reset")
    assert (receipt["plan"], receipt["approval"]["by"]) == (plan["digest"], "bob")
    tp = TopicPartition(topic, 0)
    made = CommitMetadata.parse(broker.committed(f"approved-{topic}", [tp])[tp].metadata)
    assert (made.approved_by, made.user, made.plan) == ("bob", "ada", plan["digest"])


def test_a_rejected_plan_is_not_carried_out(live, at):
    request_of(live, "rejected")
    live.bob.respond("rejected", live.begun["rejected"], "Reject")
    assert ended(live, "rejected")["reset"] == "skipped"
    assert at("rejected") == (READ, READ)


@pytest.mark.parametrize(
    ("name", "states"), [("unanswered", ("failed", "upstream_failed")), ("defaulted", ("success", "skipped"))]
)
def test_a_plan_that_nobody_answers_is_not_carried_out(live, at, name, states):
    found = ended(live, name)
    assert (found["approve"], found["reset"]) == states
    assert at(name) == (READ, READ)


def test_who_triggered_the_run_must_not_approve_it_where_that_is_forbidden(live, at):
    asked = request_of(live, "own")
    live.ada.respond("own", live.begun["own"], asked["options"][0])
    assert ended(live, "own")["reset"] == "failed"
    assert at("own") == (READ, READ)
    wait_for_log(live, "own", "reset", "ada triggered the run and approved its plan")


def test_an_old_text_that_is_shown_after_a_clear_approves_nothing(live, at, topic, broker):
    asked = request_of(live, "planned_again")
    broker.commit(f"planned_again-{topic}", {TopicPartition(topic, 0): READ + 1})
    live.clear("planned_again", live.begun["planned_again"], "plan", "approve")
    again = request_of(live, "planned_again")
    plan = live.xcom("planned_again", live.begun["planned_again"], "plan")
    new = f"Approve {plan['digest'][:8]}"
    assert asked["options"][0] != new
    live.bob.respond("planned_again", live.begun["planned_again"], again["options"][0])
    found = ended(live, "planned_again")
    if again["options"][0] == new:  # an Airflow with apache/airflow#73235 shows the new text
        assert found["reset"] == "success"
    else:
        assert (found["approve"], found["reset"]) == ("failed", "upstream_failed")
        assert at("planned_again") == (READ + 1, READ)
        wait_for_log(live, "planned_again", "approve", "is for another plan; expected", 2)


def test_a_plan_lists_the_runs_that_speak_of_what_is_taken_back(live):
    asked = request_of(live, "triggered")
    (run,) = live.runs("follows")
    assert "| Already triggered | `follows` asset" in asked["body"]
    plan = live.xcom("triggered", live.begun["triggered"], "plan")
    (listed,) = plan["triggered"]
    assert (listed["dag_id"], listed["run_id"], listed["state"]) == ("follows", run["dag_run_id"], "success")
