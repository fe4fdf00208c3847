"""Where the intervals of an asset begin and continue, over changed parameters, resets and other logs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.interval import IntervalSchedule
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.interval_feed import CompletingPosition, Emitted, IntervalFeed
from airflow_kafka_offsets.readings.record_progress import RecordProgress

DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
LOGS = LogIds("cluster", {"orders": "id"})


def hour(number: float) -> datetime:
    return DAY + timedelta(hours=number)


def ms(hours: float) -> int:
    return int(hour(hours).timestamp() * 1000)


class Read(RecordProgress):
    """Records in order were read up to an hour; ``None`` without a position."""

    def __init__(self, hours: float | None, now: int = ms(1_000)) -> None:
        self.hours, self.now = hours, now

    @property
    def has_position(self) -> bool:
        return self.hours is not None

    @property
    def time(self) -> int | None:
        return None if self.hours is None else ms(self.hours)

    def reached(self, moments: Sequence[int]) -> int:
        return sum(not self.missing(each) for each in moments)

    def missing(self, moment: int) -> dict[TopicPartition, str]:
        late = self.time is None or self.time < moment
        return {TopicPartition("orders", number): "lags" for number in range(5)} if late else {}

    def rewound_to(self, moment: int) -> int | None:
        return self.time if self.time is not None and self.time < moment else None


class Feed:
    """An asset's state, over runs that succeed."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self.kept: Emitted | None = None
        self._log = caplog

    @property
    def said(self) -> str:
        """The log of the last run."""
        return "\n".join(self._log.messages)

    def run(self, read: float | None, start_from: float | None = None, **given: Any) -> list[str]:
        """Return the intervals that a run emits, such as 01T05."""
        position = CompletingPosition(
            {"group_id": "etl", **given.get("owner", {})},
            given.get("move"),
            Read(read),
            Read(given.get("moved")),
            given.get("logs", UNKNOWN_LOGS),
        )
        start = None if start_from is None else hour(start_from)
        lateness = timedelta(hours=given.get("lateness", 0))
        schedule = IntervalSchedule.parse(given.get("every", "hour"))
        feed = IntervalFeed("hours", schedule, start, lateness, given.get("limit", 200))
        self._log.clear()
        emitted = feed.continued(self.kept, position)
        found: list[Any] = []
        if emitted is not None:
            assert Emitted.parse(emitted.as_json()) == emitted
            completed = feed.completed(emitted.end, position.times)
            self.kept = replace(emitted, end=completed.end)
            found = [*completed.intervals]
        return [each.key[8:13] for each in found]


@pytest.fixture
def feed(caplog: pytest.LogCaptureFixture) -> Feed:
    return Feed(caplog)


def test_by_default_the_interval_in_which_the_position_is_comes_first(feed):
    assert feed.run(1.8) == []
    assert feed.said.startswith("hours: the first interval is 2026-03-01T01:00:00\n")
    assert feed.run(3.5) == ["01T01", "01T02"]


def test_a_group_without_a_commit_begins_when_it_commits(feed):
    assert feed.run(None) == []
    assert feed.kept is None
    feed.run(2.5)
    assert feed.run(3.5) == ["01T02"]


def test_an_old_first_record_needs_a_place_to_begin(feed):
    with pytest.raises(PlanRefusedError, match="1971-.*set start_from"):
        feed.run(-24 * 20_000 + 0.5)


@pytest.mark.parametrize("forgotten", [None, 2.2])
def test_an_earlier_start_from_counts_before_the_first_event(feed, forgotten):
    assert feed.run(2.5, forgotten) == []
    assert feed.run(2.5, 0) == ["01T00", "01T01"]
    assert "the first interval is now 2026-03-01T00:00:00" in feed.said


def test_a_start_from_that_each_run_sets_later_skips_no_interval(feed):
    found = [feed.run(read + 0.5, read + 0.7) for read in (0, 1, 2)]
    assert found == [[], ["01T00"], ["01T01"]]
    assert (
        "start_from was 2026-03-01T00:42:00+00:00 and is now 2026-03-01T02:42:00+00:00. This has no effect: "
        "the intervals continue at 2026-03-01T01:00:00+00:00. To begin again, delete the state "
        "kafka_offsets.intervals of the asset, or use another asset"
    ) in feed.said


def test_a_position_before_start_from_is_no_reset(feed):
    assert [feed.run(read, 3) for read in (1.5, 2.5, 5.5)] == [[], [], ["01T03", "01T04"]]
    assert [feed.run(read, 3) for read in (1.5, 5.5)] == [[], ["01T01", "01T02", "01T03", "01T04"]]


def test_more_than_the_limit_goes_on_in_the_next_run(feed):
    assert [len(feed.run(10.5, 0, limit=4)) for _ in range(3)] == [4, 4, 2]
    assert feed.said.endswith(
        "the next interval is 2026-03-01T10:00:00: orders-0 lags; orders-1 lags; orders-2 lags and 2 more "
        "partitions"
    )


def test_a_reset_takes_back_the_days_that_it_concerns(feed):
    assert feed.run(48.5, 0, every="day") == ["01T00", "02T00"]
    assert feed.run(30.5, 0, every="day") == []
    assert "The intervals from 2026-03-02T00:00:00 until 2026-03-03T00:00:00+00:00 are" in feed.said
    assert feed.run(48.5, 0, every="day") == ["02T00"]


def test_the_target_of_a_move_counts_even_if_the_position_has_passed_it(feed):
    assert len(feed.run(4.5, 0, move=1)) == 4
    assert feed.run(4.5, 0, move=2, moved=2.5) == ["01T02", "01T03"]
    assert feed.run(4.5, 0, move=2, moved=2.5) == []


def test_a_group_whose_commits_kafka_forgot_takes_nothing_back(feed):
    assert [feed.run(read, 0) for read in (1.5, None, 2.5)] == [["01T00"], [], ["01T01"]]


def test_a_larger_lateness_takes_nothing_back(feed):
    assert [feed.run(1.5, 0, lateness=late) for late in (0, 0.75, 0)] == [["01T00"], [], []]


def test_a_mistyped_group_is_corrected_before_the_first_event(feed):
    feed.run(None, 0, owner={"group_id": "etll"})
    assert feed.run(1.5, 0) == ["01T00"]


def test_ids_of_logs_are_kept_until_a_move_or_another_query(feed):
    query = {"query_id": "a"}
    feed.run(1.5, 0, owner=query, move=1, logs=LOGS)
    # The broker does not return them once.
    feed.run(1.5, 0, owner=query, move=1)

    def recorded(move: int, query_id: str) -> LogIds:
        return CompletingPosition({"query_id": query_id}, move, Read(0), Read(0)).recorded_logs(feed.kept)

    assert recorded(1, "a") == LOGS
    assert recorded(2, "a") == recorded(1, "b") == UNKNOWN_LOGS
