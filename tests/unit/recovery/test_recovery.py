"""
A recovery ends in the right state whatever is cleared, given up, killed, or done by others at the same time.
"""

from contextlib import nullcontext
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from recovery_pipeline import BACK, DONE, ENDS, READ, broken_commit
from waiting import Store

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan, verify_checkpoint
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
    GroupMovedError,
    MoveUnfinishedError,
)
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.moves import apply as plan_apply
from airflow_kafka_offsets.moves.write import commit_groups
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")


# --- a Clear


def test_a_commit_that_is_cleared_alone_does_not_drag_the_pipeline_back(pipeline, capsys, grow):
    receipt = pipeline.recover()
    assert pipeline.at() == (ENDS, ENDS)
    # The new partition has no commit yet.
    grow(pipeline.topic, 3)
    # Airflow clears setup and teardown with it, and not the job.
    again = pipeline.run("reset", tries=1, states={"job": "success"})
    assert pipeline.at() == (ENDS, ENDS)
    assert "Nothing is moved: job succeeded in this run" in capsys.readouterr().out
    assert (again["changed"], again["after"]) == (0, {pipeline.topic: {"0": 100, "1": 100}})
    assert again["kafka_config_id"] == receipt["kafka_config_id"] == "kafka_default"
    pipeline.run("commit", tries=1)
    assert pipeline.run("restore", tries=1, receipt=again, states=DONE) is None
    assert pipeline.at() == (ENDS, ENDS)
    assert receipt["changed"] == 2


def test_a_reset_that_has_never_moved_is_not_done_because_its_job_was_marked(pipeline):
    pipeline.run("commit")
    with pytest.raises(AirflowFailException, match="job succeeded in this run, and no reset .* has moved /"):
        pipeline.run("reset", tries=1, states={"job": "success"})


def test_a_retry_after_the_retries_were_lowered_is_not_taken_for_a_clear(pipeline):
    pipeline.run("commit")
    context = pipeline.context("reset", tries=3, job="success")
    context["ti"].try_number = 2
    with pytest.raises(AirflowFailException, match="job succeeded in this run, and was not cleared together"):
        pipeline.tasks(group_only=True)["reset"].execute(context)


@pytest.mark.parametrize("store", [None, Store()], ids=["without-state", "with-state"])
def test_a_reset_that_has_moved_no_file_is_done_if_that_is_known(pipeline, store):
    def run(tries, **states):
        task = pipeline.tasks(shift_by=0)["reset"]
        return task.execute(pipeline.context("reset", tries, **states) | {"task_state_store": store})

    assert run(0)["checkpoint"]["archive"] is None
    pipeline.job()
    pipeline.run("commit")
    if store is None:
        with pytest.raises(AirflowFailException, match="no reset of this run has moved /"):
            run(1, job="success")
    else:
        assert run(1, job="success")["changed"] == 0
    assert pipeline.at() == (ENDS, ENDS)


def test_a_reset_that_stopped_half_way_is_not_done_because_its_job_was_marked(pipeline):
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        pipeline.run("reset")
    assert pipeline.at() == (READ, BACK)
    with pytest.raises(MoveUnfinishedError, match="0001-seek .* was begun and not finished"):
        pipeline.run("reset", tries=1, states={"job": "success"})


def test_a_file_is_put_back_only_if_a_task_before_the_restore_has_failed(pipeline, tmp_path):
    file = tmp_path / "offsets.csv"
    file.write_text(f"{pipeline.topic},0,50\n{pipeline.topic},1,52\n")
    with DAG("flights"):
        restore = RestoreOffsetsOperator(
            task_id="restore", from_file=str(file), quiet_period=0, trigger_rule="all_done", **pipeline.names
        )
        EmptyOperator(task_id="job") >> restore
    before = pipeline.at()
    assert restore.execute(pipeline.context("restore", job="success")) is None
    assert pipeline.at() == before
    with pytest.raises(AirflowFailException, match="job: failed.*offsets.csv was put back"):
        restore.execute(pipeline.context("restore", job="failed"))
    assert pipeline.at() == ({0: 50, 1: 52}, {0: 50, 1: 52})


def test_a_reset_that_its_plan_names_and_that_moves_nothing_names_the_pipeline_for_its_restore(pipeline):
    def tasks(plan):
        with DAG("flights"):
            reset = ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0)
            restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, quiet_period=0)
            job = EmptyOperator(task_id="job")
            reset >> job >> EmptyOperator(task_id="commit") >> restore.as_teardown(setups=reset)
        return reset, restore

    plan = pipeline.run("reset", plan_only=True, quiet_period=QUIET_PERIOD)
    reset, _ = tasks(plan)
    receipt = reset.execute(pipeline.context("reset"))
    pipeline.job()
    pipeline.run("commit")

    reset, restore = tasks(plan)
    again = reset.execute(pipeline.context("reset", 1, job="success"))
    assert (again["changed"], again["names"]) == (0, receipt["names"])
    restore.receipt = again
    assert restore.execute(pipeline.context("restore", 1, **DONE)) is None
    assert pipeline.at() == (ENDS, ENDS)


def test_a_restore_without_names_takes_them_from_the_receipt_of_its_reset(pipeline):
    with DAG("flights"):
        reset = ResetOffsetsOperator(task_id="reset", shift_by=-3, quiet_period=0, **pipeline.names)
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, quiet_period=0)
        reset >> EmptyOperator(task_id="job") >> restore.as_teardown(setups=reset)
    restore.receipt = reset.execute(pipeline.context("reset"))
    with pytest.raises(AirflowFailException, match="everything was put back"):
        restore.execute(pipeline.context("restore", reset="success", job="failed"))
    assert pipeline.at() == (READ, READ)


@pytest.mark.parametrize("states", [{"job": "failed"}, {"job": "failed", "commit": "upstream_failed"}])
def test_a_teardown_that_always_restores_does_not_hide_that_a_task_has_failed(pipeline, states):
    receipt = pipeline.run("reset")
    restore = pipeline.tasks(receipt)["restore"]
    restore.restore_when = "always"
    with pytest.raises(AirflowFailException, match=r"has failed \(.*job: failed\), so this task"):
        restore.execute(pipeline.context("restore", reset="success", **states))
    assert pipeline.at() == (READ, READ)


def test_a_teardown_that_always_restores_and_cannot_fail_the_run_does_not_fail(pipeline):
    restore = pipeline.tasks(pipeline.run("reset"))["restore"]
    restore.restore_when, restore.on_failure_fail_dagrun = "always", False
    assert restore.execute(pipeline.context("restore", reset="success", job="failed"))["verified"]
    assert pipeline.at() == (READ, READ)


def test_a_teardown_that_always_restores_succeeds_after_tasks_that_have_succeeded(pipeline):
    restore = pipeline.tasks(pipeline.run("reset"))["restore"]
    restore.restore_when = "always"
    assert restore.execute(pipeline.context("restore", **DONE))["verified"]
    assert pipeline.at() == (READ, READ)


def test_a_reset_that_is_cleared_with_its_work_moves_again(pipeline):
    pipeline.recover()
    pipeline.run("reset", tries=1)
    assert pipeline.at() == ({0: 97, 1: 97}, {0: 97, 1: 97})


@pytest.mark.parametrize(
    "states", [{"job": "success", "commit": "success"}, {"commit": "success"}], ids=["alone", "with-the-job"]
)
def test_a_reset_that_is_cleared_without_what_comes_after_it_is_refused(pipeline, states):
    pipeline.recover()
    with pytest.raises(AirflowFailException, match=r"commit.* succeeded in this run, and was not cleared"):
        pipeline.run("reset", tries=1, states=states)
    assert pipeline.at() == (ENDS, ENDS)


def test_a_reset_whose_work_was_never_committed_is_refused_when_it_is_cleared_without_it(pipeline):
    pipeline.run("reset")
    pipeline.job()
    with pytest.raises(AirflowFailException, match="nothing was committed to group .* since the reset"):
        pipeline.run("reset", tries=1, states={"job": "success"})
    assert pipeline.at() == (BACK, ENDS)


@pytest.mark.parametrize("ran", [False, True], ids=["before-the-job", "after-the-job"])
def test_a_job_that_is_cleared_before_it_was_committed_does_not_move_the_pipeline_twice(pipeline, ran):
    first = pipeline.run("reset")
    if ran:
        pipeline.job()
    # Airflow clears the setup with the job.
    again = pipeline.run("reset", tries=1)
    assert pipeline.at() == (BACK, BACK)
    assert (again["before"], again["after"]) == (first["before"], first["after"])
    assert again["checkpoint"]["before"] == first["checkpoint"]["before"]
    pipeline.restore_fails(again, "everything was put back", job="failed", commit="upstream_failed")
    assert pipeline.at() == (READ, READ)


@pytest.mark.parametrize("version", ["3.2", "3.3", "3.4"])
def test_a_group_whose_reset_is_cleared_with_its_work_is_put_back_to_where_it_was_at_first(pipeline, version):
    del pipeline.names["checkpoint_location"]
    kept, receipt = {} if version == "3.2" else {"task_state_store": Store()}, {}
    for tries in (0, 1, 2):
        if tries and version == "3.4":  # without "Keep task state"
            kept["task_state_store"].clear()
        reset = pipeline.tasks(group_only=True)["reset"]
        receipt = reset.execute(pipeline.context("reset", tries) | kept)
        assert pipeline.at()[0] == BACK
    assert receipt["before"] == {pipeline.topic: {"0": 60, "1": 62}}


def test_a_reset_with_other_parameters_keeps_what_was_there_at_first_or_is_refused(pipeline):
    pipeline.run("reset")
    with pytest.raises(AirflowFailException, match="already moved the checkpoint with other parameters"):
        pipeline.run("reset", tries=1, shift_by=-5)
    again = pipeline.run("reset", tries=1, shift_by=None, to_offset=40)
    assert pipeline.at() == ({0: 40, 1: 40}, {0: 40, 1: 40})
    pipeline.restore_fails(again, "everything was put back", job="failed")
    assert pipeline.at() == (READ, READ)


# --- a recovery that is given up


@pytest.mark.parametrize(
    "states",
    [
        {"job": "skipped", "commit": "skipped"},
        {"job": "failed", "commit": "upstream_failed"},
        {"job": "success", "commit": "skipped"},
        {"job": "failed", "commit": "skipped"},
    ],
    ids=lambda states: "-".join(states.values()),
)
def test_a_recovery_that_is_not_finished_is_taken_back_and_is_a_failure(pipeline, states):
    receipt = pipeline.run("reset")
    assert pipeline.at() == (BACK, BACK)
    pipeline.restore_fails(receipt, "was not finished .* everything was put back", reset="success", **states)
    assert pipeline.at() == (READ, READ)


def test_a_recovery_that_was_committed_is_not_taken_back_when_a_later_task_fails(pipeline):
    receipt = pipeline.recover()
    states = {"reset": "success", "job": "success", "commit": "failed"}
    pipeline.restore_fails(receipt, r"commit: failed.* nothing was put back", **states)
    assert pipeline.at() == (ENDS, ENDS)


def test_a_recovery_that_was_committed_is_no_failure_when_a_later_task_is_skipped(pipeline):
    receipt = pipeline.recover()
    states = {"reset": "success", "job": "skipped", "commit": "success"}
    assert pipeline.run("restore", receipt=receipt, states=states) is None
    assert pipeline.at() == (ENDS, ENDS)


def test_a_reset_forward_that_is_given_up_is_taken_back_although_others_commit(pipeline):
    receipt = pipeline.run("reset", shift_by=3)
    other = pipeline.context("commit")
    other["ti"].run_id = "hourly"
    pipeline.tasks()["commit"].execute(other)
    pipeline.restore_fails(receipt, "everything was put back", job="skipped", commit="skipped")
    assert pipeline.at() == (READ, READ)


def test_a_recovery_that_was_taken_back_is_not_finished_by_its_tasks_alone(pipeline):
    receipt = pipeline.run("reset")
    pipeline.restore_fails(receipt, "everything was put back", job="failed", commit="upstream_failed")
    # Airflow does not clear the setup with one index of a task in a mapped group.
    pipeline.job()
    pipeline.run("commit", tries=1)
    again = pipeline.context("restore", 1, **DONE)
    again["ti"].try_number = 2
    with pytest.raises(
        AirflowFailException, match=r"was undone by 0002-restore .* the reset has not run since"
    ):
        pipeline.tasks(receipt)["restore"].execute(again)


def test_without_a_receipt_nothing_is_done_but_a_failure_stays_one(pipeline, capsys):
    assert pipeline.run("restore", receipt=None, states={"job": "skipped"}) is None
    assert "Nothing to restore: there is no receipt" in capsys.readouterr().out
    pipeline.restore_fails(None, "nothing was put back", job="failed")
    assert pipeline.at() == (READ, READ)


def test_a_reset_forward_needs_no_batch_before_it_is_committed(pipeline):
    pipeline.run("reset", shift_by=3)
    pipeline.run("commit")
    assert pipeline.at() == ({0: 63, 1: 65}, {0: 63, 1: 65})


# --- a reset that stopped between checkpoint and groups


@pytest.fixture
def half_way(pipeline, broker):
    """The checkpoint has moved, and the group has not; the group has no commit in partition 1."""
    group = f"{pipeline.group}-half"
    broker.commit(group, {TopicPartition(pipeline.topic, 0): READ[0]})
    pipeline.group, pipeline.names["group_id"] = group, group

    with broken_commit(), pytest.raises(BrokerUnavailableError, match="the checkpoint .* was moved before"):
        pipeline.run("reset")
    assert pipeline.at() == ({0: 60}, BACK)
    return pipeline


def test_a_half_done_reset_is_finished_when_it_is_cleared_with_the_images_of_its_first_try(half_way):
    receipt = half_way.run("reset", tries=1)
    assert half_way.at() == (BACK, BACK)
    assert receipt["before"] == {half_way.topic: {"0": 60, "1": None}}
    assert receipt["checkpoint"]["before"] == {"0": {half_way.topic: {"0": 60, "1": 62}}}
    half_way.restore_fails(receipt, "everything was put back", job="failed")
    assert half_way.at() == ({0: 60, 1: 59}, READ)


def test_any_other_move_is_refused_until_a_half_done_one_is_finished(half_way):
    left = half_way.at()
    for scenario in ({"shift_by": -5}, {"shift_by": None, "to_offset": "earliest"}):
        with pytest.raises(
            MoveUnfinishedError, match=r"move 0001-seek \(run manual__1 of flights.reset, 20"
        ) as no:
            half_way.run("reset", tries=1, **scenario)
        assert no.value.retriable
    with pytest.raises(MoveUnfinishedError, match="is running, or was interrupted"):
        half_way.run("commit")
    assert half_way.at() == left


def test_a_half_done_move_is_drift(half_way):
    with pytest.raises(AirflowFailException, match="move 0001-seek .* was begun and not finished"):
        CheckOffsetDriftOperator(task_id="check", **half_way.names).execute(half_way.context("check"))


@pytest.fixture
def group_command(pipeline, cli, bootstrap_servers):
    """group_command("reset", *options) executes a command on the pipeline."""

    def run(verb, *options):
        names = (pipeline.group, "--checkpoint", pipeline.query.location, "--quiet-period", "0")
        return cli("group", verb, *names, "--bootstrap-server", bootstrap_servers, *options, "--execute")

    return run


def test_the_command_line_takes_a_half_done_move_back(half_way, group_command):
    refused = group_command("reset", "--to-earliest")
    assert (refused.code, half_way.at()) == (1, ({0: 60}, BACK))
    assert "--archive 0001-seek --execute' takes it back" in refused.err
    done = group_command("restore", "--archive", "0001-seek")
    assert done.code == 0, done.err
    assert half_way.at() == ({0: 60}, READ)
    assert half_way.run("reset", tries=1)["verified"]
    assert half_way.at() == (BACK, BACK)


def test_the_same_command_finishes_what_it_has_begun(pipeline, group_command):
    with broken_commit():
        assert group_command("reset", "--shift-by", "-3").code == 1
    assert pipeline.at() == (READ, BACK)
    assert group_command("reset", "--shift-by", "-3").code == 0
    assert pipeline.at() == (BACK, BACK)


def test_a_restore_that_stopped_half_way_is_finished_by_the_command_that_its_error_names(
    half_way, group_command
):
    with broken_commit():
        assert group_command("restore", "--archive", "0001-seek").code == 1
    assert half_way.at() == ({0: 60}, READ)
    with pytest.raises(MoveUnfinishedError, match="--archive 0001-seek --execute' finishes it"):
        half_way.run("reset", tries=1)
    refused = group_command("restore", "--archive", "0002-restore")
    assert "is itself a restore, and was not finished" in refused.err
    assert group_command("restore", "--archive", "0001-seek").code == 0
    assert half_way.run("reset", tries=1)["verified"]
    assert half_way.at() == (BACK, BACK)


def test_a_retry_after_the_query_has_run_on_plans_from_there_and_can_be_taken_back(half_way):
    half_way.job()
    receipt = half_way.run("reset")
    # The partition without a commit is where the checkpoint is.
    assert half_way.at() == ({0: 57, 1: 97}, {0: 57, 1: 97})
    assert receipt["checkpoint"]["before"] == {"0": {half_way.topic: {"0": 100, "1": 100}}}
    half_way.restore_fails(receipt, "everything was put back", job="failed")
    assert half_way.at() == ({0: 60, 1: 97}, ENDS)


@pytest.mark.parametrize(
    "scenario", [{"to_offset": "latest"}, {"by_duration": "PT0S"}], ids=["latest", "ago"]
)
def test_another_run_does_not_finish_what_depends_on_the_time(pipeline, scenario):
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        pipeline.run("reset", shift_by=None, **scenario)
    other = pipeline.context("reset")
    other["ti"].run_id = "next_day"
    with pytest.raises(MoveUnfinishedError):
        pipeline.tasks(shift_by=None, **scenario)["reset"].execute(other)
    pipeline.run("reset", tries=1, shift_by=None, **scenario)
    assert pipeline.at() == (ENDS, ENDS)


def test_another_run_finishes_what_does_not_depend_on_the_time(pipeline):
    to: dict[str, Any] = {"shift_by": None, "to_offset": 40}
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        pipeline.run("reset", **to)
    other = pipeline.context("reset")
    other["ti"].run_id = "next_day"
    assert pipeline.tasks(**to)["reset"].execute(other)["verified"]
    assert pipeline.at() == ({0: 40, 1: 40}, {0: 40, 1: 40})


def test_a_move_that_was_given_up_before_it_wrote_lets_nobody_go_back(
    pipeline, monkeypatch, cli, bootstrap_servers
):
    pipeline.run("commit")

    def moved(*_, **__):
        raise GroupMovedError("the group was committed; nothing was changed")

    with monkeypatch.context() as patch:
        patch.setattr(plan_apply, "check_logs_again", moved)
        with pytest.raises(GroupMovedError):
            pipeline.run("reset")
    options = ("--shift-by", "-10", "--quiet-period", "0", "--bootstrap-server", bootstrap_servers)
    assert cli("checkpoint", "seek", pipeline.query.location, *options, "--execute").code == 0
    with pytest.raises(AirflowFailException, match="would go backwards"):
        pipeline.run("commit")
    assert pipeline.at()[0] == READ


def test_a_query_that_runs_on_ends_a_half_done_move_and_the_commit_follows_it(half_way):
    half_way.job()
    half_way.run("commit")
    assert half_way.at() == (ENDS, ENDS)


@pytest.mark.parametrize("store", [None, Store()], ids=["without-state", "with-state"])
def test_a_reset_that_stopped_between_two_groups_moves_neither_twice_when_it_is_cleared(
    store, recovery_topic, make_topic, produce, new_group, commit, committed, context
):
    topic, other = recovery_topic, make_topic(2)
    produce(other, ENDS)
    groups = {topic: new_group(), other: new_group()}
    for name, group in groups.items():
        commit(group, name, READ)

    def reset(tries):
        ti = type(context["ti"])()
        ti.task_id, ti.max_tries = "reset", tries
        task = ResetOffsetsOperator(task_id="reset", shift_by=-3, group_id=groups)
        own: Any = {"ti": ti} | ({} if store is None else {"task_state_store": store})
        return task.execute(own)

    with (
        broken_commit(of=groups[other]),
        pytest.raises(BrokerUnavailableError, match="written before: group"),
    ):
        reset(0)
    receipt = reset(1)
    assert [committed(group, name) for name, group in groups.items()] == [BACK, BACK]
    if store is not None:
        assert [each["before"] for each in receipt["groups"]] == [
            {name: {"0": 60, "1": 62}} for name in groups
        ]
    reset(2)
    assert [committed(group, name) for name, group in groups.items()] == [{0: 54, 1: 56}] * 2


# --- a reset beside a commit


@pytest.mark.parametrize("before", [True, False], ids=["before it writes", "while it writes"])
def test_a_commit_that_a_reset_overtakes_commits_what_the_reset_has_left(pipeline, monkeypatch, before):
    reset_between(pipeline, monkeypatch, before=before)
    pipeline.run("commit")
    assert pipeline.at() == (BACK, BACK)


def test_a_commit_that_died_after_a_reset_overtook_it_does_not_hold_the_group(pipeline, monkeypatch):
    with monkeypatch.context() as patch:
        reset_between(pipeline, patch, before=False, die=True)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run("commit")
    assert pipeline.at() == (READ, BACK)
    # Somebody else goes on.
    other = CommitOffsetsOperator(task_id="commit", **pipeline.names)
    context = pipeline.context("commit")
    context["ti"].run_id = "manual__3"
    other.execute(context)
    assert pipeline.at() == (BACK, BACK)


@pytest.mark.parametrize("query", ["", "another"])
def test_a_reset_commits_again_over_a_commit_that_came_before_its_end(pipeline, monkeypatch, broker, query):
    def then_a_late_commit(*args):
        verify_checkpoint(*args)
        late = {TopicPartition(pipeline.topic, number): at for number, at in READ.items()}
        broker.commit(pipeline.group, late, CommitMetadata(query=query).text())

    monkeypatch.setattr(plan_apply, "verify_checkpoint", then_a_late_commit)
    other = pytest.raises(AirflowFailException, match="another process commits to this group")
    with other if query else nullcontext():
        pipeline.run("reset")
    assert pipeline.at() == (READ if query else BACK, BACK)


def test_a_reset_whose_group_moves_while_it_is_prepared_changes_nothing_and_is_tried_again(
    pipeline, monkeypatch, commit
):
    archived = apply_checkpoint_plan

    def after_a_commit(*args, **kwargs):
        commit(pipeline.group, pipeline.topic, {0: 61})
        return archived(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(plan_apply, "apply_checkpoint_plan", after_a_commit)
        with pytest.raises(GroupMovedError, match="being prepared; no offset was written there"):
            pipeline.run("reset")
    assert pipeline.at() == ({0: 61, 1: 62}, READ)
    receipt = pipeline.run("reset")
    assert receipt["before"] == {pipeline.topic: {"0": 61, "1": 62}}
    assert pipeline.at()[0] == {0: 58, 1: 59}
    found = list(ArchivedMoves(SparkCheckpoint(pipeline.query.location)))
    assert [(each.name, each.done) for each in found] == [("0002-seek", True)]


def reset_between(pipeline, patch, *, before, die=False):
    """
    Reset the pipeline right before the first commit of its position is written, or right after it was
    planned.
    """
    written = commit_groups

    def commit(client, plans, metadata, write):
        patch.setattr(plan_apply, "commit_groups", written)
        # The commit has read the checkpoint, and seen no move.
        other = pipeline.context("reset")
        other["ti"].run_id = "manual__2"
        pipeline.tasks()["reset"].execute(other)
        if not before:
            offsets = {tp: offset for plan in plans for tp, offset in plan.after.items()}
            client.commit(pipeline.group, offsets, metadata.text())
            if die:
                raise KeyboardInterrupt
            return
        written(client, plans, metadata, write)

    patch.setattr(plan_apply, "commit_groups", commit)


def test_commits_on_another_cluster_do_not_show_that_a_recovery_was_finished(pipeline, memory):
    receipt = pipeline.run("reset", group_only=True, quiet_period=0)
    pipeline.query.run(2, {pipeline.topic: ENDS})
    pipeline.run("commit")
    memory.cluster_id = "another"
    pipeline.restore_fails(receipt, "the receipt is of cluster .*, and the connection leads to", **DONE)
