from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Commit, Offsets, TopicPartition
from airflow_kafka_offsets.model.receipt import GroupReceipt, Receipt
from airflow_kafka_offsets.model.recovery import (
    MovedCheckpoint,
    Recovery,
    committed_by_others,
    judge,
)
from airflow_kafka_offsets.model.recovery_tasks import RecoveryTasks

RUN = CommitMetadata(dag="recovery", run="manual__1", task="reset", map_index=-1)
COMMIT = CommitMetadata(dag="recovery", run="manual__1", task="commit")
RESTORE = CommitMetadata(dag="recovery", run="manual__1", task="restore", tool="restore", token="first")
AGAIN = replace(RESTORE, token="cleared")
OTHERS_COMMIT = CommitMetadata(dag="hourly", run="scheduled__2", task="commit")
OTHERS_RESTORE = CommitMetadata(dag="other", run="manual__2", task="restore", tool="restore")
MOVERS = {RUN.identity, RESTORE.identity}
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ORDER = {"job": {"commit", "check"}, "commit": {"check"}, "check": set()}


def last_commit(offset, by):
    return Commit(offset, None if by is None else by.text())


def work(**states):
    return RecoveryTasks({task: [state] for task, state in states.items()}, ORDER)


@pytest.mark.parametrize(
    ("states", "cut_off"),
    [
        ({"job": None, "commit": None, "check": None}, []),
        ({"job": "success", "commit": None, "check": None}, []),
        ({"job": None, "commit": "success", "check": "success"}, ["check", "commit"]),
        ({"job": "success", "commit": None, "check": "success"}, ["check"]),
        ({"job": "success", "commit": "success", "check": "success"}, ["check", "commit", "job"]),
        ({"job": "failed", "commit": "upstream_failed", "check": "upstream_failed"}, []),
    ],
)
def test_tasks_that_succeeded_after_one_that_is_to_run_again_are_cut_off(states, cut_off):
    assert work(**states).outdated == cut_off


def test_a_mapped_task_is_done_when_all_of_its_instances_are():
    assert RecoveryTasks({"job": ["success", "success"]}, {}).succeeded == ["job"]
    assert RecoveryTasks({"job": ["success", None]}, {}).not_succeeded == ["job"]
    assert RecoveryTasks({"job": []}, {}).not_succeeded == ["job"]
    assert RecoveryTasks({"job": ["success", "failed"]}, {}).failed == ["job"]


def test_work_is_done_if_every_partition_was_last_committed_by_a_task_that_does_not_move_it():
    assert committed_by_others({P0: last_commit(60, COMMIT), P1: last_commit(60, None)}, MOVERS)
    for by in (RUN, RESTORE, OTHERS_RESTORE):
        assert not committed_by_others({P0: last_commit(60, COMMIT), P1: last_commit(60, by)}, MOVERS)
    assert not committed_by_others({P0: None}, MOVERS)
    assert not committed_by_others({}, MOVERS)


# --- the judgement

BEFORE: Offsets = {P0: 60, P1: 62}
AFTER: Offsets = {P0: 57, P1: 59}
RECEIPT = [GroupReceipt("orders", {**BEFORE}, AFTER)]
RECOVERY = Recovery({RUN.identity}, RESTORE, ["orders"])
MOVED = MovedCheckpoint("s3a://lake/orders", {"0": BEFORE}, {"0": AFTER}, number=3)


def judged(moved=None, **last):
    """The judgement where these commits are the last ones."""
    return judge(RECEIPT, {"orders": {P0: last["p0"], P1: last["p1"]}}, moved, RECOVERY)


def commits(offset, by=COMMIT):
    return {"p0": last_commit(offset, by), "p1": last_commit(offset, by)}


def at(offset, **so):
    return replace(MOVED, now={"0": {P0: offset, P1: offset}}, **so)


@pytest.mark.parametrize("by", [COMMIT, None, OTHERS_COMMIT])
def test_a_group_and_a_checkpoint_that_have_passed_where_they_were_are_finished(by):
    found = judged(at(62), **commits(62, by))
    assert (found.is_finished, found.to_restore) == (True, False)
    assert found.passed == ("checkpoint s3a://lake/orders", "group 'orders'")


@pytest.mark.parametrize(
    ("moved", "last", "groups", "checkpoint"),
    [
        (at(61), commits(100), {"orders": {P0, P1}}, True),
        (at(100, has_worked=False), commits(100), {"orders": {P0, P1}}, True),
        (at(100), commits(61), {"orders": {P1}}, False),
        (at(100), commits(100, RUN), {"orders": {P0, P1}}, False),
        (at(100), {"p0": None, "p1": last_commit(100, COMMIT)}, {"orders": {P0}}, False),
        (at(100), commits(100, replace(COMMIT, move=2)), {"orders": {P0, P1}}, False),
        (None, commits(61), {"orders": {P1}}, False),
    ],
    ids=["checkpoint", "no-batch", "group", "reset-alone", "no-commit", "overtaken", "group-alone"],
)
def test_what_has_not_passed_where_it_was_is_put_back(moved, last, groups, checkpoint):
    found = judged(moved, **last)
    assert not found.is_finished
    assert (found.groups, found.checkpoint) == (groups, checkpoint)


@pytest.mark.parametrize(
    "by",
    [
        OTHERS_RESTORE,
        *(
            CommitMetadata(tool=f"airflow-kafka-offsets {command}")
            for command in (
                "group restore",
                "group reset",
                "recover apply",
                "recover restore",
                "failover apply",
            )
        ),
    ],
)
def test_what_another_reset_or_restore_has_moved_is_left_and_named(by):
    found = judged(at(57), **commits(60, by))
    assert (found.is_finished, found.groups, found.checkpoint) == (False, {}, True)
    assert str(by) in "".join(found.not_restored)


def test_a_checkpoint_that_another_move_has_taken_is_left_with_what_was_committed_after_that():
    lost = at(30, not_restorable="it was moved again by 0004-seek")
    found = judged(lost, p0=last_commit(40, replace(OTHERS_COMMIT, move=4)), p1=last_commit(59, RUN))
    assert (found.is_finished, found.groups, found.checkpoint) == (False, {"orders": {P1}}, False)
    assert found.not_restored == ("it was moved again by 0004-seek",)


def test_what_an_earlier_try_has_put_back_is_not_put_back_again():
    last = {"p0": last_commit(60, RESTORE), "p1": last_commit(62, RESTORE)}
    found = judged(at(60, restored=True), **last)
    assert (found.is_finished, found.to_restore, found.restored) == (False, False, True)
    assert found.describe_outcome(Receipt(()), None) == "everything was put back"
    cleared = judge(
        RECEIPT, {"orders": {P0: last["p0"], P1: last["p1"]}}, None, replace(RECOVERY, restore=AGAIN)
    )
    assert (cleared.is_finished, cleared.to_restore, cleared.restored) == (False, False, False)
    assert "was moved again or restored" in cleared.not_restored[0]


def test_a_group_that_the_restore_does_not_name_is_left():
    found = judge(RECEIPT, {"orders": {P0: None, P1: None}}, None, replace(RECOVERY, groups=["renamed"]))
    assert (found.is_finished, found.to_restore) == (False, False)
    assert found.not_restored == ("group 'orders' is not put back: group_id names renamed",)


def receipt_of(before, after):
    return Receipt((GroupReceipt("orders", before, after),))


def test_everything_was_put_back_only_where_all_of_it_was():
    found = judged(None, **commits(57, RUN))
    receipt = receipt_of(BEFORE, AFTER)
    assert found.receipt_to_restore(receipt) == receipt
    assert found.describe_outcome(receipt, receipt_of(AFTER, BEFORE)) == "everything was put back"
    said = found.describe_outcome(receipt, receipt_of(AFTER, {P0: 60}))
    assert said.startswith(
        "put back: group 'orders'; not put back: group 'orders' on orders-1, which had no commit"
    )
    passed = judged(None, p0=last_commit(100, COMMIT), p1=last_commit(59, RUN))
    assert passed.receipt_to_restore(receipt) == receipt_of({P1: 62}, AFTER)


OFFSETS = st.integers(0, 100)
BY = st.sampled_from([None, RUN, RESTORE, AGAIN, COMMIT, OTHERS_COMMIT, OTHERS_RESTORE])
LAST = st.one_of(st.none(), st.builds(last_commit, OFFSETS, BY))


@given(OFFSETS, OFFSETS, OFFSETS, LAST, st.booleans(), st.sampled_from(["", "moved again"]), st.booleans())
def test_only_what_has_passed_is_finished_and_nothing_of_others_is_put_back(
    before, after, now, last, worked, lost, restored
):
    goal = max(before, after)
    moved = MovedCheckpoint(
        "c",
        {"0": {P0: before}},
        {"0": {P0: after}},
        {"0": {P0: now}},
        worked,
        not_restorable=lost,
        restored=restored,
    )
    group = GroupReceipt("orders", {P0: before}, {P0: after})
    found = judge([group], {"orders": {P0: last}}, moved, RECOVERY)
    by = CommitMetadata.of(last)
    passed = last is not None and last.offset >= goal and by in (None, COMMIT, OTHERS_COMMIT)
    assert found.is_finished == (passed and now >= goal and worked and not lost and not restored)
    assert found.checkpoint == (not lost and not restored and not (now >= goal and worked))
    if by in (OTHERS_RESTORE, RESTORE, AGAIN):
        assert not found.groups
    assert found.is_finished or found.to_restore or found.not_restored or found.restored


def test_a_task_is_known_by_its_commits_of_many_partitions_too():
    long = CommitMetadata(
        dag="d" * 60,
        run="manual__2026-01-02T00:00:00+00:00",
        task="group.reset",
        query="q" * 36,
        batch=7,
        at=1_767_225_600,
        token="t" * 12,
        cluster="c" * 22,
        topic="i" * 22,
    )
    text = long.text(200)
    assert len(text) <= 284
    found = CommitMetadata.parse(text)
    assert found is not None
    assert (found.task, long.is_same_task(found), found.query) == ("", True, long.query)
    other = CommitMetadata.parse(replace(long, task="group.commit", token="u" * 12).text(200))
    assert other is not None
    assert not long.is_same_task(other)


STARTED = CommitMetadata(dag="d", run="scheduled__2026", task="reset", token="first", started=100)


@pytest.mark.parametrize(
    ("later", "same"),
    [
        ({"try_number": 2}, True),
        ({"try_number": 2, "token": "cleared", "clears": 1}, True),  # in a run that had not ended
        ({"try_number": 2, "token": "cleared", "clears": 1, "started": 200}, True),  # in one that had
        ({"try_number": 2, "token": "created again", "started": 200}, False),
        ({"try_number": 1, "token": "created again", "started": 200}, False),
        # The run was created again, and cleared before the task ran for the first time.
        ({"try_number": 1, "token": "created again", "started": 200, "clears": 1}, False),
        ({"try_number": 2, "token": "another", "map_index": 1}, False),
        ({"try_number": 2, "token": "unknown", "started": None}, True),
    ],
)
def test_a_task_knows_its_earlier_tries_from_those_of_a_deleted_run_with_the_same_id(later, same):
    assert replace(STARTED, **later).is_same_task(STARTED) is same
    parsed = CommitMetadata.parse(STARTED.text(200))
    assert replace(STARTED, **later).is_same_task(parsed) is same


@pytest.mark.parametrize(
    ("later", "same"),
    [
        ({"task": "commit"}, True),
        ({"task": "commit", "started": 200, "clears": 1, "try_number": 1}, True),
        ({"task": "commit", "started": 200}, False),
        ({"task": "commit", "run": "scheduled__2027"}, False),
        ({"task": "commit", "dag": "other"}, False),
        ({"run": ""}, False),
    ],
)
def test_a_run_is_told_from_a_deleted_one_with_the_same_id(later, same):
    assert replace(STARTED, **later).is_same_run(STARTED) is same


STATES = st.sampled_from(["success", "failed", "skipped", "upstream_failed", None])


@given(st.fixed_dictionaries({task: st.lists(STATES, min_size=1, max_size=3) for task in ORDER}))
def test_each_task_is_done_or_not_and_what_is_cut_off_is_done(states):
    found = RecoveryTasks(states, ORDER)
    assert sorted(found.succeeded + found.not_succeeded) == sorted(states)
    assert set(found.outdated) <= set(found.succeeded)
    assert not set(found.failed) & set(found.succeeded)
