"""Which ranges a job commits by itself, and which are refused."""

import pytest
from memory_kafka import SERVERS

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError, WindowMismatchError
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark import commit_ranges

OPTIONS = {"kafka.bootstrap.servers": SERVERS}


def test_a_group_without_a_commit_is_at_the_beginning_unless_that_is_refused(make_topic, produce, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 9})
    first = {TopicPartition(topic, 0): OffsetRange(4, 6)}
    with pytest.raises(WindowMismatchError, match="found nothing"):
        commit_ranges(group, first, options=OPTIONS, on_no_commit="fail", fenced=False)
    # A window says by itself whether there was a commit.
    with pytest.raises(WindowMismatchError, match="found nothing"):
        commit_ranges(group, OffsetWindow(first), options=OPTIONS, fenced=False)
    assert commit_ranges(group, first, options=OPTIONS, fenced=False) == {TopicPartition(topic, 0): 6}


def test_ranges_of_another_cluster_and_of_another_query_are_not_committed(make_topic, produce, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    with pytest.raises(PlanRefusedError, match="the window ends beyond the log"):
        commit_ranges(group, {TopicPartition(topic, 0): OffsetRange(0, 4)}, options=OPTIONS)
    commit_ranges(
        group, {TopicPartition(topic, 0): OffsetRange(0, 1)}, options=OPTIONS, query="q-1", fenced=False
    )
    with pytest.raises(PlanRefusedError, match="two queries in one group"):
        commit_ranges(
            group, {TopicPartition(topic, 0): OffsetRange(1, 3)}, options=OPTIONS, query="q-2", fenced=False
        )


def test_ranges_that_end_before_they_start_are_not_committed():
    with pytest.raises(UsageError, match="ranges end before they start on orders-0"):
        commit_ranges("g", {TopicPartition("orders", 0): OffsetRange(8, 2)}, client_config={})


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("in_client_mode", [True, False])
def test_a_window_that_another_run_has_read_is_not_committed(
    make_topic, produce, new_group, monkeypatch, fenced, in_client_mode
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 9})
    commit_ranges(group, {TopicPartition(topic, 0): OffsetRange(0, 2)}, options=OPTIONS, fenced=False)

    def commit_of(run_id):
        # A driver on a cluster knows its run only from the window.
        if in_client_mode:
            monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "flights")
            monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", run_id)
        source = {"start": "committed", "dag_id": "flights", "run_id": run_id}
        window = OffsetWindow({TopicPartition(topic, 0): OffsetRange(2, 6)}, source=source)
        return commit_ranges(group, window, options=OPTIONS, fenced=fenced)

    # Both windows were planned before either was committed.
    assert commit_of("one") == {TopicPartition(topic, 0): 6}
    assert commit_of("one") == {}
    with pytest.raises(
        PlanRefusedError, match="committed by run one of flights.*that run has read the same records"
    ):
        commit_of("two")
