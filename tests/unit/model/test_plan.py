from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import CommitError, GroupMovedError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Commit, LogRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan, check_read_back
from airflow_kafka_offsets.model.table import DELETED

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOG = {A: LogRange(10, 100), B: LogRange(0, 50)}


def make(targets, before=None, **policies):
    before = {A: 20, B: None} if before is None else before
    return OffsetPlan.make("g", targets, as_commits(before), LOG, source={"checkpoint": "/c"}, **policies)


def test_a_plan_lays_before_and_after_beside_the_log():
    plan = make({A: 30, B: 50})
    assert plan.before == {A: 20, B: None}
    assert plan.after == {A: 30, B: 50}
    assert plan.changed == 2
    assert plan.moved_by == 60
    PipelinePlan([plan]).check()


def test_a_plan_builds_its_offsets_once():
    plan = make({A: 30, B: 50})
    # A move asks for them for each partition: 20,000 partitions would take minutes.
    assert (plan.before is plan.before, plan.after is plan.after) == (True, True)


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (9, "retention has deleted 1 record"),
        (101, "recreated"),
        (-1, "holds 10 to 100: no offset is below 0; set on_out_of_range to 'clamp'"),
    ],
)
def test_an_offset_outside_the_log_is_refused_by_default(offset, says):
    with pytest.raises(PlanRefusedError, match=says):
        PipelinePlan([make({A: offset})]).check()


def test_the_lag_of_a_plan_is_that_after_it_without_topics_of_which_a_partition_is_left_alone():
    assert make({A: 30, B: 50}).lag.by_topic == {"orders": 70}
    assert make({A: 101, B: 5}, on_out_of_range="skip").lag.by_topic == {}


@pytest.mark.parametrize(
    ("asked", "end", "lost", "says"),
    [
        (9, 10, 1, "; 1 record deleted by retention\n"),
        (8, 10, 2, "; 2 records deleted by retention\n"),
        (-3, 10, 10, "; 10 records deleted by retention\n"),
        (101, 100, 0, "; 1 moved to an end of the log instead\n"),
    ],
)
def test_an_offset_outside_the_log_is_clamped_when_asked_and_kept_beside_what_was_deleted(
    asked, end, lost, says
):
    plan = make({A: asked, B: 5}, on_out_of_range="clamp")
    assert (plan.after, plan.clamped, plan.skipped, plan.lost) == ({A: end, B: 5}, {A: asked}, {}, lost)
    assert f"moved to {end}" in plan.notes[0]
    assert "; 1 moved to an end of the log instead" in plan.table()
    assert says in plan.table()


def test_an_offset_outside_the_log_is_left_alone_when_asked_and_kept_with_where_it_stays():
    plan = make({A: 101, B: 5}, on_out_of_range="skip")
    assert (plan.after, plan.skipped, plan.clamped, plan.lost) == ({B: 5}, {A: 20}, {}, 0)
    assert "left alone" in plan.notes[0]
    assert "1 of 1 partitions change, moved by +5 offsets; 1 left alone" in plan.table()


def test_a_time_that_the_log_does_not_reach_is_no_offset_that_was_asked_for():
    plan = make({A: 10}, {A: 20}, clamped=[A])
    assert (plan.clamped, plan.lost) == ({A: None}, 0)


def test_a_deleted_record_has_no_time():
    plan = replace(make({A: 20}, {A: 5}), times={(A, 5): DELETED, (A, 20): 0})
    assert "deleted    1970-01-01T00:00:00Z" in plan.table()


def test_going_backwards_is_refused_unless_allowed():
    with pytest.raises(PlanRefusedError, match="would go backwards on orders-0"):
        PipelinePlan([make({A: 19}, allow_rewind=False)]).check()
    PipelinePlan([make({A: 19})]).check()


def test_all_reasons_are_given_at_once():
    plan = make({A: 200, B: 60}, refusals=["found before"])
    with pytest.raises(PlanRefusedError) as refused:
        PipelinePlan([plan]).check()
    assert len(refused.value.refusals) == 3
    assert str(refused.value).startswith("nothing was changed")


@pytest.mark.parametrize("found", [49, None], ids=["another offset", "no commit"])
def test_reading_back_anything_else_is_an_error_that_names_the_partition(found):
    check_read_back("g", {A: 30, B: 50}, {A: 30, B: 50})
    with pytest.raises(CommitError, match=f"orders-1: planned 50, read back {found}") as error:
        check_read_back("g", {A: 30, B: 50}, {A: 30, B: found})
    assert error.value.written == (A,)


def test_a_group_that_moved_since_the_plan_is_refused_and_names_who_moved_it():
    plan = make({A: 30, B: 50})
    plan.check_not_moved({A: Commit(20, ""), B: None})
    by = CommitMetadata(dag="flights", run="manual__2", task="reset").text()
    with pytest.raises(GroupMovedError, match=r"'g' changed on orders-0 .*\(by run manual__2") as no:
        plan.check_not_moved({A: Commit(15, by), B: None})
    assert no.value.retriable


def test_a_group_whose_first_commit_came_since_the_plan_is_refused():
    with pytest.raises(GroupMovedError, match="commits of group 'g' changed on orders-1 while its move"):
        make({B: 5}).check_not_moved({B: Commit(5, "")})


def test_the_table_has_a_line_for_each_partition_and_each_refusal():
    lines = make({A: 30, B: 60}).table().splitlines()
    assert lines[0].startswith("group g: 2 of 2 partitions change, ")
    assert lines[2].split() == ["orders", "0", "20", "30", "+10", "10", "100"]
    assert lines[3].split() == ["orders", "1", "-", "60", "-", "0", "50"]
    assert lines[4].startswith("refused: offset 60")


def test_a_table_of_many_partitions_shows_those_that_move_furthest_and_sums_up_the_others():
    partitions = [TopicPartition("orders", number) for number in range(1_000)]
    plan = OffsetPlan.make(
        "g",
        {tp: tp.partition for tp in partitions},
        as_commits(dict.fromkeys(partitions, 0)),
        dict.fromkeys(partitions, LogRange(0, 1_000)),
    )
    lines = plan.table().splitlines()
    assert [int(line.split()[1]) for line in lines[2:22]] == list(range(980, 1_000))
    assert lines[22:] == [f"... and 980 more partitions: 979 change, {sum(range(980)):+,} offsets in total"]
    # Nobody reads the times of the others.
    assert {tp.partition for tp, _ in PipelinePlan([plan]).table_positions()} == set(range(980, 1_000))


logs = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda ends: LogRange(min(ends), max(ends)))


@given(
    logs,
    st.integers(0, 2000),
    st.none() | st.integers(0, 2000),
    st.sampled_from(["fail", "clamp", "skip"]),
    st.booleans(),
)
def test_no_plan_that_passes_its_check_leaves_the_log_or_goes_back_unasked(
    log, target, before, policy, checkpoint_plan
):
    plan = OffsetPlan.make(
        "g",
        {A: target},
        as_commits({A: before}),
        {A: log},
        on_out_of_range=policy,
        allow_rewind=checkpoint_plan,
    )
    if plan.refusals:
        return
    assert all(move.after in move.log for move in plan.moves)
    assert checkpoint_plan or all(move.before is None or move.after >= move.before for move in plan.moves)
    if target in log:
        assert plan.after == {A: target}
