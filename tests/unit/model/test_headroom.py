import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.headroom import (
    NO_TIME,
    Headroom,
    Retention,
    headrooms_json,
    measure_headrooms,
    partitions_without_verdict,
    positions_needing_time,
    reason_lines,
    topic_gauges,
)
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
LOG = LogRange(10, 20)
HOUR = 3_600_000
NOW = 1000 * HOUR
WEEK = Retention(168 * HOUR)
DELETE = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}


def headroom(position=15, retention: Retention | str = WEEK, time_ms: int | None = NOW, log=LOG):
    return Headroom.measure(position, log, retention, time_ms, NOW)


# -- the topic's settings --


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, WEEK),
        ({"retention.bytes": "1000"}, Retention(168 * HOUR, 1000)),
        ({"retention.ms": "-1"}, Retention()),
        ({"retention.ms": "-1", "retention.bytes": "0"}, Retention(None, 0)),
        ({"retention.ms": "0"}, Retention(0)),
        ({"cleanup.policy": "compact"}, Retention()),
        ({"cleanup.policy": ""}, Retention()),
        ({"cleanup.policy": "compact,delete"}, Retention(168 * HOUR, compacted=True)),
        ({"cleanup.policy": "delete, compact"}, Retention(168 * HOUR, compacted=True)),
    ],
)
def test_how_long_a_topic_keeps_its_records(settings, kept):
    assert Retention.from_settings(DELETE | settings) == kept


@pytest.mark.parametrize("missing", DELETE)
@pytest.mark.parametrize("value", [None, "", "soon", "1.5", "9" * 30])
def test_settings_that_the_broker_does_not_give_are_not_guessed(missing, value):
    if missing != "cleanup.policy" or value is None:
        assert Retention.from_settings(DELETE | {missing: value}) == f"the broker did not return {missing}"


# -- the states --


def test_the_record_at_the_position_lives_for_the_rest_of_the_retention():
    assert headroom(time_ms=NOW - 160 * HOUR) == Headroom("time", 8 * 3600)


def test_what_was_deleted_unread_is_lost_whatever_the_topic_keeps():
    for retention in (WEEK, Retention(), "not allowed"):
        assert headroom(9, retention).state == "lost"
    assert headroom(9, log=LogRange(20, 20)).seconds == 0


def test_nothing_unread_has_no_headroom_whatever_is_known():
    for retention in (WEEK, Retention(), Retention(None, 5), "not allowed"):
        assert headroom(20, retention).state == "none"
        assert headroom(15, retention, time_ms=None).state == "none"


@pytest.mark.parametrize(
    ("retention", "time_ms", "reason"),
    [
        ("grant it DescribeConfigs on the topics", NOW, "grant it DescribeConfigs"),
        (Retention(HOUR, 1000), NOW, "retention.bytes=1000: the size of the log may delete records earlier"),
        (Retention(None, 1000), NOW, "retention.bytes=1000"),
        (WEEK, NO_TIME, "the time of the oldest unread record could not be read"),
    ],
)
def test_what_cannot_be_known_is_unknown_and_says_why(retention, time_ms, reason):
    found = headroom(retention=retention, time_ms=time_ms)
    assert (found.state, found.seconds) == ("unknown", None)
    assert reason in found.reason


def test_an_expired_record_may_go_at_any_moment():
    found = headroom(time_ms=0, retention=Retention(HOUR))
    assert (found.seconds, str(found)) == (0, "0 s")
    assert found.reason.startswith("expired")


def test_a_record_of_the_future_is_kept_longer_and_that_is_said():
    found = headroom(time_ms=NOW + HOUR, retention=Retention(HOUR))
    assert found.seconds == 7200
    assert "a timestamp in the future" in found.reason


# -- thresholds --


@pytest.mark.parametrize(
    ("found", "below"),
    [
        (Headroom("lost"), True),
        (Headroom("none"), False),
        (Headroom("none", 5), False),
        (Headroom("time", 59.9), True),
        (Headroom("time", 60), False),
        (Headroom("unknown"), None),
        (Headroom("unknown", 60), None),
        (Headroom("unknown", 59), True),
    ],
)
def test_below_a_threshold(found, below):
    assert found.is_below(60) is below


# -- many partitions --


def test_times_are_asked_for_where_they_decide_only():
    positions = {A: 15, B: 20, C: 15, TopicPartition("v", 0): 15, TopicPartition("t", 2): 9}
    kept: dict[str, Retention | str] = {"t": WEEK, "u": Retention(None, 5), "v": "not allowed"}
    assert positions_needing_time(positions, dict.fromkeys(positions, LOG), kept) == {A: 15}


def test_the_worst_of_many():
    positions = {A: 15, B: 15, C: 20}
    logs = dict.fromkeys(positions, LOG)
    found = measure_headrooms(positions, logs, {"t": WEEK, "u": WEEK}, {A: NOW - HOUR}, NOW)
    assert {tp: each.state for tp, each in found.items()} == {A: "time", B: "unknown", C: "none"}
    assert headrooms_json(found.values()) == {"headroom": 167 * 3600, "headroom_state": "unknown"}
    assert reason_lines(found) == [
        "headroom of t-1 is unknown: the time of the oldest unread record could not be read"
    ]
    # Where nothing is unread the metric has what a new record would have: a gauge would stay low otherwise.
    assert topic_gauges([(A, found[A]), (C, found[C])]) == {"t": 167 * 3600, "u": 168 * 3600}
    assert headrooms_json([]) == {"headroom": None, "headroom_state": None}


def test_a_record_time_in_microseconds_is_shown_with_its_reason():
    found = headroom(time_ms=1_772_344_800_000_000)
    assert str(found) == ">100 y"
    assert found.as_json()["headroom"] > 1e12
    assert reason_lines({A: found, B: headroom(time_ms=0), C: headroom()}) == [
        "headroom of t-0: the oldest unread record has a timestamp in the future, and is kept until that "
        "timestamp has expired",
        "headroom of t-1: expired: deleted as soon as the newest record of its segment has expired too",
    ]
    assert str(headroom(retention=Retention(100 * 365 * 24 * HOUR))) == "36500 d"


def test_a_time_that_could_not_be_read_is_decided_where_a_lookup_can():
    unread = headroom(time_ms=NO_TIME)
    assert unread.state == "unknown"
    enough, short = (unread.with_verdict(3600.0, WEEK, enough=each) for each in (True, False))
    assert (enough.is_below(3600), enough.is_below(3601), str(enough)) == (False, True, ">1 h")
    assert (short.is_below(3600), short.state, short.seconds) == (True, "unknown", None)
    assert reason_lines({A: enough, B: short}) == [
        "headroom of t-0: at least 1 h: the time of the oldest unread record could not be read",
        "headroom of t-1 is unknown: less than 1 h: the time of the oldest unread record could not be read",
    ]
    # Bytes can only shorten it.
    by_bytes = Retention(168 * HOUR, 1000)
    unread = headroom(retention=by_bytes, time_ms=NO_TIME)
    assert unread.with_verdict(3600.0, by_bytes, enough=True) == unread
    assert unread.with_verdict(3600.0, by_bytes, enough=False).is_below(3600)
    # It is no measurement.
    assert topic_gauges([(A, enough), (B, Headroom("time", 9e9))]) == {}


def test_a_lookup_by_time_decides_only_where_nothing_else_is_missing():
    kept = {"t": WEEK, "u": Retention(WEEK.ms, compacted=True)}
    unread = headroom(time_ms=NO_TIME)
    assert partitions_without_verdict({A: unread, B: headroom(), C: unread}, kept) == {WEEK: [A]}
    for retention in ("not allowed", Retention(), Retention(None, 1000)):
        found = {A: headroom(retention=retention, time_ms=NO_TIME)}
        assert partitions_without_verdict(found, {"t": retention}) == {}


def test_what_is_not_known_is_no_gauge():
    unknown = A, Headroom("unknown", 5)
    assert topic_gauges([unknown, (C, Headroom("none"))]) == {}
    # The gauge would jump up while the worst is unknown.
    assert topic_gauges([unknown, (B, Headroom("time", 90)), (C, Headroom("time", 7))]) == {"u": 7}
    for nothing in (Headroom("lost"), Headroom("time", 0)):
        assert topic_gauges([unknown, (B, nothing)]) == {"t": 0}
    # Two sources of a checkpoint may read one partition.
    assert topic_gauges([unknown, (A, Headroom("time", 90))]) == {}


# -- the rule --

MS = st.integers(0, 10**6)


@given(
    times=st.lists(st.integers(-(10**5), 10**6), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    position=st.integers(0, 30),
    kept=st.integers(0, 10**6),
    now=MS,
    later=st.lists(MS, max_size=5),
    least=st.integers(1, 10**6),
)
def test_no_record_is_deleted_before_its_headroom_is_over(times, cuts, position, kept, now, later, least):
    """A log as the broker keeps it: whole segments go, the oldest first, by their newest record."""
    bounds = [0, *sorted(cut for cut in cuts if cut < len(times)), len(times)]
    segments = [range(*pair) for pair in itertools.pairwise(bounds)]

    def start_at(moment):
        for segment in segments:
            if moment - max(times[offset] for offset in segment) <= kept:
                return segment.start
        return len(times)

    log = LogRange(start_at(now), len(times))
    position = min(position, len(times))
    time_ms = times[position] if position < len(times) else None
    found = Headroom.measure(position, log, Retention(kept), time_ms, now)
    assert (found.state == "lost") == (position < log.start)
    for moment in later:
        if found.state == "time" and moment <= now + (found.by_time or 0) * 1000:
            assert start_at(max(now, moment)) <= position
    # Nor before what a lookup by time says, where the record's own time is not known.
    unread = Headroom.measure(position, log, Retention(kept), NO_TIME, now)
    if partitions_without_verdict({A: unread}, {"t": Retention(kept)}):
        first = next((at for at in range(log.start, log.end) if times[at] >= now + least - kept), log.end)
        decided = unread.with_verdict(least / 1000, Retention(kept), enough=first <= position)
        if decided.is_below(least / 1000) is False:
            assert start_at(now + least) <= position
        elif found.state != "unknown":  # the record has a time
            assert found.is_below(least / 1000)
    # And without clock or rights nobody claims more.
    if found.state == "time":
        assert Headroom.measure(position, log, "?", time_ms, now).is_below(1) is None


@given(
    st.sampled_from([WEEK, Retention(), Retention(HOUR, 10), "?"]),
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(-1, 2**63 - 1)),
    st.floats(0.001, 10**9),
)
def test_green_needs_a_reason(retention, position, time_ms, least):
    found = headroom(position, retention, time_ms)
    if found.is_below(least) is False:
        enough = found.state == "time" and (found.by_time or 0) >= least
        assert enough or found.state == "none"
        assert found.state != "none" or position >= LOG.end or time_ms is None or retention == Retention()
    assert found.as_json().keys() == {"headroom", "headroom_state", "headroom_reason"}
