"""What a move means for those who go on from there: numbers, or reasons why there is none."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.estimate import (
    Between,
    Estimate,
    FinishedBatch,
    bytes_text,
    judge_retention,
    mean_size,
    measure_move,
    replay_seconds,
)
from airflow_kafka_offsets.model.headroom import Headroom, Retention
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.plan import PartitionMove

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
WEEK = Retention(ms=7 * 86_400_000)


def test_a_move_counts_what_is_read_again_passed_over_and_left_until_the_log_end():
    moves = [PartitionMove(A, 80, 30, LogRange(0, 100)), PartitionMove(B, 10, 60, LogRange(0, 90))]
    found = measure_move(moves)
    assert (found.records_again, found.records_passed, found.lag, found.partition_lag) == (50, 50, 100, 70)


def test_a_partition_without_a_commit_reads_nothing_again():
    found = measure_move([PartitionMove(A, None, 30, LogRange(0, 100))])
    assert (found.records_again, found.records_passed, found.lag) == (0, 0, 70)


@given(
    st.floats(0.1, 5), st.floats(0.0001, 0.01), st.lists(st.integers(100, 10_000), min_size=8, max_size=50)
)
def test_batches_on_a_line_give_the_time_of_one_batch_and_at_most_their_pace(base, slope, sizes):
    batches = [FinishedBatch(size, base + slope * size) for size in sizes]
    found = replay_seconds(100_000, batches)
    if isinstance(found, str):
        assert "differ too much" in found
        return
    assert found.least <= found.most
    if max(sizes) > 2 * min(sizes):
        assert found.least == pytest.approx(base + slope * 100_000, rel=0.01)


@given(
    st.integers(0, 10**12),
    st.lists(st.builds(FinishedBatch, st.integers(0, 10**9), st.floats(0, 10**6)), max_size=20),
)
@example(1_000, [FinishedBatch(size, 1.0) for size in (100, 110, 120, 130)])  # no line fits equal times
def test_a_duration_is_never_negative_and_in_order(records, batches):
    found = replay_seconds(records, batches)
    assert isinstance(found, str) or 0 <= found.least <= found.most


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([FinishedBatch(100, 1.0)] * 3, "has 3 of 4 needed batches with records and times"),
        ([FinishedBatch(0, 1.0), FinishedBatch(100, 0.0)] * 5, "has 0 of 4 needed batches"),
        (
            [FinishedBatch(100, 1.0)] * 4 + [FinishedBatch(1_000, 1.0), FinishedBatch(1_000, 9.0)],
            "the paces of large batches differ too much: 111 to 1,000",
        ),
    ],
)
def test_no_duration_where_none_is_honest(batches, why):
    found = replay_seconds(1_000, batches)
    assert isinstance(found, str)
    assert why in found


def test_a_mean_size_is_of_places_and_missing_where_they_differ_too_much():
    assert mean_size([[100, 200], [150]]) == 150
    assert mean_size([[]]) == "no record could be read"
    assert "differ too much in size: 10 to 100,000" in str(mean_size([[10], [100_000], [10], [10]]))


def in_time(seconds):
    return {A: Headroom("time", seconds)}


@pytest.mark.parametrize(
    ("headrooms", "seconds", "verdict"),
    [
        (in_time(3_600.0), Between(10, 600), "kept"),
        # It takes longer than the topic keeps records: what it reads last is gone before.
        (in_time(3_600.0), Between(10, 8 * 86_400), "at risk"),
        (in_time(0.0), Between(10, 600), "at risk"),
        (in_time(3_600.0), None, "unknown"),
        ({A: Headroom("lost")}, Between(1, 1), "lost"),
        ({A: Headroom("unknown", reason="no right")}, Between(1, 1), "unknown"),
        ({A: Headroom("none")}, None, "kept"),
    ],
)
def test_retention_is_judged_by_when_the_oldest_record_goes_and_how_long_reading_takes(
    headrooms, seconds, verdict
):
    assert judge_retention(headrooms, {"t": WEEK}, seconds)[0] == verdict


def test_an_estimate_says_why_a_number_is_missing():
    found = Estimate(1, 0, 2_000, 5, reasons={"seconds": "no history", "retention": "no right"})
    assert found.duration() == "time unknown: no history"
    assert found.volume() == "2,000 records"
    assert found.retention_text() == "unknown: no right"
    known = Estimate(
        1, 0, 2_000, 5, bytes=31_000_000, seconds=Between(120, 7_200), begin_within=90_000, retention="kept"
    )
    assert known.volume() == "2,000 records, about 31 MB by a sample"
    assert known.duration() == "2 min to 2 h"
    assert known.retention_text() == "kept until they are read; begin within 1 d 1 h"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (3_100, "3.1 kB"), (31_000_000, "31 MB"), (2e15, "2,000 TB")],
)
def test_bytes_have_a_unit(size, text):
    assert bytes_text(size) == text
