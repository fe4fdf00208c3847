"""Two runs that have planned the same records: one of them commits, and the other one must not succeed."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition, committed_offsets
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.window_commit import apply_window, plan_window_commits, window_targets

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
GROUP = GroupSelection.parse("g", "orders")
ONE, TWO = (CommitMetadata(run=run, dag="d", task="commit", token=run) for run in ("one", "two"))


def window(planned_by="", start="committed", first=(40, 100), second=(60, 60)):
    source = {"dag_id": "d", "run_id": planned_by, "start": start}
    return OffsetWindow({FIRST: OffsetRange(*first), SECOND: OffsetRange(*second)}, source=source)


@pytest.fixture
def group(client):
    client.commit("g", {FIRST: 40, SECOND: 60})
    return client


def commit(client, by, window=window(), *, fenced=False, meanwhile=None, **how):  # noqa: B008
    plans = plan_window_commits(client, window, window_targets(window, GROUP), source={}, run=by, **how)
    if meanwhile is not None:
        meanwhile()
    receipt = apply_window(client, PipelinePlan(plans), by, window, fenced=fenced)
    assert committed_offsets(client.committed("g", [FIRST]))[FIRST] == window.ranges[FIRST].end
    return receipt["changed"]


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_the_second_is_refused_and_the_text_names_the_first(group, fenced, late):
    def first():
        commit(group, ONE)

    if not late:
        first()
    with pytest.raises(PlanRefusedError, match="on orders-0, committed by run one of d.commit.*same records"):
        commit(group, TWO, fenced=fenced, meanwhile=first if late else None)


def test_a_run_of_another_dag_with_the_same_run_id_is_another_run(group):
    # The run ids of two DAGs with the same schedule are the same.
    assert commit(group, replace(ONE, dag="copy")) == 1
    with pytest.raises(PlanRefusedError, match="committed by run one of copy.commit.*same records"):
        commit(group, ONE, window(planned_by="one"))


@pytest.mark.parametrize(
    ("by", "how"),
    [
        (ONE, {}),
        (replace(ONE, task="again", token="x"), {}),
        (TWO, {"window": window(planned_by="one")}),
        (TWO, {"window": window(start="2026-01-05T06:00:00+00:00")}),
        (TWO, {"committed_at": "2026-03-01"}),
        (CommitMetadata(), {}),
    ],
    ids=["retry", "other-task", "planned-by-that-run", "times", "committed-before", "no-run"],
)
def test_what_the_same_run_has_committed_is_done(group, by, how):
    assert commit(group, ONE) == 1
    assert commit(group, by, **how) == 0


@pytest.mark.parametrize(
    "by",
    ["", CommitMetadata(tool="cli").text(), replace(ONE, tool="reset").text()],
    ids=["none", "tool", "reset"],
)
def test_a_group_that_was_moved_to_the_end_by_a_tool_or_a_reset_is_done(group, by):
    group.commit("g", {FIRST: 100, SECOND: 60}, by)
    assert commit(group, TWO) == 0


def test_a_window_without_records_may_be_committed_twice(group):
    empty = window(first=(40, 40))
    assert [commit(group, by, empty) for by in (ONE, TWO)] == [0, 0]
