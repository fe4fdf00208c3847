"""The request for an approval: what it offers, and which response it takes."""

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators import hitl

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.estimate import Estimate
from airflow_kafka_offsets.model.plan_markdown import plan_markdown
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.operators.approve import ApprovePlanOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline


def plan(group="orders-etl", to=40):
    receipt = {
        "version": 1,
        "group_id": group,
        "before": {"orders": {"0": 50}},
        "after": {"orders": {"0": to}},
        "logs": {"cluster": "c", "topics": {"orders": "t"}},
    }
    now = datetime(2026, 3, 2, 10, tzinfo=timezone.utc)
    saved = SavedPlan.make(receipt, Names(group), CheckpointPolicy(), now=now)
    saved = saved.with_notes(estimate=Estimate(10, 0, 10, 10).as_json())
    return saved.with_notes(markdown=plan_markdown(saved)).value


@pytest.fixture
def requests(monkeypatch):
    """What is asked of Airflow; the task then waits, which ends here."""
    asked = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **request: asked.append(request))
    return asked


def ask(task):
    with pytest.raises(BaseException, match="^$|"):
        task.execute({"task_instance": SimpleNamespace(id="1"), "task": task, "ti": None})


def respond(task, chosen, user="ada"):
    event = {
        "chosen_options": [chosen],
        "params_input": {},
        "responded_at": datetime(2026, 3, 2, 11, tzinfo=timezone.utc),
        "responded_by_user": user and {"id": user, "name": user},
    }
    return task.execute_complete({"task": task, "ti": None}, event)


def test_the_request_shows_the_plan_and_its_option_has_the_digest(requests):
    value = plan()
    ask(ApprovePlanOperator(task_id="approve", plan=value))
    (asked,) = requests
    assert asked["options"] == [f"Approve {value['digest'][:8]}", "Reject"]
    assert asked["subject"] == f"Move orders-etl? Plan {value['digest'][:8]}"
    assert asked["body"] == value["markdown"]
    ask(ApprovePlanOperator(task_id="approve", plan=value, subject="Move it?", body="See the ticket."))
    assert (requests[1]["subject"], requests[1]["body"]) == ("Move it?", "See the ticket.")


def test_several_plans_are_one_request_with_one_digest(requests):
    values = [plan("a"), plan("b"), plan("c"), plan("d")]
    for order in (values, values[::-1]):
        ask(ApprovePlanOperator(task_id="approve", plan=order))
    first, second = requests
    assert first["options"] == second["options"]
    assert first["subject"].startswith("Move a, b, c and 1 more? Plan ")
    assert [row.split(" | ")[0] for row in first["body"].splitlines()[4:]] == [
        "| `a`",
        "| `b`",
        "| `c`",
        "| `d`",
    ]


def test_the_response_says_of_which_plan_it_is():
    value = plan()
    response = respond(ApprovePlanOperator(task_id="approve", plan=value), f"Approve {value['digest'][:8]}")
    assert response["digests"] == [value["digest"]]
    assert response["responded_by_user"] == {"id": "ada", "name": "ada"}


def test_the_response_to_an_earlier_request_is_refused():
    task = ApprovePlanOperator(task_id="approve", plan=plan(to=41))
    with pytest.raises(AirflowFailException, match="is for another plan; expected 'Approve "):
        respond(task, f"Approve {plan()['digest'][:8]}")


def test_a_timeout_must_not_approve():
    with pytest.raises(UsageError, match="would approve the plan after a timeout"):
        ApprovePlanOperator(task_id="approve", plan=plan(), defaults="Approve")
    ApprovePlanOperator(task_id="approve", plan=plan(), defaults="Reject")


@pytest.mark.parametrize("value", [{}, [], "{}", [{"version": 1}]])
def test_what_is_no_plan_is_refused_when_the_dag_is_read(value):
    with pytest.raises((OffsetsFormatError, UsageError), match="expected"):
        ApprovePlanOperator(task_id="approve", plan=value)


def test_a_plan_that_occurs_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        ApprovePlanOperator(task_id="approve", plan=[plan(), plan()])


@pytest.mark.parametrize("operator", [ResetOffsetsOperator, FailOverOperator])
@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"plan_only": True}, "plan_only would be ignored with plan"),
        ({"sink": "kafka"}, "sink would be ignored with plan, which says what was allowed"),
        ({"allow_stateful": True}, "allow_stateful would be ignored with plan"),
        ({"topics": "orders"}, "topics would be ignored without group_id"),
        ({"allow_self_approval": False}, "allow_self_approval would be ignored without approval"),
        ({"max_age": "soon"}, "max_age=.soon.: expected seconds"),
        ({"plan": {"group_id": "g"}}, "plan: found .*; expected a plan"),
    ],
)
def test_parameters_that_contradict_a_plan_are_refused_when_the_dag_is_read(operator, parameters, said):
    with pytest.raises(UsageError, match=said):
        operator(task_id="apply", **{"plan": "{{ x }}", **parameters})


NO_PLAN = {"plan": None, "group_id": "orders", "to_offset": "earliest"}


@pytest.mark.parametrize(
    ("operator", "parameters", "said"),
    [
        (ResetOffsetsOperator, NO_PLAN | {"approval": "{{ x }}"}, "approval would be ignored without plan"),
        (ResetOffsetsOperator, {"to_offset": "earliest"}, "to_offset would be ignored with plan"),
        (ResetOffsetsOperator, {"stop_after_failure": True}, "stop_after_failure would be ignored by a task"),
        (FailOverOperator, {"mirror": {"kafka_config_id": "b"}}, "mirror would be ignored without group_id"),
        (FailOverOperator, {"on_unknown": "earliest"}, "on_unknown would be ignored with plan"),
        (FailOverOperator, {"ask_source": False}, "ask_source would be ignored with plan"),
        (FailOverOperator, {"allow_running_mirror": True}, "allow_running_mirror would be ignored with plan"),
    ],
)
def test_a_parameter_of_one_move_contradicts_a_plan(operator, parameters, said):
    with pytest.raises(UsageError, match=said):
        operator(task_id="apply", **{"plan": "{{ x }}", **parameters})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"to_offset": "earliest", "group_id": "orders"}, "group_id would be ignored with pipelines"),
        ({"to_offset": "earliest", "plan": "{{ x }}"}, "plan would be ignored with pipelines"),
        ({"to_offset": "earliest", "plan_only": True}, "plan_only would be ignored with pipelines"),
        ({}, "nothing was given; expected exactly one of to_offset"),
        ({"to_offset": "earliest", "pipelines": []}, "expected a list with at least one KafkaPipeline"),
        ({"to_offset": "lates"}, "to_offset=.lates.: expected"),
    ],
)
def test_a_plan_of_many_pipelines_takes_no_names_of_one(parameters, said):
    given: dict[str, Any] = {"pipelines": [KafkaPipeline("orders")], **parameters}
    with pytest.raises(UsageError, match=said):
        PlanResetsOperator(task_id="plan", **given)


def test_a_receipt_that_names_no_pipeline_needs_the_names():
    receipt = {"version": 1, "group_id": "g", "before": {"t": {"0": 1}}, "after": {"t": {"0": 0}}}
    for conn_id in ("kafka_default", "kafka_standby"):
        how: Any = {"receipt": receipt, "restore_when": "always", "kafka_config_id": conn_id}
        task = RestoreOffsetsOperator(task_id="restore", **how)
        with pytest.raises(AirflowFailException, match="group_id is missing"):
            task.execute({"ti": None})
