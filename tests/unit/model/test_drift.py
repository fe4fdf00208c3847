import json
from datetime import datetime, timedelta, timezone
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.drift import (
    COMMIT_DUE,
    DriftReport,
    NewestBatch,
    parse_grace,
    remedies,
    reports_json,
)
from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.partition_state import PartitionState, Verdict, offsets_to_read
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.readings.drift import CheckedPipeline

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
ORDERS = TopicPartition("orders", 0)
LOG = LogRange(10, 100)

positions = st.none() | st.integers(0, 120)
logs = st.none() | st.tuples(st.integers(0, 110), st.integers(0, 110)).map(
    lambda ends: LogRange(min(ends), max(ends))
)


def partition(checkpoint, committed, log=LOG, number=0):
    return PartitionState(TopicPartition("orders", number), committed, log, checkpoint=checkpoint)


def report(*partitions, ended_at=NOW - MINUTE, batch_id=7, **values):
    batch = NewestBatch("s3a://lake/cp", "query", batch_id, values.pop("pending", None), ended_at)
    return DriftReport("orders-etl", batch, partitions, NOW, **values)


@pytest.mark.parametrize(
    ("checkpoint", "committed", "log", "verdict"),
    [
        (50, 50, LOG, "in step"),
        (100, 100, LOG, "in step"),
        (10, 10, LOG, "in step"),
        (50, 40, LOG, "group behind"),
        (50, 9, LOG, "group behind"),
        (50, 60, LOG, "group ahead"),
        (9, 9, LOG, "records lost"),
        (9, 50, LOG, "records lost"),
        (9, None, LOG, "records lost"),
        (None, 9, LOG, "records lost"),
        (50, None, LOG, "no commit"),
        (None, None, LOG, "partition added"),
        (None, 10, LOG, "partition added"),
        (None, 11, LOG, "group ahead"),
        (50, 50, None, "topic gone"),
        (None, None, None, "topic gone"),
        (101, 50, LOG, "topic recreated"),
        (50, 101, LOG, "topic recreated"),
        (9, 101, LOG, "topic recreated"),
        (101, None, LOG, "topic recreated"),
    ],
)
def test_the_verdict_of_a_partition(checkpoint, committed, log, verdict):
    assert partition(checkpoint, committed, log).verdict == verdict


PLENTY, LITTLE = Headroom("time", 60), Headroom("time", 59)
UNKNOWN = Headroom("unknown", reason="retention.bytes=9")


@pytest.mark.parametrize(
    ("checkpoint", "committed", "log", "headroom", "verdict"),
    [
        (50, 50, LOG, PLENTY, "in step"),
        (50, 50, LOG, Headroom("none"), "in step"),
        (50, 50, LOG, LITTLE, "expiring"),
        (50, 40, LOG, LITTLE, "expiring"),
        (None, None, LOG, LITTLE, "expiring"),
        (50, 50, LOG, Headroom("unknown", 59, "retention.bytes=9"), "expiring"),
        (50, 50, LOG, UNKNOWN, "headroom unknown"),
        (50, 40, LOG, UNKNOWN, "group behind"),
        (None, None, LOG, UNKNOWN, "partition added"),
        (9, 9, LOG, Headroom("lost"), "records lost"),
        (50, 50, None, None, "topic gone"),
    ],
)
def test_the_verdict_where_headroom_was_asked_for(checkpoint, committed, log, headroom, verdict):
    entry = partition(checkpoint, committed, log)._replace(headroom=headroom, min_headroom=60)
    assert entry.verdict == verdict


@pytest.mark.parametrize(
    ("entry", "verdict", "drifted"),
    [
        (partition(50, 50)._replace(recreated=True), "topic recreated", True),
        (partition(50, 50, None)._replace(recreated=True), "topic gone", True),
        (partition(None, 50)._replace(is_read=False), "not read", True),
        (partition(None, 9)._replace(is_read=False), "not read", True),
        (partition(None, 100)._replace(is_read=False), "not read", False),
        (partition(None, 101)._replace(is_read=False), "topic recreated", True),
        (partition(50, 50)._replace(other_query=True), "other query", True),
        (partition(50, 40)._replace(other_query=True), "other query", True),
        (partition(9, 50)._replace(other_query=True), "records lost", True),
    ],
)
def test_positions_that_are_not_to_be_compared(entry, verdict, drifted):
    assert (entry.verdict, entry.drifted) == (verdict, drifted)
    assert report(entry, ended_at=NOW, grace=MINUTE).drifted == drifted


def test_a_report_says_how_much_is_left_and_what_is_not_known():
    soon = partition(50, 50)._replace(headroom=LITTLE, min_headroom=60)
    unknown = partition(50, 50, number=1)._replace(headroom=UNKNOWN, min_headroom=60)
    found = report(soon, unknown, partition(1, 1, None, number=2)._replace(min_headroom=60))
    assert found.drifted
    assert "expiring on 1 of 3 partitions (orders-0, 59 s left)" in found.summary()
    assert "headroom unknown on 1 of 3 partitions (orders-1, retention.bytes=9)" in found.summary()
    table = found.table()
    assert "HEADROOM" in table
    assert "expiring: retention will soon delete unread records" in table
    value = found.as_json()
    assert (value["headroom"], value["headroom_state"]) == (59, "unknown")
    assert [each["headroom_state"] for each in value["partitions"]] == ["time", "unknown", None]
    assert "HEADROOM" not in report(partition(50, 50)).table()


@given(positions, positions, logs)
def test_every_combination_gets_one_verdict_and_in_step_is_equal_and_inside_the_log(
    checkpoint, committed, log
):
    found = partition(checkpoint, committed, log)
    assert found.verdict in get_args(Verdict)
    equal_inside = (
        log is not None and checkpoint is not None and checkpoint == committed and checkpoint in log
    )
    assert (found.verdict == "in step") == equal_inside
    assert (report(found).as_json()["lost"] > 0) == (found.verdict == "records lost")


def test_every_verdict_has_a_remedy():
    assert set(remedies()) == set(get_args(Verdict))


def test_deleted_records_are_counted_from_the_position_that_is_read_from():
    assert report(partition(4, 4), partition(7, 7, number=1), partition(50, 2, number=2)).lost == 9


@pytest.mark.parametrize("verdict", COMMIT_DUE)
def test_what_the_next_commit_puts_right_does_not_count_within_grace(verdict):
    behind = partition(50, 40 if verdict == "group behind" else None)
    just = report(behind, grace=2 * MINUTE)
    assert (just.drifted, just.within_grace) == (False, True)
    assert "within grace" in just.table()
    assert report(behind, grace=MINUTE).drifted
    assert report(behind).drifted
    assert report(behind, grace=MINUTE, ended_at=None).drifted


@pytest.mark.parametrize("committed", [40, None])
def test_an_unknown_headroom_counts_also_within_grace(committed):
    def found(headroom):
        passing = partition(50, committed)._replace(headroom=headroom, min_headroom=60)
        equal = partition(50, 50, number=1)._replace(headroom=UNKNOWN, min_headroom=60)
        return report(passing, grace=2 * MINUTE), report(equal, passing, grace=2 * MINUTE)

    one, two = found(UNKNOWN)
    assert (one.drifted, one.within_grace, list(one.drift)) == (True, True, ["headroom unknown"])
    assert "headroom unknown on 1 of 1 partitions (orders-0, retention.bytes=9)" in one.summary()
    assert "headroom unknown" in one.as_json()["remedies"]
    assert "headroom unknown on 2 of 2 partitions (orders-0, orders-1, " in two.summary()
    one, two = found(PLENTY)
    assert not one.drifted
    assert "headroom unknown on 1 of 2 partitions (orders-1" in two.summary()


def test_anything_else_counts_also_within_grace():
    both = report(partition(50, 40), partition(50, 60, number=1), grace=2 * MINUTE)
    assert both.drifted
    assert list(both.drift) == ["group ahead"]
    assert "group ahead on 1 of 2 partitions (orders-1)" in both.summary()


def test_clocks_that_differ_a_little_are_within_grace_and_much_are_not():
    behind = partition(50, 40)
    assert not report(behind, grace=2 * MINUTE, ended_at=NOW + MINUTE).drifted
    assert report(behind, grace=2 * MINUTE, ended_at=NOW + 60 * MINUTE).drifted
    assert report(behind, ended_at=NOW).drifted


def test_an_old_commit_is_warned_of_when_half_of_the_retention_has_passed():
    def warns(age, minutes):
        at = int((NOW - age).timestamp())
        return report(partition(50, 50), made_by=(CommitMetadata(at=at),), retention_minutes=minutes).warnings

    assert warns(timedelta(days=3), 7 * 24 * 60) == []
    (warning,) = warns(timedelta(days=4), 7 * 24 * 60)
    assert "4 days, 0:00:00 old" in warning
    assert "7 days, 0:00:00 after" in warning
    assert warns(timedelta(days=4), None) == []
    assert report(partition(50, 50), retention_minutes=1).warnings == []


def test_the_report_is_plain_json_with_stable_keys():
    shown = report(
        partition(4, 4),
        partition(50, 50, number=1),
        partition(5, None, None, number=2),
        pending=8,
        made_by=(CommitMetadata(at=int(NOW.timestamp()) - 90), CommitMetadata()),
        retention_minutes=10080,
    ).as_json()
    assert json.loads(json.dumps(shown)) == shown
    remedies = shown.pop("remedies")
    assert set(remedies) == {"records lost", "topic gone"}
    assert shown == {
        "version": 1,
        "group_id": "orders-etl",
        "checkpoint": "s3a://lake/cp",
        "query_id": "query",
        "batch_id": 7,
        "pending_batch_id": 8,
        "batch_ended_at": "2026-03-01T11:59:00+00:00",
        "checked_at": "2026-03-01T12:00:00+00:00",
        "drifted": True,
        "within_grace": False,
        "verdicts": {"records lost": 1, "in step": 1, "topic gone": 1},
        "lost": 6,
        "last_commit_age_seconds": 90,
        "offsets_retention_minutes": 10080,
        "unfinished_move": None,
        "unfinished_recovery": None,
        "warnings": [],
        "partitions": [
            {
                "topic": "orders",
                "partition": 0,
                "checkpoint": 4,
                "committed": 4,
                "log_start": 10,
                "log_end": 100,
                "verdict": "records lost",
                "lost": 6,
            },
            {
                "topic": "orders",
                "partition": 1,
                "checkpoint": 50,
                "committed": 50,
                "log_start": 10,
                "log_end": 100,
                "verdict": "in step",
                "lost": 0,
            },
            {
                "topic": "orders",
                "partition": 2,
                "checkpoint": 5,
                "committed": None,
                "log_start": None,
                "log_end": None,
                "verdict": "topic gone",
                "lost": 0,
            },
        ],
    }


def test_a_report_counts_its_partitions_once():
    found = report(partition(1, 2), partition(3, 3, number=1))
    # The table asks for them for each partition.
    assert (found.drift is found.drift, found.headroom is found.headroom) == (True, True)


def test_a_pipeline_has_drifted_when_one_of_its_groups_has():
    shown = reports_json([report(partition(50, 50)), report(partition(50, 40))])
    assert (shown["version"], shown["drifted"], len(shown["groups"])) == (1, True, 2)


def test_the_table_shows_each_partition_and_what_to_do():
    lines = report(partition(4, 4), partition(50, None, number=1)).table().splitlines()
    assert lines[0] == (
        "group 'orders-etl' and s3a://lake/cp (batch 7): records lost on 1 of 2 partitions (orders-0, 6 "
        "records); no commit on 1 of 2 partitions (orders-1)"
    )
    assert lines[2].split(maxsplit=6) == ["orders", "0", "4", "4", "10", "100", "records lost (6)"]
    assert lines[3].split(maxsplit=6) == ["orders", "1", "50", "-", "10", "100", "no commit"]
    assert lines[4:] == [
        f"records lost: {remedies()['records lost']}",
        f"no commit: {remedies()['no commit']}",
    ]


def test_a_checkpoint_without_a_finished_batch_says_so():
    text = report(batch_id=None, pending=0, ended_at=None).table()
    assert (
        text == "group 'orders-etl' and s3a://lake/cp (no batch has finished; batch 0 is pending): no drift"
    )


def test_grace_is_a_duration_of_at_most_a_week():
    assert (parse_grace("1m"), parse_grace(None)) == (MINUTE, timedelta(0))
    with pytest.raises(UsageError, match="of at most 7 days"):
        parse_grace("8d")


def test_a_move_that_was_not_finished_is_drift_also_where_all_partitions_are_in_step():
    open_move = report(partition(50, 50), unfinished_move="0001-seek")
    assert open_move.drifted
    assert "move 0001-seek of the checkpoint was begun and not finished" in open_move.summary()
    assert not report(partition(50, 50)).drifted


@pytest.mark.parametrize("committed", [40, 60, None])
def test_during_an_unfinished_move_no_remedy_says_to_commit(committed):
    found = report(partition(50, committed), unfinished_move="0001-seek")
    (remedy,) = found.as_json()["remedies"].values()
    assert remedy == "finish or undo move 0001-seek first, then check again"
    assert remedy in found.table()
    assert remedy in CheckedPipeline(KafkaPipeline("orders-etl"), (found,)).failures()[0]
    assert "commit" in report(partition(50, committed)).table().splitlines()[-1]


@pytest.mark.parametrize(
    "unknown",
    [partition(50, None, number=1), partition(50, 50, None, number=1), partition(50, 101, number=1)],
    ids=["no commit", "topic gone", "topic recreated"],
)
def test_a_topic_whose_lag_is_unknown_in_one_partition_has_none(unknown):
    assert report(partition(50, 50), unknown).lag.by_topic == {}


def test_a_partition_without_records_needs_no_commit_for_the_lag_to_be_known():
    assert report(partition(40, 40), partition(None, None, LogRange(7, 7), 1)).lag.by_topic == {"orders": 60}


def state(committed, checkpoint=None, log=LOG, **more):
    return PartitionState(ORDERS, committed, log, checkpoint=checkpoint, **more)


@pytest.mark.parametrize(
    ("found", "position", "lag", "lost"),
    [
        (state(40), 40, 60, 0),
        (state(40, 70), 70, 60, 0),
        (state(None, 70), 70, 30, 0),
        (state(None, start=100), 100, 0, 0),
        (state(4), 4, 90, 6),
        (state(4, 70), 70, 90, 0),
        (state(100, 4), 4, 0, 6),
        (state(120), 120, None, 0),
        (state(None), None, None, 0),
        (state(40, 70, None), 70, None, 0),
    ],
)
def test_the_lag_is_the_groups_and_the_next_position_to_read_is_the_checkpoints(found, position, lag, lost):
    assert (found.position, found.lag, found.lost) == (position, lag, lost)
    assert found.first_unread == (100 - lag if lag else None)


def test_records_without_a_position_are_not_counted():
    assert (state(None).uncounted, state(40).uncounted, state(None, log=None).uncounted) == (90, 0, 0)
    assert offsets_to_read([state(None)]) == {ORDERS: 10}
    assert offsets_to_read([state(4, 70)]) == {ORDERS: 70}
    assert offsets_to_read([state(4, log=None)]) == {}
    # Nothing of a log is read by positions of another one.
    assert offsets_to_read([state(120, 120)]) == offsets_to_read([state(40, recreated=True)]) == {ORDERS: 10}
    assert offsets_to_read([state(0)]) == {ORDERS: 0}


def test_a_headroom_that_nobody_required_or_measured_is_no_verdict():
    assert state(40, 40, min_headroom=60).verdict == "in step"
    for headroom in (Headroom("unknown"), Headroom("time", 0.0)):
        assert state(40, 40, headroom=headroom).verdict == "in step"
        assert state(40, 40, headroom=headroom, min_headroom=60).verdict != "in step"
