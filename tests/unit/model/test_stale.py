"""A move is stale if the pipeline has left the offsets between which it took its partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.stale import later_progress, offset_changes, partitions_moved_on

P0 = TopicPartition("orders", 0)
OFFSETS = st.integers(0, 100)


@pytest.mark.parametrize(
    ("before", "moved_to", "now", "has_gone_on"),
    [
        (30, 10, 10, False),  # nothing has happened since
        (30, 10, 20, False),  # the recovery has come half-way
        (30, 10, 30, False),  # it was finished, or the move was taken back
        (30, 10, 31, True),
        (30, 10, 9, True),  # another one has moved it further back
        (10, 30, 30, False),
        (10, 30, 31, True),
        (10, 30, 10, False),
        (10, 30, 20, True),  # another one has read or moved to there: the move leads past it
        (10, 30, 9, True),
        (10, 10, 11, True),  # a partition that the move has left where it was
        (10, None, 11, True),
        (10, 30, None, False),
    ],
)
def test_a_partition_has_gone_on_where_neither_the_move_nor_its_recovery_leads(
    before, moved_to, now, has_gone_on
):
    found = partitions_moved_on({P0: now}, {P0: before}, {} if moved_to is None else {P0: moved_to})
    assert found == ([P0] if has_gone_on else [])


@given(OFFSETS, OFFSETS, OFFSETS)
def test_taking_a_move_back_rewinds_only_what_the_move_itself_has_skipped_unless_it_is_stale(
    before, moved_to, now
):
    if not partitions_moved_on({P0: now}, {P0: before}, {P0: moved_to}):
        assert now in (before, moved_to) or now < before


def test_what_would_be_read_again_and_skipped_is_counted():
    moves = offset_changes({P0: 130, TopicPartition("orders", 1): None}, {P0: 30})
    found = later_progress("0001-seek", ["move 0002-seek (run a, today) followed"], [*moves, (10, 15)])
    assert found.endswith("100 records are read again, and 5 are skipped")


@pytest.mark.parametrize(("found", "moves"), [((), ((9, 5),)), (("move 0002-seek followed",), ((5, 5),))])
def test_nothing_is_stale_without_a_follower_or_where_everything_is_back_already(found, moves):
    assert later_progress("0001-seek", found, moves) == ""
