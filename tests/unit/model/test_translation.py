"""Translations on simulated mirrors: nothing is lost, and no more is read again than a translation says."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_mirror import Mirror, Record

from airflow_kafka_offsets.model.offset_syncs import OffsetSync, bracket
from airflow_kafka_offsets.model.offsets import LogRange
from airflow_kafka_offsets.model.translation import (
    LastRead,
    RecordIdentity,
    Scan,
    Sighting,
    translate,
)

EXAMPLES = 1_500 if os.environ.get("LONG_TESTS") else 300


@st.composite
def mirrors(draw):
    """
    A source with holes, copied by a mirror that may have been restarted, of whose syncs some are lost, and of
    whose records the first may be deleted.
    """
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 7]), min_size=1, max_size=60))
    values = draw(st.sampled_from([1, 2, 1_000_000]))
    offset, records = draw(st.sampled_from([0, 0, 5])), []
    for number, gap in enumerate(gaps):
        offset += gap
        time = number if values > 2 else number // 20
        records.append(Record(offset, time, b"%d" % (number % values)))
        offset += 1
    mirror = Mirror(records, lag=draw(st.sampled_from([1, 3, 8, 100])))
    done = 0
    runs = draw(st.sampled_from([1, 1, 2, 3]))
    for _ in range(runs):
        start = draw(st.integers(0, done))
        done = draw(st.integers(start, len(records)))
        mirror.run(start, done)
    lost = draw(st.sets(st.sampled_from(mirror.syncs))) if mirror.syncs else set()
    kept = mirror.kept if runs > 1 else ()
    mirror.syncs = [sync for sync in mirror.syncs if sync not in lost or sync in kept]
    if values > 2:  # of equal records the one that was read may be deleted, and another one left
        mirror.start = draw(st.integers(0, len(mirror.log)))
    return mirror


def sightings(mirror, read):
    """Look for records where the syncs say, as the reader does."""
    log, syncs = mirror.range, mirror.syncs
    return [Sighting(last, mirror.scan(*bracket(syncs, last.place, log).search, last)) for last in read]


def check(mirror, position, read, *, continues=False):
    """
    Check the translation of a position.

    :param continues: whether the mirror copies the rest of the source then.
    """
    source = LogRange(mirror.records[0].offset, mirror.records[-1].offset + 1) if continues else None
    found = translate(position, mirror.range, mirror.syncs, sightings(mirror, read), source)
    if found.offset is None or found.offset < mirror.start:  # refused: it is unknown, or deleted
        return
    lost = [
        record.offset
        for record in mirror.log[: found.offset]
        if record.offset >= position
        and record.offset not in {later.offset for later in mirror.log[found.offset :]}
    ]
    assert not lost, f"{found}: {lost} are lost"
    if continues:
        mirror.run(mirror.done, len(mirror.records))
    again = mirror.again(position, found.offset)
    assert again <= found.again, f"{found}: {again} records are read again"


@settings(max_examples=EXAMPLES)
@given(mirrors(), st.data())
def test_by_syncs_alone_nothing_is_lost_and_no_more_read_again_than_it_says(mirror, data):
    position = data.draw(st.integers(0, mirror.records[-1].offset + 3))
    check(mirror, position, [], continues=data.draw(st.booleans()))


@settings(max_examples=EXAMPLES)
@given(mirrors(), st.data())
def test_by_the_last_record_nothing_is_lost_and_no_more_read_again_than_it_says(mirror, data):
    position = data.draw(st.integers(0, mirror.records[-1].offset + 3))
    earlier = data.draw(st.integers(0, position))
    read = [last for each in (position, earlier) if (last := mirror.last_read(each)) is not None]
    check(mirror, position, read, continues=data.draw(st.booleans()))


def test_a_record_like_the_one_that_was_read_is_no_place_beyond_the_syncs():
    read = LastRead(60, RecordIdentity(59, 1, "d"))
    alike = Sighting(read, Scan(70, 90, [], [75, 80], 20))
    syncs = [OffsetSync(50, 50), OffsetSync(90, 90)]
    assert (translate(60, LogRange(70, 100), syncs, [alike]).offset or 0) <= 76


@pytest.mark.parametrize(
    ("position", "syncs"),
    [
        # The place is offset 300 at most, and 400 at least.
        (500, [OffsetSync(1_000, 300)]),
        (500, [OffsetSync(1_000, 900)]),
        (0, [OffsetSync(1_000, 900)]),
    ],
)
def test_a_place_that_the_mirror_may_have_deleted_is_no_translation_to_its_log_start(position, syncs):
    assert (translate(position, LogRange(600, 1_000), syncs).offset or 0) < 600
    assert translate(position, LogRange(0, 1_000), syncs).offset == 0


@pytest.mark.parametrize(("start", "expected"), [(35, 10), (10, 10), (9, None)])
def test_a_last_record_that_the_mirror_has_deleted_is_no_sign_of_other_records(start, expected):
    """The position is one that was deleted, which may be clamped; the copy would be at offset 9."""
    syncs, log = [OffsetSync(10, 0), OffsetSync(30, 20), OffsetSync(90, 80)], LogRange(start, 90)
    low, end = bracket(syncs, 20, log).search
    absent = Sighting(LastRead(20, RecordIdentity(19, 1, "d")), Scan(low, end, records=end - low))
    assert translate(20, log, syncs, [absent]).offset == expected


def test_syncs_of_an_empty_topic_show_another_name():
    found = translate(70, LogRange(0, 0), [OffsetSync(0, 0)], [])
    assert (found.offset, "another name" in found.why) == (None, True)
