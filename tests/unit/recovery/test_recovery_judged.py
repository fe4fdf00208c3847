"""
A recovery is over when the world says so: group and checkpoint have passed where they were, whatever the
states of its tasks say.
"""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from recovery_pipeline import BACK, DONE, ENDS, FAILED, READ

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")


def archives(pipeline):
    """{name: whether it was taken back}."""
    return {each.name: each.undone for each in ArchivedMoves(SparkCheckpoint(pipeline.query.location))}


def other_run(pipeline, task, run_id="hourly"):
    context = pipeline.context(task)
    context["ti"].dag_id, context["ti"].run_id = "others", run_id
    return context


def reset_by_another(pipeline, run_id="hourly"):
    """Reset the pipeline to 30 in another run."""
    reset = ResetOffsetsOperator(task_id="reset", to_offset=30, quiet_period=0, **pipeline.names)
    return reset.execute(other_run(pipeline, "reset", run_id))


def check_drift(pipeline):
    check = CheckOffsetDriftOperator(task_id="check", **pipeline.names)
    check.execute(other_run(pipeline, "check"))


def restored_by_another(pipeline, receipt):
    return RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", quiet_period=0, **pipeline.names
    ).execute(other_run(pipeline, "restore"))


# --- work that was only marked


def begin_a_batch(pipeline):
    pipeline.query.plan(2, {pipeline.topic: ENDS})


def read_a_part(pipeline):
    pipeline.query.run(2, {pipeline.topic: {0: 58, 1: 100}})
    pipeline.run("commit")


@pytest.mark.parametrize(("job", "at"), [(begin_a_batch, 57), (read_a_part, 58)])
def test_a_job_that_was_marked_after_a_part_of_its_work_is_taken_back(pipeline, job, at):
    receipt = pipeline.run("reset")
    job(pipeline)
    said = rf"is at {at} on .*-0, before 60.*: everything was put back"
    with pytest.raises(AirflowFailException, match=said):
        pipeline.run("restore", receipt=receipt, states=DONE)
    assert pipeline.at() == (READ, READ)


@pytest.mark.parametrize("job", [lambda _: None, begin_a_batch], ids=["did-nothing", "began-a-batch"])
def test_a_job_that_was_only_marked_is_found_out_by_the_commit(pipeline, job):
    pipeline.run("reset")
    job(pipeline)
    says = "finished no batch since, although there are records to read"
    with pytest.raises(PlanRefusedError, match=says) as refused:
        pipeline.run("commit")
    assert refused.value.retriable
    assert pipeline.at() == (BACK, BACK)
    pipeline.job()
    pipeline.run("commit")
    assert pipeline.at() == (ENDS, ENDS)


@pytest.mark.parametrize(
    "killed", ["wait_until_quiet", "mark_done"], ids=["before-it-wrote", "after-it-wrote"]
)
def test_a_reset_that_was_marked_while_it_ran_is_not_finished_by_its_job(pipeline, killed, monkeypatch):
    def kill(*_, **__):
        raise KeyboardInterrupt

    context = pipeline.context("reset")
    with monkeypatch.context() as patch:
        patch.setattr(apply_move, killed, kill)
        with pytest.raises(KeyboardInterrupt):
            pipeline.tasks()["reset"].execute(context)
    pipeline.job()
    pipeline.run("commit")
    pipeline.restore_fails(
        context["ti"].xcoms["return_value"], "the reset has ended before it read its offsets back", **DONE
    )
    assert pipeline.at() == (ENDS, ENDS)


def test_a_reset_forward_whose_job_was_marked_is_taken_back(pipeline):
    receipt = pipeline.run("reset", shift_by=3)
    pipeline.restore_fails(receipt, "finished no batch since the reset.*everything was put back", **DONE)
    assert pipeline.at() == (READ, READ)


def test_a_reset_to_the_end_of_the_log_needs_no_batch(pipeline):
    receipt = pipeline.run("reset", shift_by=None, to_offset="latest")
    pipeline.run("commit")
    assert pipeline.run("restore", receipt=receipt, states=DONE) is None
    assert pipeline.at() == (ENDS, ENDS)


def test_a_recovery_without_a_commit_puts_the_group_back_and_leaves_the_checkpoint_that_has_gone_on(pipeline):
    receipt = pipeline.run("reset")
    pipeline.job()
    group, location = f"group {pipeline.group!r}", pipeline.query.location
    says = f"\\({group} is at 57 on {pipeline.topic}-0, before 60.*"
    says += f"put back: {group}; not put back: checkpoint {location} has passed its earlier"
    pipeline.restore_fails(receipt, says, **DONE)
    assert pipeline.at() == (READ, ENDS)


def test_a_group_that_was_renamed_meanwhile_is_named_and_is_not_put_back(pipeline):
    receipt = pipeline.run("reset")
    pipeline.job()
    pipeline.names["group_id"] = "renamed"
    pipeline.run("commit")
    says = f"nothing was put back.*group {pipeline.group!r} is not put back: group_id names renamed"
    pipeline.restore_fails(receipt, says, **DONE)
    assert pipeline.at() == (BACK, ENDS)


# --- a reset that was taken back, or followed by another one


@pytest.mark.parametrize("states", [DONE, FAILED], ids=["marked", "failed"])
def test_a_reset_that_another_dag_has_taken_back_is_not_finished(pipeline, states):
    receipt = pipeline.run("reset")
    restored_by_another(pipeline, receipt)
    pipeline.restore_fails(
        receipt,
        r"nothing was put back: .*move 0001-seek .* was undone by 0002-restore \(run hourly of "
        r"others.restore.*no record was read again",
        **states,
    )
    assert pipeline.at() == (READ, READ)
    assert archives(pipeline) == {"0001-seek": True, "0002-restore": False}


def test_a_reset_that_was_taken_back_is_not_finished_by_the_next_regular_run(pipeline):
    receipt = pipeline.run("reset")
    restored_by_another(pipeline, receipt)
    pipeline.job()
    pipeline.tasks()["commit"].execute(other_run(pipeline, "commit"))
    pipeline.restore_fails(receipt, "nothing was put back.*no record was read again", **DONE)
    assert pipeline.at() == (ENDS, ENDS)


def test_a_reset_that_the_command_line_has_taken_back_is_not_finished(pipeline, cli, bootstrap_servers):
    receipt = pipeline.run("reset")
    names = (pipeline.group, "--checkpoint", pipeline.query.location, "--bootstrap-server", bootstrap_servers)
    restore = cli("group", "restore", *names, "--archive", "0001-seek", "--quiet-period", "0", "--execute")
    assert restore.code == 0, restore.err
    pipeline.restore_fails(receipt, "undone by 0002-restore .airflow-kafka-offsets group restore", **DONE)
    assert pipeline.at() == (READ, READ)


def test_a_move_that_another_run_has_made_since_is_not_undone(pipeline):
    receipt = pipeline.run("reset")
    restored_by_another(pipeline, receipt)
    reset_by_another(pipeline)
    pipeline.restore_fails(receipt, "nothing was put back", **FAILED)
    assert pipeline.at() == ({0: 30, 1: 30}, {0: 30, 1: 30})


@pytest.mark.parametrize("works", [False, True], ids=["moved", "at-work"])
def test_a_newer_move_of_another_run_is_left_alone_with_what_that_run_has_committed(pipeline, works):
    receipt = pipeline.run("reset")
    reset_by_another(pipeline, "live")
    at = {0: 30, 1: 30}
    if works:
        at = {0: 40, 1: 40}
        pipeline.query.run(2, {pipeline.topic: at})
        pipeline.tasks()["commit"].execute(other_run(pipeline, "commit", "live"))
    pipeline.restore_fails(receipt, r"was moved again by 0002-seek \(run live of others.reset", **FAILED)
    assert pipeline.at() == (at, at)
    assert archives(pipeline) == {"0001-seek": False, "0002-seek": False}


def test_a_group_without_a_checkpoint_that_another_dag_has_put_back_is_not_finished(pipeline, committed):
    pipeline.names.pop("checkpoint_location")
    reset = ResetOffsetsOperator(task_id="reset", shift_by=-3, topics=pipeline.topic, **pipeline.names)
    receipt = reset.execute(pipeline.context("reset"))
    other = RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", **pipeline.names
    )
    other.execute(other_run(pipeline, "restore"))
    restore = pipeline.tasks(receipt, group_only=True)["restore"]
    with pytest.raises(
        AirflowFailException, match="was moved again or restored on .* by run hourly of others"
    ):
        restore.execute(pipeline.context("restore", **DONE))
    assert committed(pipeline.group, pipeline.topic) == READ


# --- a pipeline that was edited in mid-run


@pytest.mark.parametrize("edited", ["left-out", "another"])
def test_a_checkpoint_that_the_restore_no_longer_names_is_named_and_the_group_is_put_back(
    edited, pipeline, new_query, committed
):
    receipt = pipeline.run("reset")
    query = pipeline.query
    if edited == "another":
        pipeline.names["checkpoint_location"] = new_query({pipeline.topic: READ}).location
    else:
        del pipeline.names["checkpoint_location"]
    restore = pipeline.tasks(receipt, group_only=edited == "left-out")["restore"]
    with pytest.raises(AirflowFailException) as failed:
        restore.execute(pipeline.context("restore", **FAILED))
    text = str(failed.value)
    assert f"put back: group {pipeline.group!r}; not put back: checkpoint {query.location}" in text
    assert "everything" not in text
    assert (committed(pipeline.group, pipeline.topic), query.stands()) == (READ, BACK)


@pytest.mark.parametrize("spelling", ["file:{}", "file://{}/", "{}/"])
def test_a_checkpoint_that_the_restore_spells_otherwise_is_put_back(spelling, pipeline):
    receipt = pipeline.run("reset")
    pipeline.names["checkpoint_location"] = spelling.format(pipeline.query.location)
    pipeline.restore_fails(receipt, "everything was put back", **FAILED)
    assert pipeline.at() == (READ, READ)


def test_a_checkpoint_that_was_replaced_is_named_and_the_group_is_put_back(pipeline):
    receipt = pipeline.run("reset")
    pipeline.query.write("metadata", '{"id": "99999999-0000-0000-0000-000000000000"}')
    pipeline.restore_fails(receipt, r"put back: group .*; not put back: .* was replaced since", **FAILED)
    assert pipeline.at() == (READ, BACK)


def test_an_earlier_move_of_the_same_run_that_a_renamed_reset_has_left_is_named(pipeline):
    pipeline.run("reset")
    reset = ResetOffsetsOperator(task_id="reset_again", shift_by=-3, quiet_period=0, **pipeline.names)
    receipt = reset.execute(pipeline.context("reset_again"))
    pipeline.restore_fails(receipt, r"not put back: .* move 0001-seek .* of the same run", **FAILED)
    assert pipeline.at() == (BACK, BACK)


# --- a restore that is tried again


@pytest.mark.parametrize(
    "policy", [{}, {"on_pending_batch": "discard", "idempotent_sink": True}], ids=["fail", "discard"]
)
@pytest.mark.parametrize("gone_on", [False, True], ids=["at-once", "gone-on"])
def test_a_restore_that_is_tried_again_after_it_was_done_changes_nothing(pipeline, policy, gone_on):
    pipeline.query.plan(2, {pipeline.topic: ENDS})
    receipt = pipeline.run("reset", on_pending_batch="discard", idempotent_sink=True)
    restore = RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", quiet_period=0, **pipeline.names, **policy
    )
    first = restore.execute(pipeline.context("restore"))
    assert first is not None
    if gone_on:
        pipeline.query.run(2, {pipeline.topic: ENDS})
        pipeline.run("commit")
        pipeline.query.plan(3, {pipeline.topic: ENDS})
    files, at = pipeline.query.files(), pipeline.at()
    assert "offsets/2" in files
    again = restore.execute(pipeline.context("restore"))
    assert (pipeline.query.files(), pipeline.at()) == (files, at)
    assert again is not None
    same = ("group_id", "before", "after", "changed", "verified", "plan_only")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    assert again["checkpoint"].items() <= first["checkpoint"].items()


def test_a_teardown_that_is_tried_again_after_it_was_done_says_the_same(pipeline):
    pipeline.query.plan(2, {pipeline.topic: ENDS})
    receipt = pipeline.run("reset", on_pending_batch="discard", idempotent_sink=True)
    before = []
    for _ in range(2):
        task, context = pipeline.tasks(receipt)["restore"], pipeline.context("restore", **FAILED)
        with pytest.raises(AirflowFailException, match=": everything was put back"):
            task.execute(context)
        before.append(context["ti"].xcoms["return_value"]["before"])
        assert pipeline.at() == (READ, READ)
        assert "offsets/2" in pipeline.query.files()
    assert before == [receipt["after"]] * 2
    assert archives(pipeline) == {"0001-seek": True, "0002-restore": False}


# --- where Airflow gives no teardown a chance


def test_a_recovery_that_was_left_is_drift_and_the_commit_and_the_next_reset_name_it(pipeline, caplog):
    receipt = pipeline.run("reset")
    with pytest.raises(
        AirflowFailException,
        match=r"recovery 0001-seek \(run manual__1 of flights.reset, .*\) is neither finished nor "
        r"undone: checkpoint .* is at 57 on .*--archive 0001-seek --execute'",
    ):
        check_drift(pipeline)
    caplog.clear()
    pipeline.tasks()["commit"].execute(other_run(pipeline, "commit"))
    assert "is neither finished nor undone" in caplog.text
    caplog.clear()
    reset_by_another(pipeline)
    assert "is neither finished nor undone" in caplog.text
    assert receipt["checkpoint"]["archive"] == "0001-seek"


def test_a_recovery_that_was_left_is_drift_also_after_the_move_of_another_run_was_taken_back(pipeline):
    pipeline.run("reset")
    restored_by_another(pipeline, reset_by_another(pipeline))
    assert pipeline.at() == (BACK, BACK)
    with pytest.raises(AirflowFailException, match="recovery 0001-seek .* is neither finished nor undone"):
        check_drift(pipeline)


def test_a_recovery_whose_group_was_left_behind_is_drift(pipeline):
    pipeline.run("reset")
    pipeline.job()
    with pytest.raises(AirflowFailException, match=r"neither finished nor undone: group .* is at 57"):
        check_drift(pipeline)


def test_a_recovery_that_is_finished_or_taken_back_is_no_drift(pipeline, caplog):
    receipt = pipeline.run("reset")
    pipeline.query.run(2, {pipeline.topic: {0: 58, 1: 60}})
    pipeline.run("commit")
    assert "neither finished" not in caplog.text  # its own commit
    pipeline.restore_fails(receipt, "everything was put back", **FAILED)
    check_drift(pipeline)
    pipeline.run("reset", tries=1)
    pipeline.job(3)
    pipeline.run("commit", tries=1)
    check_drift(pipeline)


def test_a_reset_without_a_teardown_is_no_recovery(pipeline):
    with DAG("flights"):
        reset = ResetOffsetsOperator(task_id="reset", shift_by=-3, quiet_period=0, **pipeline.names)
        reset >> RestoreOffsetsOperator(task_id="restore", receipt=reset.output, **pipeline.names)
    reset.execute(pipeline.context("reset"))
    check_drift(pipeline)


@pytest.mark.parametrize("ends", ["finished", "failed"])
def test_a_run_that_is_cleared_in_the_middle_of_a_batch_goes_on(pipeline, ends):
    first = pipeline.run("reset")
    pipeline.query.plan(2, {pipeline.topic: ENDS})
    again = pipeline.run("reset", tries=1)
    assert pipeline.at() == (BACK, BACK)
    assert again["checkpoint"] == first["checkpoint"]
    assert again["before"] == first["before"]
    if ends == "finished":
        pipeline.job()
        pipeline.run("commit")
        assert pipeline.run("restore", receipt=again, states=DONE) is None
        assert pipeline.at() == (ENDS, ENDS)
    else:
        pipeline.restore_fails(again, "everything was put back", **FAILED)
        assert pipeline.at() == (READ, READ)
        assert archives(pipeline)["0001-seek"]


def test_a_run_that_is_cleared_after_one_batch_and_in_the_next_is_refused_with_the_way_out(
    pipeline, cli, bootstrap_servers
):
    pipeline.run("reset")
    pipeline.query.run(2, {pipeline.topic: {0: 58, 1: 60}})
    pipeline.query.plan(3, {pipeline.topic: ENDS})
    with pytest.raises(AirflowFailException, match="batch 3 was begun and not finished") as refused:
        pipeline.run("reset", tries=1)
    command = str(refused.value).partition("'airflow-kafka-offsets ")[2].partition("'")[0]
    command = command.replace("GROUP", pipeline.group).replace("SINK", "kafka")
    done = cli(*command.split(), "--quiet-period", "0", "--bootstrap-server", bootstrap_servers)
    assert done.code == 0, done.err
    assert pipeline.at() == (READ, READ)


def test_a_drift_check_of_some_partitions_does_not_ask_for_the_others(pipeline):
    pipeline.recover()
    pipeline.names["topics"] = f"{pipeline.topic}:0"
    check_drift(pipeline)
