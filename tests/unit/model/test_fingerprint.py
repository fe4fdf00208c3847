"""The fingerprint of a set of offsets: its closed form, and what it tells apart."""

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.fingerprint import PRIME, Fingerprint
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, OffsetRange

FINGERPRINTS = st.builds(Fingerprint, st.integers(-(10**6), PRIME - 1))


def sum_of(fingerprint, offsets):
    """As a database adds them up."""
    return sum(pow(offset + fingerprint.shift, 4, PRIME) for offset in offsets)


@given(FINGERPRINTS, st.integers(0, MAX_OFFSET), st.integers(0, 200))
def test_the_closed_form_is_the_sum_over_the_range(fingerprint, start, size):
    total = sum_of(fingerprint, range(start, start + size))
    assert fingerprint.matches(OffsetRange(start, start + size), size, total)


@given(FINGERPRINTS, st.integers(0, 10**12), st.lists(st.integers(0, 60), min_size=1, max_size=60))
def test_rows_that_are_not_the_range_do_not_fit(fingerprint, start, picked):
    rows = [start + number for number in picked]
    assume(Counter(rows) != Counter(range(start, start + len(rows))))
    expected = OffsetRange(start, start + len(rows))
    assert not fingerprint.matches(expected, len(rows), sum_of(fingerprint, rows))


def test_equal_sums_and_sums_of_squares_are_told_apart():
    # Lost 0, 4 and 5, doubled 1, 2 and 6: as many, and with the same sum and the same sum of squares.
    rows = [1, 1, 2, 2, 3, 6, 6]
    assert sum(rows) == sum(range(7))
    assert sum(row * row for row in rows) == sum(row * row for row in range(7))
    fingerprint = Fingerprint.random(OffsetRange(0, 7))
    assert not fingerprint.matches(OffsetRange(0, 7), 7, sum_of(fingerprint, rows))


@given(st.integers(0, 2**40), st.integers(0, 2**33))
def test_a_small_fingerprint_needs_no_more_than_64_bits(start, size):
    bounds = OffsetRange(start, start + size)
    fingerprint = Fingerprint.random(bounds)
    assert fingerprint.small == (size <= 2**30)
    if fingerprint.small:
        assert start + fingerprint.shift >= 0
        assert (start + size + fingerprint.shift) ** 2 <= MAX_OFFSET


def test_each_audit_has_a_fingerprint_of_its_own():
    assert len({Fingerprint.random(OffsetRange(0, 9)).shift for _ in range(20)}) > 10
