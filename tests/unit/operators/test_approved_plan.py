"""A plan that is shown, approved, and carried out by another task."""

import json
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from recovery_pipeline import broken_commit
from waiting import Store
from written_query import Query

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")

READ, BACK = {0: 60, 1: 62}, {0: 57, 1: 59}
AT = datetime(2026, 3, 2, 10, 40, tzinfo=timezone.utc)


@pytest.fixture
def plan(pipeline, context):
    context["ti"].task_id = "plan"
    task = ResetOffsetsOperator(
        task_id="plan", shift_by=-3, plan_only=True, kafka_config_id="kafka_default", **pipeline.names
    )
    value = task.execute(context)
    assert context["ti"].xcoms["return_value"] == value
    return json.loads(json.dumps(value))


def approval(plan, user="ada", chosen=None, at=AT):
    """What an approval has returned, as XCom has it."""
    return {
        "chosen_options": [chosen or f"Approve {plan['digest'][:8]}"],
        "params_input": {},
        "responded_at": at,
        "responded_by_user": user and {"id": user, "name": user},
        "digests": [plan["digest"]],
    }


def carry_out(pipeline, plan, triggered_by=None, **how):
    task = ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0, **how)
    run = SimpleNamespace(triggering_user_name=triggered_by, start_date=None, clear_number=0)
    return task.execute({**pipeline.context("reset"), "dag_run": run})


def test_a_plan_says_what_it_would_write_and_what_that_means(pipeline, plan):
    assert pipeline.at() == (READ, READ)
    assert plan["plan_only"] is True
    assert (plan["before"], plan["after"]) == (
        {pipeline.topic: {"0": 60, "1": 62}},
        {pipeline.topic: {"0": 57, "1": 59}},
    )
    estimate = plan["estimate"]
    assert (estimate["records_again"], estimate["lag"], estimate["partition_lag"]) == (6, 84, 43)
    assert (estimate["bytes"], estimate["reasons"]["bytes"]) == (
        840,
        "by a sample of 180 records, before compression",
    )
    assert estimate["seconds"] is None
    assert "1 of 4 needed batches with records and times" in estimate["reasons"]["seconds"]
    text = plan["markdown"]
    assert text.startswith(f"### Plan {plan['digest'][:8]}, made ")
    assert (
        f"| Moves | group `{pipeline.group}` and checkpoint `{pipeline.query.location}` (batch 1) |" in text
    )
    assert "| Read again | 6 records |" in text
    assert "| Sink | not named: a sink that appends gets the records twice" in text


def test_a_plan_of_a_group_with_a_member_is_refused_and_neither_is_moved(pipeline, plan, member):
    member(pipeline.names["group_id"], pipeline.topic)
    with pytest.raises(AirflowFailException, match="nothing was changed: .* 1 member .*a-reader"):
        carry_out(pipeline, plan)
    assert pipeline.at() == (READ, READ)


def test_who_approved_is_in_the_receipt_and_beside_each_offset(pipeline, plan, client):
    receipt = carry_out(pipeline, plan, approval=approval(plan), **pipeline.names)
    assert receipt["approval"] == {"by": "ada", "user_id": "ada", "at": "2026-03-02T10:40:00Z"}
    tp = TopicPartition(pipeline.topic, 0)
    made = CommitMetadata.parse(client.committed(pipeline.group, [tp])[tp].metadata)
    assert (made.plan, made.approved_by, made.approved_at) == (
        plan["digest"],
        "ada",
        int(AT.timestamp()),
    )


@pytest.mark.parametrize(
    ("changed", "how", "said"),
    [
        ({"chosen": "Reject"}, {}, "the plan was not approved: ada chose 'Reject'"),
        ({"user": None}, {}, "not approved by a user: the request timed out"),
        ({"user": None, "chosen": "Reject"}, {}, "the timeout chose 'Reject'"),
        ({"chosen": "Approve 00000000"}, {}, "for another plan: found Approve 00000000"),
        ({}, {"triggered_by": "ada", "allow_self_approval": False}, "ada triggered the run and approved"),
    ],
)
def test_what_is_no_approval_of_this_plan_by_somebody_else_is_refused(pipeline, plan, changed, how, said):
    with pytest.raises(AirflowFailException, match=f"nothing was changed: .*{said}"):
        carry_out(pipeline, plan, approval=approval(plan, **changed), **how)
    assert pipeline.at() == (READ, READ)


def test_who_triggered_the_run_may_approve_it_unless_that_is_forbidden(pipeline, plan):
    carry_out(pipeline, plan, approval=approval(plan), triggered_by="ada")
    assert pipeline.at() == (BACK, BACK)


def test_a_self_approval_cannot_be_forbidden_where_airflow_does_not_say_who_triggered_the_run(pipeline, plan):
    how = {"approval": approval(plan), "allow_self_approval": False}
    task = ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0, **how)
    run = SimpleNamespace(start_date=None, clear_number=0)  # as Airflow 3.1.0 and 3.1.1 have it
    with pytest.raises(AirflowFailException, match=r"nothing was changed: .*Airflow before 3\.1\.2"):
        task.execute({**pipeline.context("reset"), "dag_run": run})
    carry_out(pipeline, plan, **how)
    assert pipeline.at() == (BACK, BACK)


def test_an_approval_that_names_no_plan_is_refused_and_one_that_was_typed_is_not(pipeline, plan):
    plain = {**approval(plan, chosen="Approve"), "digests": []}
    with pytest.raises(AirflowFailException, match="does not name its plan: expected the option"):
        carry_out(pipeline, plan, approval=plain)
    carry_out(pipeline, plan, approval={**plain, "params_input": {"digest": plan["digest"][:8]}})
    assert pipeline.at() == (BACK, BACK)


def test_an_approval_of_a_plan_that_was_made_again_is_refused(pipeline, plan, context):
    context["ti"].task_id = "plan"
    other = ResetOffsetsOperator(task_id="plan", shift_by=-4, plan_only=True, **pipeline.names).execute(
        context
    )
    with pytest.raises(AirflowFailException, match="the approval is for another plan"):
        carry_out(pipeline, other, approval=approval(plan))
    assert pipeline.at() == (READ, READ)


def test_a_second_plan_of_a_task_is_taken_back_as_a_whole(pipeline, plan, context):
    """Its task was cleared together with the task that plans, and the tasks after it."""
    kept = Store()

    def apply_to_the_end(saved, tries):
        with DAG("flights"):
            task = ResetOffsetsOperator(task_id="reset", plan=saved, quiet_period=0)
            task >> EmptyOperator(task_id="job")
        found = pipeline.context("reset", tries, job=None)
        return task.execute({**found, "task_state_store": kept})

    apply_to_the_end(plan, 0)
    context["ti"].task_id = "plan"
    again = ResetOffsetsOperator(task_id="plan", shift_by=-3, plan_only=True, **pipeline.names)
    receipt = apply_to_the_end(again.execute(context), 1)
    restore: dict[str, Any] = {"receipt": receipt, "restore_when": "always", "quiet_period": 0}
    RestoreOffsetsOperator(task_id="restore", **restore).execute(pipeline.context("restore"))
    assert pipeline.at() == (BACK, BACK)


def test_a_plan_of_another_pipeline_is_refused(pipeline, plan):
    with pytest.raises(AirflowFailException, match=r"the plan is for group .* and group_id names another"):
        carry_out(pipeline, plan, group_id="another", checkpoint_location=pipeline.query.location)


def test_a_plan_is_read_from_a_file(pipeline, plan, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    carry_out(pipeline, str(file))
    assert pipeline.at() == (BACK, BACK)
    with pytest.raises(AirflowFailException, match="there is no such file"):
        carry_out(pipeline, str(tmp_path / "other.json"))


def test_an_index_that_has_not_begun_fails_after_a_failure(pipeline, plan):
    context = pipeline.context("reset", reset_0="failed", reset_1="running")
    context["ti"].map_index = 1

    def states(dag_id, task_ids, run_ids):
        return {context["ti"].run_id: {"reset_0": "failed", "reset_1": "running"}}

    context["ti"].get_task_states = states
    task = ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0, stop_after_failure="true")
    with pytest.raises(
        AirflowFailException, match="stop_after_failure would be ignored by a task that is not"
    ):
        task.execute(pipeline.context("reset"))
    with pytest.raises(AirflowFailException, match="nothing was changed: map index 0 of reset has failed in"):
        task.execute(context)
    assert pipeline.at() == (READ, READ)
    ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0).execute(context)
    assert pipeline.at() == (BACK, BACK)


def test_a_restore_without_a_group_has_no_other_names_than_the_receipt(pipeline, plan):
    receipt = carry_out(pipeline, plan)
    task = RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", topics="nosuch", quiet_period=0
    )
    with pytest.raises(AirflowFailException, match="topics='nosuch' is not that of the plan"):
        task.execute(pipeline.context("restore"))
    assert pipeline.at() == (BACK, BACK)


def test_a_connection_that_a_template_names_must_be_the_plans(pipeline, plan):
    task = ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0)
    task.kafka_config_id = "kafka_other"  # rendered
    with pytest.raises(AirflowFailException, match="kafka_config_id='kafka_other' is not that of the plan"):
        task.execute(pipeline.context("reset"))
    assert pipeline.at() == (READ, READ)


@pytest.mark.parametrize("names_checkpoint", [True, False])
def test_a_restore_of_another_checkpoint_or_of_none_does_not_say_that_the_plan_was_not_applied(
    pipeline, plan, names_checkpoint, tmp_path, capsys
):
    reset = ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0)
    context = pipeline.context("reset")
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        reset.execute(context)
    assert pipeline.at() == (READ, BACK)
    receipt = context["ti"].xcoms["return_value"]
    other = Query(tmp_path / "other", "99999999-2222-3333-4444-555555555555")
    other.run(0, {pipeline.topic: READ})
    restore = RestoreOffsetsOperator(
        task_id="restore",
        receipt=receipt,
        restore_when="always",
        group_id=pipeline.group,
        checkpoint_location=other.location if names_checkpoint else None,
    )
    if names_checkpoint:
        with pytest.raises(AirflowFailException, match="the checkpoint was replaced since"):
            restore.execute(pipeline.context("restore"))
        return
    restored = restore.execute(pipeline.context("restore"))
    assert restored is not None
    assert restored["before"] == receipt["before"]
    assert "moved with the group, but is not restored: no checkpoint is given" in capsys.readouterr().out
