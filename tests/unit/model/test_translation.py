"""Translations on simulated mirrors: nothing is lost, and no more is read again than a translation says."""

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_mirror import Mirror, Record

from airflow_kafka_offsets.model.offset_syncs import OffsetSync
from airflow_kafka_offsets.model.offsets import LogRange
from airflow_kafka_offsets.model.translation import Evidence, LastRead, RecordIdentity, Search

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


def check(mirror, position, read, *, continues=False):
    """
    Check the translation of a position.

    :param continues: whether the mirror copies the rest of the source then.
    """
    source = LogRange(mirror.records[0].offset, mirror.records[-1].offset + 1) if continues else None
    evidence = Evidence(position, mirror.range, mirror.syncs, read, source)
    while search := evidence.next_search():
        evidence = evidence.with_search(mirror.search(search))
    found = evidence.translate()
    if found.offset is None or found.offset < mirror.start:  # refused: it is unknown, or deleted
        return
    left = {record.offset for record in mirror.log[found.offset :]}
    skipped = {record.offset for record in mirror.log[: found.offset] if record.offset >= position}
    lost = sorted(skipped - left)
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
    evidence = Evidence(60, LogRange(70, 100), [OffsetSync(50, 50), OffsetSync(90, 90)], [read])
    assert evidence.next_search() == Search(read, 70, 90)
    evidence = evidence.with_search(Search(read, 70, 90, [], [75, 80], 20))
    assert evidence.next_search() is None
    assert (evidence.translate().offset or 0) <= 76


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
    assert (Evidence(position, LogRange(600, 1_000), syncs).translate().offset or 0) < 600
    assert Evidence(position, LogRange(0, 1_000), syncs).translate().offset == 0


@pytest.mark.parametrize(("start", "expected"), [(35, 10), (10, 10), (9, None)])
def test_a_last_record_that_the_mirror_has_deleted_is_no_sign_of_other_records(start, expected):
    """The position is one that was deleted, which may be clamped; the copy would be at offset 9."""
    syncs = [OffsetSync(10, 0), OffsetSync(30, 20), OffsetSync(90, 80)]
    evidence = Evidence(20, LogRange(start, 90), syncs, [LastRead(20, RecordIdentity(19, 1, "d"))])
    search = evidence.next_search()
    assert search is not None
    absent = replace(search, records=search.end - search.start)
    assert evidence.with_search(absent).translate().offset == expected


def test_a_last_record_that_was_not_read_in_time_is_not_said_to_have_no_copy():
    unread = Evidence(20, LogRange(0, 90))
    assert "could not read the last record" in unread.translate().why
    evidence = replace(unread, read=[LastRead(20, RecordIdentity(19, 1, "d"))])
    search = evidence.next_search()
    assert search is not None
    assert "no copy of the last record" in evidence.with_search(search).translate().why


def test_syncs_of_an_empty_topic_show_another_name():
    found = Evidence(70, LogRange(0, 0), [OffsetSync(0, 0)]).translate()
    assert (found.offset, "another name" in found.why) == (None, True)


@pytest.mark.parametrize(("position", "lacking"), [(70, True), (100, False), (101, False)])
def test_a_mirror_that_begins_after_the_position_is_remarked(position, lacking):
    found = Evidence(position, LogRange(0, 10), [OffsetSync(100, 0)]).translate()
    assert found.offset == max(0, position - 100)
    assert found.why.startswith("the mirror begins with a later record") == lacking


def syncs_up_to(end):
    return [OffsetSync(offset, offset) for offset in range(0, end, 100)]


def test_an_empty_copy_is_a_place_only_if_the_old_cluster_has_no_record_to_copy():
    found = Evidence(70, LogRange(0, 0)).translate()
    assert (found.offset, str(found)) == (None, "unknown")
    assert "no record of it" in found.why
    assert str(replace(found, offset=0)) == "exact (empty)"
    assert str(Evidence(70, LogRange(0, 0), no_record=True).translate()) == "exact (empty)"


def test_syncs_beyond_the_end_of_the_mirror_are_of_another_topic():
    """The names of the mirror lead to another topic than MirrorMaker's copy, and it is shorter."""
    found = Evidence(4_000, LogRange(0, 1_000), syncs_up_to(5_000), source=LogRange(0, 5_000)).translate()
    assert found.offset is None
    assert "after the end of the mirror's log" in found.why


@pytest.mark.parametrize(("end", "exists"), [(4_950, True), (5_000, False), (20_000, False)])
def test_a_record_that_the_mirror_must_have_copied_and_does_not_have_shows_another_topic(end, exists):
    """After the last sync too: each record there has its own offset on the source."""
    read = LastRead(4_995, RecordIdentity(4_994, 1, "d"))
    evidence = Evidence(4_995, LogRange(0, end), syncs_up_to(5_000), [read], LogRange(0, 5_000))
    search = evidence.next_search()
    assert search is not None
    found = evidence.with_search(replace(search, records=search.end - search.start)).translate()
    assert (found.offset is not None) is exists
