"""Translations on simulated mirrors: nothing is lost, and no more is read again than a translation says."""

from __future__ import annotations

import os

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
def mirrors(draw, *, entropy=None):
    """
    A source with holes, copied by a mirror that may have been restarted, and of whose syncs some are lost.
    """
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 7]), min_size=1, max_size=60))
    values = draw(st.sampled_from([1, 2, 1_000_000])) if entropy is None else entropy
    offset, records = draw(st.sampled_from([0, 0, 5])), []
    for number, gap in enumerate(gaps):
        offset += gap
        time = number if values > 2 else number // 20
        records.append(Record(offset, time, b"%d" % (number % values)))
        offset += 1
    mirror = Mirror(records, lag=draw(st.sampled_from([1, 3, 8, 100])))
    done = 0
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        start = draw(st.integers(0, done))
        done = draw(st.integers(start, len(records)))
        mirror.run(start, done)
    lost = draw(st.sets(st.sampled_from(mirror.syncs))) if mirror.syncs else set()
    mirror.syncs = [sync for sync in mirror.syncs if sync not in lost or sync in mirror.kept]
    return mirror


def sightings(mirror, read):
    """Look for records where the syncs say, as the reader does."""
    log, syncs = mirror.range, mirror.syncs
    return [Sighting(last, mirror.scan(*bracket(syncs, last.place, log).search, last)) for last in read]


def check(mirror, position, read):
    found = translate(position, mirror.range, mirror.syncs, sightings(mirror, read))
    if found.offset is None:
        return found
    lost = [
        record.offset
        for record in mirror.log[: found.offset]
        if record.offset >= position
        and record.offset not in {later.offset for later in mirror.log[found.offset :]}
    ]
    assert not lost, f"{found}: {lost} are lost"
    again = mirror.again(position, found.offset)
    assert again <= found.again, f"{found}: {again} records are read again"
    return found


@settings(max_examples=EXAMPLES)
@given(mirrors(), st.data())
def test_by_syncs_alone_nothing_is_lost_and_no_more_read_again_than_it_says(mirror, data):
    position = data.draw(st.integers(0, mirror.records[-1].offset + 3))
    check(mirror, position, [])


@settings(max_examples=EXAMPLES)
@given(mirrors(), st.data())
def test_by_the_last_record_nothing_is_lost_and_no_more_read_again_than_it_says(mirror, data):
    position = data.draw(st.integers(0, mirror.records[-1].offset + 3))
    earlier = data.draw(st.integers(0, position))
    read = [last for each in (position, earlier) if (last := mirror.last_read(each)) is not None]
    check(mirror, position, read)


def test_a_record_like_the_one_that_was_read_is_no_place_beyond_the_syncs():
    read = LastRead(60, RecordIdentity(59, 1, "d"))
    alike = Sighting(read, Scan(70, 90, [], [75, 80], 20))
    syncs = [OffsetSync(50, 50), OffsetSync(90, 90)]
    assert (translate(60, LogRange(70, 100), syncs, [alike]).offset or 0) <= 76


def test_syncs_of_an_empty_topic_show_another_name():
    found = translate(70, LogRange(0, 0), [OffsetSync(0, 0)], [])
    assert (found.offset, "another name" in found.why) == (None, True)
