"""Sets of offsets as ranges: merged, subtracted, cut and named."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.offset_ranges import (
    clip,
    count_offsets,
    covering_ranges,
    first_ranges,
    intersect,
    merge,
    ranges_json,
    ranges_text,
    subtract,
)
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)))
ORDERS = [TopicPartition("orders", number) for number in range(3)]


def offsets_in(ranges):
    return {offset for start, end in ranges for offset in range(start, end)}


@given(PAIRS)
def test_merged_ranges_have_the_same_offsets_and_do_not_touch(pairs):
    merged = merge(pairs)
    assert offsets_in(merged) == offsets_in(pairs)
    assert all(before.end < after.start for before, after in pairwise(merged))
    assert all(each.size > 0 for each in merged)
    assert merge(merged) == merged


@given(PAIRS, PAIRS)
def test_ranges_are_sets(some, others):
    left, right = merge(some), merge(others)
    only, both = offsets_in(left) - offsets_in(right), offsets_in(left) & offsets_in(right)
    assert subtract(left, right) == merge((offset, offset + 1) for offset in only)
    assert intersect(left, right) == merge((offset, offset + 1) for offset in both)


@given(PAIRS, st.integers(0, 40), st.integers(0, 40))
def test_ranges_are_cut_to_bounds(pairs, start, end):
    assert offsets_in(clip(merge(pairs), start, end)) == offsets_in(pairs) & set(range(start, end))


@given(PAIRS, st.integers(1, 5), st.integers(0, 10))
def test_hulls_cover_all_and_are_few(pairs, most, apart):
    ranges = merge(pairs)
    found = covering_ranges(ranges, most, apart)
    assert len(found) <= most
    assert offsets_in(ranges) <= offsets_in(found)
    assert all(after.start - before.end >= apart for before, after in pairwise(found))


def test_hulls_are_split_where_the_ranges_are_farthest_apart():
    assert covering_ranges(merge([(0, 1), (5, 6), (50, 51), (60, 61)]), 2, 3) == (
        OffsetRange(0, 6),
        OffsetRange(50, 61),
    )


def test_offsets_are_counted_named_and_listed():
    ranges = {ORDERS[1]: merge([(3, 4), (8, 10)]), ORDERS[0]: merge([(0, 5)])}
    assert count_offsets(ranges) == 8
    assert ranges_text(ranges) == "orders-0: offsets 0 to 4, orders-1: offset 3, orders-1: offsets 8 to 9"
    assert ranges_text(ranges, 2) == "orders-0: offsets 0 to 4, orders-1: offset 3 and 1 more range"
    assert ranges_json(ranges) == {"orders": {"0": [[0, 5]], "1": [[3, 4], [8, 10]]}}
    assert first_ranges(ranges, 2) == {ORDERS[0]: ranges[ORDERS[0]], ORDERS[1]: ranges[ORDERS[1]][:1]}


@pytest.mark.parametrize("number", [1, 2, 7])
def test_the_number_of_ranges_that_are_not_named_is_right(number):
    ranges = {ORDERS[0]: merge((2 * at, 2 * at + 1) for at in range(number + 5))}
    assert ranges_text(ranges).endswith(f" and {number} more range{'' if number == 1 else 's'}")
