"""Moves that are tried again, cleared with other parameters, or refused: no move is hidden."""

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup
from airflow_task import TaskInstance
from recovery_pipeline import broken_commit
from waiting import Store

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
    CheckpointMovedError,
    MoveUnfinishedError,
    UsageError,
)
from airflow_kafka_offsets.model.recovery_tasks import RecoveryTasks
from airflow_kafka_offsets.moves import apply as apply_module
from airflow_kafka_offsets.operators import restore as restore_module
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.task.move_memory import MoveMemory

pytestmark = pytest.mark.usefixtures("memory")


class KilledError(BaseException):
    pass


def ti(task, tries=1, cleared=0, index=-1, **states):
    found: Any = TaskInstance(**states)
    found.task_id, found.try_number, found.max_tries, found.map_index = task, tries, cleared, index
    return found


def kill(*_, **__):
    raise KilledError


def reset(group, **parameters):
    with DAG("flights"):
        task = ResetOffsetsOperator(task_id="reset", group_id=group, **parameters)
        task >> EmptyOperator(task_id="job")
    return task


def restore_of(receipt, **names):
    with DAG("flights"):
        first = ResetOffsetsOperator(task_id="reset", to_offset=2, **names)
        last = RestoreOffsetsOperator(task_id="restore", receipt=first.output, **names)
        first >> EmptyOperator(task_id="job") >> last.as_teardown(setups=first)
    if receipt is not None:
        last.receipt = receipt
    return first, last


def test_a_retried_restore_leaves_alone_what_had_passed(topic, group, commit, committed, monkeypatch):
    commit(group, topic, {0: 5, 1: 4})
    receipt = restore_of(None, group_id=group)[0].execute({"ti": ti("reset", job=None)})
    commit(group, topic, {1: 6})
    last = restore_of(receipt, group_id=group)[1]
    with monkeypatch.context() as patch:
        patch.setattr(restore_module, "push_result", kill)
        with pytest.raises(KilledError):
            last.execute({"ti": ti("restore", job="failed", reset="success")})
    assert committed(group, topic) == {0: 5, 1: 6}
    with pytest.raises(AirflowFailException, match="stays where it is"):
        restore_of(receipt, group_id=group)[1].execute(
            {"ti": ti("restore", 2, job="failed", reset="success")}
        )
    assert committed(group, topic) == {0: 5, 1: 6}


@pytest.mark.parametrize("edited", [{"shift_by": -4}, {"to_offset": "latest"}, {"by_duration": "1h"}])
def test_a_group_is_not_left_at_the_target_of_other_parameters(edited, topic, group, commit, committed):
    commit(group, topic, {0: 5, 1: 5})
    reset(group, shift_by=-1).execute({"ti": ti("reset", job=None)})
    with pytest.raises(AirflowFailException, match="other parameters"):
        reset(group, **edited).execute({"ti": ti("reset", 2, 1, job=None)})
    assert committed(group, topic) == {0: 4, 1: 4}


def test_a_cleared_reset_of_a_checkpoint_that_is_tried_again_moves_once_more(topic, group, commit, new_query):
    query = new_query({topic: {0: 5, 1: 5}})
    commit(group, topic, {0: 5, 1: 5})
    how = {"shift_by": -1, "checkpoint_location": query.location, "quiet_period": 0}
    task, store = ResetOffsetsOperator(task_id="reset", group_id=group, **how), Store()

    def run(tries, cleared):
        context: Any = {"ti": ti("reset", tries, cleared), "task_state_store": store}
        task.execute(context)
        return query.stands()

    assert run(1, 0) == {0: 4, 1: 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply_module, "prove_commits", kill)
        with pytest.raises(KilledError):
            run(2, 1)
    assert run(3, 1) == {0: 3, 1: 3}


def test_a_try_after_a_write_is_not_skipped_as_not_begun(topic, group, commit, monkeypatch):
    commit(group, topic, {0: 5, 1: 5})
    store = Store()
    one = {"stop_after_failure": "true", "to_offset": 2}
    with monkeypatch.context() as patch:
        patch.setattr(MoveMemory, "finish", kill)
        with pytest.raises(KilledError):
            reset(group, **one).execute({"ti": ti("reset", index=0), "task_state_store": store})
    again = ti("reset", 2, index=0)
    again.get_task_states = lambda task_ids, **_: {
        again.run_id: {"reset_0": "running", "reset_1": "failed"} if task_ids == ["reset"] else {}
    }
    receipt = reset(group, **one).execute({"ti": again, "task_state_store": store})
    assert receipt["before"] == {topic: {"0": 5, "1": 5}}


def test_a_refused_retry_keeps_the_offsets_from_before_the_first_try(
    topic, group, commit, member, monkeypatch
):
    commit(group, topic, {0: 5, 1: 5})
    store = Store()
    with monkeypatch.context() as patch:
        patch.setattr(MoveMemory, "finish", kill)
        with pytest.raises(KilledError):
            reset(group, to_offset=2).execute({"ti": ti("reset", job=None), "task_state_store": store})
    member(group, topic)
    again = ti("reset", 2, job=None)
    with pytest.raises(AirflowFailException, match="only the members may commit"):
        reset(group, to_offset=2).execute({"ti": again, "task_state_store": store})
    assert again.xcoms["return_value"]["before"] == {topic: {"0": 5, "1": 5}}


@pytest.mark.parametrize("store", [None, Store()], ids=["commits", "store"])
def test_a_retry_has_the_first_offsets_of_a_group_whose_checkpoint_is_at_the_target_already(
    topic, group, commit, new_query, monkeypatch, store
):
    query = new_query({topic: {0: 5, 1: 5}})
    commit(group, topic, {0: 2, 1: 3})
    how = {"to_batch": 1, "checkpoint_location": query.location, "quiet_period": 0}
    with monkeypatch.context() as patch:
        patch.setattr(MoveMemory, "finish", kill)
        with pytest.raises(KilledError):
            reset(group, **how).execute({"ti": ti("reset", job=None), "task_state_store": store})
    receipt = reset(group, **how).execute({"ti": ti("reset", 2, job=None), "task_state_store": store})
    assert (receipt["before"], receipt["checkpoint"]["archive"]) == ({topic: {"0": 2, "1": 3}}, None)


def test_a_refused_retry_does_not_hide_the_move_of_a_checkpoint(topic, group, commit, new_query, monkeypatch):
    query = new_query({topic: {0: 5, 1: 5}})
    commit(group, topic, {0: 2, 1: 2})
    how = {"to_offset": "committed", "checkpoint_location": query.location, "quiet_period": 0}
    with monkeypatch.context() as patch:
        patch.setattr(MoveMemory, "finish", kill)
        with pytest.raises(KilledError):
            reset(group, **how).execute({"ti": ti("reset", job=None)})
    # The query has worked since, and has begun a batch.
    query.run(2, {topic: {0: 3, 1: 3}})
    query.plan(3, {topic: {0: 4, 1: 4}})
    again = ti("reset", 2, job=None)
    with pytest.raises(AirflowFailException, match="was begun and not finished"):
        reset(group, **how).execute({"ti": again})
    receipt = again.xcoms["return_value"]
    assert not receipt["plan_only"]
    task = RestoreOffsetsOperator(
        task_id="r",
        group_id=group,
        checkpoint_location=query.location,
        receipt=receipt,
        restore_when="always",
        allow_stale=True,
        on_pending_batch="discard",
        sink="noop",
        quiet_period=0,
    )
    task.execute({"ti": ti("r")})
    assert query.stands() == {0: 5, 1: 5}


def test_the_second_attempt_of_a_commit_says_that_the_first_may_have_written(
    topic, group, commit, committed, new_query, monkeypatch
):
    commit(group, topic, {0: 4, 1: 4})
    query, write = new_query({topic: {0: 5, 1: 5}}), apply_module.apply_groups
    names = {"checkpoint_location": query.location}

    def overtaken(*plan):
        receipt = write(*plan)
        monkeypatch.setattr(apply_module, "commit_groups", kill)
        with pytest.raises(KilledError):
            reset(group, to_offset=2, quiet_period=0, **names).execute({"ti": ti("reset", job=None)})
        return receipt

    monkeypatch.setattr(apply_module, "apply_groups", overtaken)
    task = CommitOffsetsOperator(task_id="commit", group_id=group, **names)
    with pytest.raises(MoveUnfinishedError, match="was begun and not finished.*commit may predate") as error:
        task.execute({"ti": ti("commit")})
    assert "nothing was changed" not in str(error.value)
    assert committed(group, topic) == {0: 5, 1: 5}


def test_a_move_whose_topic_was_deleted_before_its_end_can_be_undone_but_not_changed(
    topic, group, commit, new_query, memory, monkeypatch
):
    commit(group, topic, {0: 5, 1: 5})
    query = new_query({topic: {0: 5, 1: 5}})
    how = {"to_offset": 2, "checkpoint_location": query.location, "quiet_period": 0}
    with monkeypatch.context() as patch:
        patch.setattr(apply_module, "commit_groups", kill)
        with pytest.raises(KilledError):
            reset(group, **how).execute({"ti": ti("reset", job=None)})
    memory.delete_topic(topic)
    with pytest.raises(AirflowFailException, match="or undo the move: 'airflow-kafka-offsets group restore"):
        reset(group, **how).execute({"ti": ti("reset", 2, job=None)})


def test_a_refused_move_is_not_taken_back(topic, group, commit, committed):
    commit(group, topic, {0: 5, 1: 5})
    refused = ti("reset", job=None)
    with pytest.raises(AirflowFailException, match="outside its log"):
        reset(group, to_offset={topic: {"0": 9, "1": 99}}).execute({"ti": refused})
    commit(group, topic, {0: 7, 1: 6})
    receipt = refused.xcoms["return_value"]
    task = RestoreOffsetsOperator(task_id="r", group_id=group, receipt=receipt, restore_when="always")
    assert task.execute({"ti": ti("r")}) is None
    assert committed(group, topic) == {0: 7, 1: 6}


@pytest.mark.parametrize("state", ["skipped", "failed", "upstream_failed", "removed"])
def test_a_task_that_will_not_run_again_does_not_hide_a_reset_cleared_alone(state):
    work = RecoveryTasks(
        {"job": ["success"], "commit": ["success"], "alert": [state]},
        {"job": {"commit", "alert"}, "commit": {"alert"}, "alert": ()},
    )
    assert work.outdated == ["commit", "job"]


def test_a_plan_is_not_applied_beyond_the_named_topics(topic, group, commit, committed):
    commit(group, topic, {0: 5, 1: 5})
    plan = reset(group, to_offset=2, plan_only=True).execute({"ti": ti("reset")})
    with pytest.raises(AirflowFailException, match="the plan is for topics"):
        reset(group, plan=plan, topics=f"{topic}:0").execute({"ti": ti("reset")})
    assert committed(group, topic) == {0: 5, 1: 5}
    for ignored in ({"on_out_of_range": "clamp"}, {"on_no_commit": "skip"}, {"allow_new_cluster": True}):
        with pytest.raises(UsageError, match="would be ignored with plan"):
            ResetOffsetsOperator(task_id="r", plan=plan, **ignored)


@pytest.mark.parametrize(("state", "moved"), [("success", True), ("failed", True), ("skipped", False)])
def test_a_restore_without_a_receipt_asks_whether_its_reset_has_run(state, moved, topic, group, capsys):
    with DAG("flights"):
        first = ResetOffsetsOperator(task_id="reset", group_id=group, topics=topic, to_offset=2)
        task = RestoreOffsetsOperator(task_id="restore", receipt=first.output, restore_when="always")
    context: Any = {"ti": ti("restore", reset=state)}
    # Somebody has deleted the XCom, the reset does not push it, or a retry has lost that of an earlier try.
    context["ti"].task, context["ti"].xcom_pull = task, lambda **_: None
    task.render_template_fields(context)
    if moved:
        # Most resets that have failed have moved nothing, and their parameters are right.
        text = rf"has left no receipt \(reset: {state}\).* fails before its first write leaves none. If its"
        with pytest.raises(AirflowFailException, match=text):
            task.execute(context)
    else:
        assert task.execute(context) is None
        assert "there is no receipt, as if the reset has not run" in capsys.readouterr().out


def test_a_task_that_was_marked_before_the_reset_has_run_is_no_finished_work(topic, group, commit, committed):
    commit(group, topic, {0: 5, 1: 5})
    with DAG("flights"):
        task = ResetOffsetsOperator(task_id="reset", group_id=group, to_offset=2, retries=1)
        task >> EmptyOperator(task_id="job") >> EmptyOperator(task_id="last")
    states = {"job": "success", "last": None}
    for kept, tries, cleared in (
        ({}, 1, 1),
        ({"task_state_store": (store := Store())}, 1, 1),
        ({"task_state_store": store}, 2, 2),
    ):
        context: Any = {"ti": ti("reset", tries, cleared, **states), **kept}
        with pytest.raises(AirflowFailException, match="job succeeded in this run, and was not cleared"):
            task.execute(context)
    # Cleared with the job: its commit fails, and it is cleared without the job.
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        task.execute({"ti": ti("reset", 3, 3, job=None, last=None), "task_state_store": store})
    with pytest.raises(AirflowFailException, match="job succeeded in this run, and was not cleared"):
        task.execute({"ti": ti("reset", 4, 4, **states), "task_state_store": store})
    # Cleared with the job, and then without it.
    first = task.execute({"ti": ti("reset", 5, 5, job=None, last=None), "task_state_store": store})
    assert first["after"] == {topic: {"0": 2, "1": 2}}
    commit(group, topic, {0: 6, 1: 6})
    # Airflow 3.4 deletes the state with a Clear, unless it is to keep it; then it is not known any more.
    for kept, tries in (store, 6), ((later := Store()), 7), (later, 8):
        again = task.execute({"ti": ti("reset", tries, tries, **states), "task_state_store": kept})
        assert again["source"] == {"kept": ["job"]}
    assert committed(group, topic) == {0: 6, 1: 6}


@pytest.mark.parametrize("name", [42, ["a"]])
def test_a_group_of_another_type_does_not_hide_the_other_pipelines(name, topic, group, new_query):
    query = new_query({topic: {0: 5, 1: 5}})
    entries = [{"group_id": each, "checkpoint_location": query.location} for each in (name, group)]
    with pytest.raises(AirflowFailException, match="2 of 2 pipelines"):
        CheckOffsetDriftOperator(task_id="d", pipelines=entries).execute({"ti": ti("d")})


@pytest.mark.parametrize("place", ["apply_move._apply_step", "apply.commit_groups"])
def test_a_try_that_was_frozen_changes_nothing_after_the_next_try_has_finished_its_move(
    place, topic, group, commit, committed, new_query, monkeypatch
):
    """Airflow starts the next try of a task that sends no heartbeat, although the task may go on later."""
    commit(group, topic, {0: 5, 1: 5})
    query = new_query({topic: {0: 5, 1: 5}})
    query.plan(2, {topic: {0: 7, 1: 5}})
    how = {"checkpoint_location": query.location, "quiet_period": 0, "idempotent_sink": True}
    how |= {"on_pending_batch": "discard", "to_offset": 2}
    name = place.rpartition(".")[2]
    module = apply_move if "_move." in place else apply_module
    frozen = getattr(module, name)

    def go_on(*arguments):
        monkeypatch.setattr(module, name, frozen)
        reset(group, **how).execute({"ti": ti("reset", 2, job=None)})
        query.run(2, {topic: {0: 8, 1: 8}})
        commit(group, topic, {0: 8, 1: 8})
        return frozen(*arguments)

    monkeypatch.setattr(module, name, go_on)
    with pytest.raises(CheckpointMovedError, match="0001-seek was finished by another process"):
        reset(group, **how).execute({"ti": ti("reset", job=None)})
    assert (query.stands(), committed(group, topic)) == ({0: 8, 1: 8}, {0: 8, 1: 8})


@pytest.mark.parametrize(("many", "mover"), [(100, "task reset"), (0, "another task")])
def test_a_reset_that_was_renamed_during_its_run_does_not_move_again(
    topic, group, commit, committed, monkeypatch, many, mover
):
    # A commit of many partitions does not name its task.
    monkeypatch.setattr("airflow_kafka_offsets.model.commit_metadata.MANY_PARTITIONS", many)
    monkeypatch.setattr(TaskInstance, "run_id", f"manual__{'x' * 120}")
    commit(group, topic, {0: 5, 1: 5})
    reset(group, shift_by=-2).execute({"ti": ti("reset", job=None)})
    with DAG("flights"), TaskGroup("moves"):
        renamed = ResetOffsetsOperator(task_id="reset", group_id=group, shift_by=-2)
    said = f"{mover} of this run has moved group '{group}'.*, and the DAG has no such task any more"
    with pytest.raises(AirflowFailException, match=said):
        renamed.execute({"ti": ti("moves.reset", job=None)})
    assert committed(group, topic) == {0: 3, 1: 3}


def test_a_reset_whose_move_a_renamed_restore_has_taken_back_moves_again(topic, group, commit, committed):
    commit(group, topic, {0: 5, 1: 5})
    receipt = restore_of(None, group_id=group)[0].execute({"ti": ti("reset", job=None)})
    with pytest.raises(AirflowFailException):
        restore_of(receipt, group_id=group)[1].execute({"ti": ti("restore", job="failed", reset="success")})
    assert committed(group, topic) == {0: 5, 1: 5}
    with DAG("flights"), TaskGroup("moves"):
        renamed = ResetOffsetsOperator(task_id="reset", group_id=group, to_offset=2)
    renamed.execute({"ti": ti("moves.reset", cleared=1, job=None)})
    assert committed(group, topic) == {0: 2, 1: 2}
