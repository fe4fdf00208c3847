import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, remaining_offsets

A, B, C, D = (TopicPartition("t", number) for number in range(4))


def test_lag_is_log_end_minus_position():
    lag = Lag.measure("g", {A: 7, B: 10}, {A: LogRange(0, 10), B: LogRange(0, 10)})
    assert (lag.total, lag.max_partition_lag) == (3, 3)
    assert lag.is_within(3, 3)
    assert not lag.is_within(2, None)
    assert not lag.is_within(None, 2)


def test_records_that_retention_deleted_are_lost_and_not_lag():
    lag = Lag.measure("g", {A: 3}, {A: LogRange(5, 10)})
    assert (lag.total, lag.lost) == (5, 2)
    assert "2 records lost to retention" in lag.table()


def test_without_a_policy_a_missing_commit_has_no_lag():
    lag = Lag.measure("g", {A: None}, {A: LogRange(0, 10)})
    assert lag.as_json()["partitions"] == [
        {
            "topic": "t",
            "partition": 0,
            "committed": None,
            "log_start": 0,
            "log_end": 10,
            "lag": None,
            "lost": 0,
        }
    ]


@pytest.mark.parametrize(("policy", "counts"), [("earliest", 6), ("latest", 0), ("skip", 0)])
def test_a_missing_commit_counts_as_the_policy_says(policy, counts):
    assert Lag.measure("g", {A: None}, {A: LogRange(4, 10)}, policy).total == counts


def test_a_missing_commit_fails_unless_the_log_is_empty():
    with pytest.raises(NoCommitError, match="no committed offset for t-0"):
        Lag.measure("g", {A: None, B: None}, {A: LogRange(4, 10), B: LogRange(3, 3)}, "fail")
    assert Lag.measure("g", {B: None}, {B: LogRange(3, 3)}, "fail").total == 0


def test_what_remains_to_a_target():
    logs = {A: LogRange(2, 20), B: LogRange(2, 20)}
    assert remaining_offsets({A: 3, B: 10}, {A: 5, B: 10}, logs) == {A: 2}
    assert remaining_offsets({A: 0}, {A: 5}, logs) == {A: 3}
    assert remaining_offsets({}, {A: 5}, logs) == {A: 5}
    assert remaining_offsets({A: None}, {A: 2}, logs) == {}
    assert remaining_offsets({A: 3}, {A: 5}, logs, tolerance=2) == {}
    assert remaining_offsets({A: None}, {A: 3}, logs, tolerance=3) == {A: 3}


def test_a_tolerance_is_for_each_partition():
    lag = Lag.measure("g", {A: 9, B: 8}, {A: LogRange(0, 10), B: LogRange(0, 10)}, tolerance=1)
    assert lag.total == 3
    assert not lag.is_within(0)
    assert lag.is_within(2)
    assert Lag.measure("g", {A: 9, B: 9}, {A: LogRange(0, 10), B: LogRange(0, 10)}, tolerance=1).is_within(
        0, 0
    )


def test_each_topic_has_its_own_sum():
    other = TopicPartition("u", 0)
    logs = {A: LogRange(0, 10), B: LogRange(0, 10), other: LogRange(0, 5)}
    assert Lag.measure("g", {A: 7, B: 9, other: 5}, logs).as_json()["topics"] == {"t": 4, "u": 0}


def test_the_oldest_record_that_waits_is_the_time_lag():
    lag = Lag.measure("g", {A: 7, B: 7}, {A: LogRange(0, 10), B: LogRange(0, 10)})
    timed = lag.with_time_lags({A: 60.0, B: 90.0})
    assert not timed.is_within(None)
    value = timed.as_json()
    assert value["time_lag"] == 90.0
    assert [partition["time_lag"] for partition in value["partitions"]] == [60.0, 90.0]
    assert [line.split(maxsplit=5)[-1] for line in timed.table().splitlines()[1:]] == [
        "TIME-LAG",
        "1 min",
        "1 min 30 s",
    ]
    assert "time_lag" not in lag.as_json()


def test_headroom_is_asked_for_from_the_position_on_whatever_the_tolerance():
    logs = dict.fromkeys((A, B, C, D), LogRange(4, 10))
    lag = Lag.measure("g", {A: 7, B: 9, C: 3, D: None}, logs, "skip", tolerance=1000)
    assert lag.counted_positions == {A: 7, B: 9, C: 3}
    assert Lag.measure("g", {D: None}, logs, "earliest").counted_positions == {D: 4}
    assert Lag.measure("g", {D: None}, logs, "latest").counted_positions == {D: 10}
    # The last stable offset may be before what was read.
    assert Lag.measure("g", {A: 12}, logs).counted_positions == {A: 12}


def test_the_worst_headroom_decides():
    lag = Lag.measure("g", {A: 7, B: 10}, dict.fromkeys((A, B), LogRange(0, 10)), "fail")
    plenty, little = Headroom("time", 90), Headroom("time", 59)
    for found, within, shown in (
        (plenty, True, "1 min 30 s"),
        (little, False, "59 s"),
        (Headroom("unknown", reason="no right"), False, "headroom of t-0 is unknown: no right"),
        (Headroom("lost"), False, "lost"),
    ):
        measured = lag.with_headroom({A: found, B: Headroom("none")}, 60)
        assert measured.is_within(None) is within
        assert shown in measured.table()
        value = measured.as_json()
        assert (value["headroom"], value["headroom_state"]) == (found.seconds, found.state)
        assert [each["headroom"] for each in value["partitions"]] == [found.seconds, None]
    assert "headroom" not in lag.as_json()
    assert "HEADROOM" not in lag.table()


def test_a_table_without_durations_changes_with_their_verdicts_only():
    lag = Lag.measure("g", {A: 7}, {A: LogRange(0, 10)})

    def text(time_lag, headroom):
        late = {A: time_lag} if time_lag else {}
        measured = lag.with_time_lags(late).with_headroom({A: Headroom("time", headroom)}, 60)
        return measured.table(durations=False)

    assert text(80.0, 70) == text(90.0, 60)
    assert len({text(80.0, 70), text(0.0, 70), text(80.0, 50), text(0.0, 50)}) == 4


def test_a_long_table_shows_what_is_short_of_headroom():
    partitions = [TopicPartition("t", number) for number in range(5)]
    lag = Lag.measure("g", dict.fromkeys(partitions, 5), dict.fromkeys(partitions, LogRange(0, 10)))
    headroom = {tp: Headroom("time", 10 if tp.partition == 3 else 99) for tp in partitions}
    lines = lag.with_headroom(headroom, 60).table(limit=1).splitlines()
    assert lines[2].split() == ["t", "3", "5", "10", "5", "10", "s"]


def test_a_long_table_shows_what_is_furthest_behind():
    partitions = [TopicPartition("t", number) for number in range(50)]
    lag = Lag.measure(
        "g", {tp: tp.partition for tp in partitions}, dict.fromkeys(partitions, LogRange(0, 100))
    )
    lines = lag.table(limit=3).splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["0", "1", "2"]
    assert lines[-1] == f"... and 47 more partitions with a total lag of {lag.total - 297:,}"
    assert len(lag.table().splitlines()) == 52


POSITIONS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(0, 120)),
    max_size=8,
)


@given(POSITIONS, st.sampled_from(["earliest", "latest", "skip"]), st.integers(0, 10))
def test_lag_adds_up_whatever_the_positions_are(cells, policy, tolerance):
    logs = {tp: LogRange(start, start + length) for tp, (start, length, _) in cells.items()}
    positions = {tp: position for tp, (_, _, position) in cells.items()}
    lag = Lag.measure("g", positions, logs, policy, tolerance)
    value = lag.as_json()
    assert value["total_lag"] == sum(value["topics"].values()) == sum(p.lag or 0 for p in lag.partitions)
    assert all(0 <= (p.lag or 0) <= cells[p.topic_partition][1] for p in lag.partitions)
    # What waits, what is lost and what was read make up the log as far as it was known.
    for p in lag.partitions:
        if p.committed is not None:
            assert p.committed + p.lost + (p.lag or 0) == max(p.committed, logs[p.topic_partition].end)
    assert lag.is_within(lag.total, lag.max_partition_lag)
    assert lag.is_within(0) is all((p.lag or 0) <= tolerance for p in lag.partitions)
    # Raising a threshold never ends a gate that a lower one has opened.
    assert not lag.is_within(5) or lag.is_within(6)
    assert set(lag.first_unread) == {p.topic_partition for p in lag.partitions if (p.lag or 0) > tolerance}
    assert all(logs[tp].start <= position < logs[tp].end for tp, position in lag.first_unread.items())


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 5))
def test_what_remains_is_nothing_exactly_when_the_target_is_near_enough(position, end, tolerance):
    found = remaining_offsets({A: position}, {A: end}, {A: LogRange(0, 20)}, tolerance)
    assert bool(found) is (end - position > tolerance)


def test_a_total_names_what_it_leaves_out():
    logs = {A: LogRange(0, 10), B: LogRange(3, 10), C: LogRange(5, 5)}
    first = Lag.measure("orders-etl", {A: 8, B: None, C: None}, logs).table().splitlines()[0]
    assert first == "orders-etl: total lag 2, without 7 records in partitions without a commit"
    assert Lag.measure("orders-etl", {A: 8, C: None}, logs).table().startswith("orders-etl: total lag 2\n")
    none = Lag.measure("orders-etl", {B: None}, logs).table().splitlines()[0]
    assert none == "orders-etl: lag unknown, without 7 records in partitions without a commit"
