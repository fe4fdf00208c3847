"""Certificates: what is compared, the verdict, the text, and the way through JSON."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import AuditError, OffsetsFormatError
from airflow_kafka_offsets.model.audited_rows import (
    Difference,
    ForeignRows,
    Sums,
    TableRows,
    compare_rows,
)
from airflow_kafka_offsets.model.certificate import COUNTS, MOST_LISTED, Certificate, MissingOffsets
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.fingerprint import PRIME, Fingerprint
from airflow_kafka_offsets.model.offset_ranges import count_offsets, merge, merge_each
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow

AT = datetime(2026, 3, 1, 12, 30, 15, tzinfo=timezone.utc)
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
WINDOW = OffsetWindow(
    {ZERO: OffsetRange(10, 20), ONE: OffsetRange(0, 5)},
    source={
        "group_id": "shop",
        "run_id": "r",
        "iteration": 2,
        "logs": {"cluster": "c", "topics": {"orders": "t"}},
        "asked": "x",
    },
)
ALL = TableRows(15)
AUDITED = {"conn_id": "lake", "table": "orders"}


def certificate(rows=ALL, missing=None, foreign=()):
    rows = replace(rows, foreign=foreign)
    return Certificate.issue(WINDOW, rows, missing or MissingOffsets(), AUDITED, AT)


def differences(tp, offsets):
    """As a database gives them: LAG over the ordered offsets."""
    ordered = sorted(offsets)
    return [Difference(tp, before, after) for before, after in pairwise(ordered) if after - before != 1]


def compare(rows, window=WINDOW, *more, read=None):
    """Rows as (partition, offset) compared with a window; ``read`` returns what a second read finds."""
    fingerprint = Fingerprint.random(OffsetRange(0, 100))
    held = {tp: [offset for at, offset in rows if at == tp] for tp in window.ranges}
    sums = {
        tp: Sums(len(its), sum(pow(at + fingerprint.shift, 4, PRIME) for at in its), min(its), max(its))
        for tp, its in held.items()
        if its
    }
    read = read or (lambda tps: [each for tp in tps for each in differences(tp, held[tp])])
    return compare_rows(dict(window.ranges), fingerprint, sums, read, *more)


@given(st.lists(st.integers(0, 29), max_size=60))
def test_missing_and_double_offsets_are_found_whatever_the_rows(offsets):
    window = OffsetWindow({ZERO: OffsetRange(0, 30)})
    found = compare([(ZERO, offset) for offset in offsets], window)
    times = Counter(offsets)
    missing = [(offset, offset + 1) for offset in range(30) if not times[offset]]
    doubled = [(offset, offset + 1) for offset in times if times[offset] > 1]
    assert found == TableRows(len(offsets), merge_each({ZERO: missing}), merge_each({ZERO: doubled}))


@given(st.lists(st.integers(0, 29), min_size=1, max_size=60), st.integers(1, 6))
def test_what_is_behind_the_last_difference_that_was_read_is_not_taken_for_good(offsets, most):
    window = OffsetWindow({ZERO: OffsetRange(0, 30), ONE: OffsetRange(0, 30)})
    found = compare([(tp, offset) for offset in offsets for tp in (ZERO, ONE)], window, most)
    times = Counter(offsets)
    wrong = {offset for offset in range(30) if times[offset] != 1}
    for tp in window.ranges:
        known = {
            offset
            for ranges in (found.missing, found.doubled, found.unlisted)
            for start, end in ranges.get(tp, ())
            for offset in range(start, end)
        }
        assert wrong <= known


def test_a_database_may_order_topics_otherwise():
    rows = [(ZERO, offset) for offset in range(10, 20) if offset != 12] + [(ONE, 0), (ONE, 1), (ONE, 4)]
    found = compare(rows, WINDOW, 1, read=lambda _: [Difference(ONE, 1, 4), Difference(ZERO, 11, 13)])
    assert found == TableRows(12, {ONE: merge([(2, 4)])}, {}, {ONE: merge([(4, 5)]), ZERO: merge([(10, 20)])})


def test_a_table_that_is_whole_is_not_read_twice():
    rows = [(tp, offset) for tp, (start, end) in WINDOW.ranges.items() for offset in range(start, end)]
    random.shuffle(rows)
    assert compare(rows, read=pytest.fail) == ALL


def test_rows_that_came_between_the_two_reads_are_an_error_that_may_pass():
    with pytest.raises(
        AuditError, match="changed while it was read: first 9 rows were found for the 10"
    ) as error:
        compare([(ZERO, at) for at in range(10, 19)], read=lambda _: [Difference(ZERO, 12, 12)])
    assert error.value.retriable


def test_rows_that_have_become_right_between_the_two_reads_are_an_error_that_may_pass():
    with pytest.raises(AuditError, match="changed while it was read") as error:
        compare([(ZERO, offset) for offset in (*range(10, 19), 18)], read=lambda _: [])
    assert error.value.retriable


MISSING = {ZERO: merge([(12, 15)])}
PARTLY = TableRows(12, MISSING)


@pytest.mark.parametrize(
    ("rows", "missing", "foreign", "verdict", "counts"),
    [
        (ALL, None, (), "complete", {}),
        (PARTLY, MissingOffsets(), (), "complete", {"without_record": 3}),
        (
            PARTLY,
            MissingOffsets({ZERO: merge([(13, 14)])}),
            (),
            "incomplete",
            {"lost": 1, "without_record": 2},
        ),
        (PARTLY, MissingOffsets(undecided={"retention": MISSING}), (), "undecided", {"undecided": 3}),
        (
            PARTLY,
            MissingOffsets({ZERO: merge([(13, 14)])}, {"retention": {ZERO: merge([(12, 13)])}}),
            (),
            "incomplete",
            {"lost": 1, "undecided": 1, "without_record": 1},
        ),
        (TableRows(16, doubled={ZERO: merge([(12, 13)])}), None, (), "incomplete", {"doubled": 1}),
        (TableRows(10, unlisted={ZERO: merge([(15, 20)])}), None, (), "undecided", {"undecided": 5}),
        (ALL, None, (ForeignRows("orders", 0, 3, 4, 2),), "incomplete", {"foreign": 2}),
        (ALL, None, (ForeignRows(None, None, None, None, 1),), "incomplete", {"foreign": 1}),
    ],
)
def test_the_verdict_follows_from_the_counts(rows, missing, foreign, verdict, counts):
    found = certificate(rows, missing, foreign)
    assert found.verdict == verdict
    assert {name: found.counts[name] for name in COUNTS[2:] if found.counts[name]} == counts
    assert found.counts["offsets"] == 15
    if verdict == "complete":
        found.require_complete()
    else:
        with pytest.raises(AuditError):
            found.require_complete()


def test_undecided_can_be_good_enough_and_a_loss_cannot():
    certificate(PARTLY, MissingOffsets(undecided={"retention": MISSING})).require_complete(undecided=True)
    with pytest.raises(AuditError):
        certificate(PARTLY, MissingOffsets(MISSING)).require_complete(undecided=True)


@pytest.mark.parametrize(
    ("reasons", "passes"),
    [
        (["open_transaction"], True),
        (["open_transaction", "not_read"], True),
        (["retention"], False),
        (["open_transaction", "retention"], False),
    ],
)
def test_a_retry_may_decide_what_is_open_only(reasons, passes):
    undecided = {reason: {ZERO: merge([(12 + at, 13 + at)])} for at, reason in enumerate(reasons)}
    with pytest.raises(AuditError) as error:
        certificate(PARTLY, MissingOffsets({}, undecided)).require_complete()
    assert error.value.retriable == passes
    with pytest.raises(AuditError) as error:
        certificate(PARTLY, MissingOffsets(MISSING, undecided)).require_complete()
    assert not error.value.retriable


def test_the_error_names_the_first_ranges_and_what_to_do():
    found = certificate(
        TableRows(13, MISSING, {ZERO: merge([(17, 18)])}),
        MissingOffsets(MISSING),
        (ForeignRows("orders", 0, 3, 4, 2), ForeignRows("orders", None, None, None, 1)),
    )
    with pytest.raises(AuditError) as error:
        found.require_complete("clear the task 'load'")
    assert str(error.value) == (
        "orders is incomplete: 3 records lost (orders-0: offsets 12 to 14); 1 record doubled (orders-0: "
        "offset 17); 3 rows from outside the window (orders-0: offsets 3 to 4, 1 row with NULL for topic, "
        "partition or offset); clear the task 'load'. If the job does not replace the rows that it wrote "
        "before, first delete them"
    )


@pytest.mark.parametrize(
    ("doubled", "foreign"),
    [({ZERO: merge([(17, 18)])}, ()), ({}, (ForeignRows("orders", 0, 3, 4, 2),))],
    ids=["doubled", "foreign"],
)
def test_rows_that_are_too_many_are_not_mended_by_reading_again(doubled, foreign):
    found = certificate(TableRows(16, MISSING, doubled), MissingOffsets({}, {"retention": MISSING}), foreign)
    with pytest.raises(AuditError, match="; delete the additional rows, or limit the audit") as error:
        found.require_complete("clear the task 'load'")
    assert "clear the task" not in str(error.value)


@pytest.mark.parametrize(
    ("audited", "names"), [(AUDITED, "the table is"), ({"where": {"run_id": "r"}}, "table and where are")]
)
def test_where_no_row_is_in_the_window_the_names_may_be_wrong(audited, names):
    everything = {tp: (offsets,) for tp, offsets in WINDOW.ranges.items()}
    found = Certificate.issue(WINDOW, TableRows(0, everything), MissingOffsets(everything), audited, AT)
    assert found.findings()[0].startswith("15 records lost")
    assert found.findings()[0].endswith(f"no row is in the window: check whether {names} correct")


def test_the_certificate_names_the_window_and_holds_no_other_of_its_source():
    form = certificate().as_json()
    assert form["window"] == {
        "start": {"orders": {"0": 10, "1": 0}},
        "end": {"orders": {"0": 20, "1": 5}},
        "logs": {"cluster": "c", "topics": {"orders": "t"}},
        "source": {"group_id": "shop", "run_id": "r", "iteration": 2},
    }
    assert form["at"] == "2026-03-01T12:30:15Z"
    assert len(form["digest"]) == 64


def test_a_certificate_of_many_ranges_stays_small():
    lost = {ZERO: merge((2 * at, 2 * at + 1) for at in range(5_000))}
    window = OffsetWindow({ZERO: OffsetRange(0, 10_000)})
    rows = TableRows(5_000, lost)
    found = Certificate.issue(window, rows, MissingOffsets(lost), AUDITED, AT)
    assert found.counts["lost"] == count_offsets(lost) == 5_000
    assert len(found.lost[ZERO]) == MOST_LISTED
    assert len(found.as_text()) < 20_000


COUNTED = st.integers(0, 10**6)
RANGES = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["orders", "payments"]), st.integers(0, 5)),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1).map(merge).filter(bool),
)
CERTIFICATES = st.builds(
    Certificate,
    counts=st.fixed_dictionaries(dict.fromkeys(COUNTS, COUNTED)),
    lost=RANGES,
    doubled=RANGES,
    foreign=st.lists(
        st.builds(
            ForeignRows,
            st.none() | st.text(),
            st.none() | st.integers(),
            st.none() | st.integers(),
            st.none() | st.integers(),
            st.integers(1, 9),
        ),
        max_size=3,
    ).map(tuple),
    undecided=st.dictionaries(st.sampled_from(["retention", "not_read", "other_log"]), RANGES),
    problems=st.lists(st.text(), max_size=2).map(tuple),
    window=st.just({"start": {"orders": {"0": 1}}}),
    audited=st.just(AUDITED),
    at=st.datetimes(timezones=st.just(timezone.utc)).map(lambda at: at.replace(microsecond=0)),
)


@given(CERTIFICATES)
def test_a_certificate_comes_back_from_json_as_it_was(given_one):
    form = given_one.as_json()
    assert Certificate.parse(form) == given_one
    assert Certificate.parse(json.dumps(form)) == given_one
    assert json.loads(given_one.as_text()) == form
    assert Certificate.parse(form).digest == given_one.digest


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "complete"},
        {"counts": {**dict.fromkeys(COUNTS, 0), "offsets": 15}},
        {"digest": "0" * 64},
        {"lost": {}},
        {"more": 1},
    ],
)
def test_a_certificate_that_was_changed_is_refused(change):
    form = certificate(PARTLY, MissingOffsets(MISSING)).as_json()
    with pytest.raises(OffsetsFormatError, match="changed after it was issued"):
        Certificate.parse({**form, **change})


def test_the_documentation_shows_what_an_audit_says():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "prove-completeness.md"
    good, bad = re.findall(r"\n\n```\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    window = OffsetWindow({TopicPartition("flights", 1): OffsetRange(0, 837)})
    whole = TableRows(837)
    lacking = TableRows(836, {TopicPartition("flights", 1): merge([(400, 401)])})
    audited = {"table": "flights_bronze"}
    found = Certificate.issue(window, whole, MissingOffsets(), audited, AT)
    assert found.summary() == good.strip()
    lost = MissingOffsets({TopicPartition("flights", 1): merge([(400, 401)])})
    with pytest.raises(AuditError) as error:
        Certificate.issue(window, lacking, lost, audited, AT).require_complete("REMEDY")
    before, after = str(error.value).split("REMEDY")
    shown = " ".join(bad.split())
    assert shown.startswith(before)
    assert shown.endswith(after)


def test_a_key_of_a_later_version_is_ignored():
    form = certificate().as_json() | {"more": 1}
    del form["digest"]
    assert Certificate.parse({**form, "digest": digest(form, length=64)}) == certificate()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "[]",
        {},
        {"version": 2},
        {"version": 1},
        {"version": 1, "counts": {}},
        {**certificate().as_json(), "at": "yesterday"},
        {**certificate().as_json(), "at": 1},
        {**certificate().as_json(), "lost": {"orders": {"0": 5}}},
        {**certificate().as_json(), "foreign": [{"topic": "orders"}]},
        {**certificate().as_json(), "undecided": {"maybe": {}}},
        {**certificate().as_json(), "window": 7},
    ],
)
def test_what_is_no_certificate_is_refused(value):
    with pytest.raises(OffsetsFormatError, match="^certificate"):
        Certificate.parse(value)
