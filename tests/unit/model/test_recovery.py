from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, stopped_half_way
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.recovery import LastCommit, Work, is_finished

RUN = CommitMetadata(dag="recovery", run="manual__1", task="reset", map_index=-1)
COMMIT = CommitMetadata(dag="recovery", run="manual__1", task="commit")
RESTORE = CommitMetadata(dag="recovery", run="manual__1", task="restore")
MOVERS = {RUN.identity, RESTORE.identity}
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ORDER = {"job": {"commit", "check"}, "commit": {"check"}, "check": set()}


def work(**states):
    return Work({task: [state] for task, state in states.items()}, ORDER)


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
    assert work(**states).cut_off == cut_off


def test_a_mapped_task_is_done_when_all_of_its_instances_are():
    assert Work({"job": ["success", "success"]}, {}).done == ["job"]
    assert Work({"job": ["success", None]}, {}).not_done == ["job"]
    assert Work({"job": []}, {}).not_done == ["job"]
    assert Work({"job": ["success", "failed"]}, {}).failed == ["job"]


def test_a_commit_by_another_task_past_where_the_pipeline_was_finishes_a_move():
    assert is_finished({P0: LastCommit(60, COMMIT)}, {P0: 60}, MOVERS)
    assert not is_finished({P0: LastCommit(59, COMMIT)}, {P0: 60}, MOVERS)
    assert not is_finished({P0: None}, {P0: 0}, MOVERS)
    assert not is_finished({}, {}, MOVERS)


@pytest.mark.parametrize("by", [RUN, RESTORE])
def test_a_commit_of_the_reset_or_its_restore_finishes_nothing(by):
    assert not is_finished({P0: LastCommit(60, by)}, {P0: 60}, MOVERS)
    assert not is_finished({P0: LastCommit(60, COMMIT), P1: LastCommit(60, by)}, {}, MOVERS)


@pytest.mark.parametrize("by", [None, CommitMetadata(dag="recovery", run="manual__2", task="reset")])
def test_a_commit_of_another_run_or_client_finishes_a_move(by):
    assert is_finished({P0: LastCommit(60, by)}, {P0: 60}, MOVERS)


def test_a_commit_that_a_move_has_overtaken_does_not_finish_it():
    late = CommitMetadata(dag="recovery", run="manual__2", task="commit", move=1)
    assert not is_finished({P0: LastCommit(60, late)}, {}, MOVERS, move=2)
    assert is_finished({P0: LastCommit(60, late)}, {}, MOVERS, move=1)


def test_a_task_is_known_by_its_commits_of_many_partitions_too():
    long = CommitMetadata(
        dag="d" * 60,
        run="manual__2026-01-02T00:00:00+00:00",
        task="group.reset",
        query="q" * 36,
        batch=7,
        token="t" * 12,
    )
    text = long.text(200)
    assert len(text) <= 200
    found = CommitMetadata.parse(text)
    assert found is not None
    assert (found.task, long.same_task(found), found.query) == ("", True, long.query)
    other = CommitMetadata.parse(replace(long, task="group.commit", token="u" * 12).text(200))
    assert other is not None
    assert not long.same_task(other)


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
    assert replace(STARTED, **later).same_task(STARTED) is same
    parsed = CommitMetadata.parse(STARTED.text(200))
    assert parsed is not None
    assert replace(STARTED, **later).same_task(parsed) is same


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
    assert replace(STARTED, **later).same_run(STARTED) is same


def at(by, seconds):
    return CommitMetadata(dag=by.dag, run=by.run, task=by.task, at=seconds)


@pytest.mark.parametrize(
    ("commits", "half_way"),
    [
        ([at(RUN, 100), None], True),
        ([at(RUN, 100), at(COMMIT, 90)], True),
        ([at(RUN, 100), at(COMMIT, 101)], False),
        ([at(RUN, 100), at(RUN, 100)], False),
        ([at(COMMIT, 100), None], False),
        ([], False),
    ],
)
def test_a_task_that_moved_some_of_its_partitions_has_stopped_half_way(commits, half_way):
    assert stopped_half_way(commits, RUN) is half_way


STATES = st.sampled_from(["success", "failed", "skipped", "upstream_failed", None])


@given(st.fixed_dictionaries({task: st.lists(STATES, min_size=1, max_size=3) for task in ORDER}))
def test_each_task_is_done_or_not_and_what_is_cut_off_is_done(states):
    found = Work(states, ORDER)
    assert sorted(found.done + found.not_done) == sorted(states)
    assert set(found.cut_off) <= set(found.done)
    assert not set(found.failed) & set(found.done)
