"""What a wait says of its pace, in the log and in its reading."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.offsets import Commit, LogRange, Positions, TopicPartition
from airflow_kafka_offsets.waits import progress as progress_module
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.progress import Progress
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import Reading, Wait

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
REACHED = ReachedWait(group_id="etl", target={"orders": {"0": 60_000, "1": 20_000}})
FRESH = LagWait(group_id="etl", topics=["orders"], max_lag=1_000)
DOCUMENTED = (Path(__file__).parents[3] / "docs" / "sensors.md").read_text(encoding="utf-8").splitlines()


class Logs:
    """The logs of a broker: partition -> range."""

    def __init__(self, logs: Mapping[TopicPartition, LogRange]) -> None:
        self.logs = logs

    def log_ranges(self, partitions: Iterable[TopicPartition], **_: Any) -> dict[TopicPartition, LogRange]:
        return {tp: self.logs[tp] for tp in partitions}

    def committed_everywhere(self, _group_id: str) -> dict[TopicPartition, Commit]:
        return {TopicPartition("other", 0): Commit(1, None)}


class Clock:
    """Seconds since 1970, at the times that the test says."""

    now = 1_772_344_800.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress_module, "time", found)
    return found


def judged(wait: Wait, positions: Positions, start: int = 0, end: int = 80_000) -> Reading:
    logs = Logs(dict.fromkeys((A, B), LogRange(start, end)))
    return wait.judge(cast("OffsetsReader", logs), {"etl": positions})


def polled(progress: Progress, clock: Clock, wait: Wait, polls: int, **log: int) -> list[Reading]:
    """Poll every 10 seconds, while 3,100 records are read from one poll to the next."""
    readings = []
    for number in range(polls):
        read = {A: 2_325 * number, B: 775 * number}
        readings.append(progress.add_reading(judged(wait, dict(read), **log)))
        clock.now += 10
    return readings


def test_a_target_that_is_approached_is_said_with_rate_and_time(clock: Clock) -> None:
    readings = polled(Progress(), clock, REACHED, 5)

    assert [reading.as_json()["progress"] for reading in readings[:4]] == [None] * 4
    assert readings[4].as_json()["progress"] == {"records_per_second": 310.0, "seconds_left": 218}
    assert readings[4].text.endswith("\n12,400 of 80,000 read, 310/s, about 4 min")
    assert readings[4].text.splitlines()[-1] in DOCUMENTED
    assert readings[3].text == judged(REACHED, {A: 6_975, B: 2_325}).text


def test_a_lag_that_falls_is_said_down_to_its_threshold(clock: Clock) -> None:
    readings = polled(Progress(), clock, FRESH, 5)

    # 160,000 less 12,400 read, less the 1,000 that may stay.
    assert readings[4].as_json()["progress"] == {"records_per_second": 310.0, "seconds_left": 473}
    assert readings[4].text.endswith("\nlag falls by 310/s net, about 8 min to the threshold")
    assert readings[4].text.splitlines()[-1] in DOCUMENTED


def test_both_thresholds_have_to_be_met(clock: Clock) -> None:
    wait = LagWait(group_id="etl", topics=["orders"], max_lag=1_000, max_partition_lag=10_000)

    (*_, newest) = polled(Progress(), clock, wait, 5)

    # The second partition is read at 77.5/s.
    assert newest.as_json()["progress"]["seconds_left"] == round((70_000 - 3_100) / 77.5)


@pytest.mark.parametrize(
    "wait",
    [
        LagWait(group_id="etl", topics=["orders"], max_lag=10**6),
        LagWait(group_id="etl", topics=["orders"], max_partition_lag=10**6),
    ],
)
def test_a_wait_that_is_over_has_no_pace(clock: Clock, wait: Wait) -> None:
    readings = polled(Progress(), clock, wait, 6)

    assert all(reading.done and reading.as_json()["progress"] is None for reading in readings)


@pytest.mark.parametrize("threshold", ["max_time_lag", "min_headroom"])
def test_a_threshold_in_time_has_no_pace_in_records(threshold: str) -> None:
    wait = LagWait(group_id="etl", topics=["orders"], max_lag=0, **cast("Any", {threshold: 10}))

    assert wait._remaining(judged(FRESH, {A: 0, B: 0}).lags[0]) == ()


@pytest.mark.parametrize("wait", [REACHED, FRESH])
def test_what_retention_deletes_is_not_counted_as_read(clock: Clock, wait: Wait) -> None:
    readings = polled(Progress(), clock, wait, 6, start=70_000)

    assert readings[-1].as_json()["lost"] > 0
    assert all(reading.as_json()["progress"] is None for reading in readings)


def test_partitions_without_a_commit_leave_it_open() -> None:
    assert judged(REACHED, {A: 5, B: None}).remaining == ()
    assert judged(REACHED, {A: 60_000, B: None}, start=20_000).remaining == (0, 0)


def test_a_wait_that_leaves_every_partition_out_is_an_error() -> None:
    wait = LagWait(group_id="elt", topics=["orders"], max_lag=0, on_no_commit="skip")
    assert judged(wait, {A: 80_000, B: None}).done
    assert judged(wait, {A: None, B: None}, 5, 5).done
    with pytest.raises(NoCommitError, match="no partition is left to measure: correct the name of the group"):
        judged(wait, {A: None, B: None})


def test_the_pace_alone_is_no_news(clock: Clock) -> None:
    progress = Progress()
    polled(progress, clock, REACHED, 5)
    assert progress.news

    again = progress.add_reading(judged(REACHED, {A: 9_300, B: 3_100}))

    assert not progress.news
    assert again.as_json()["progress"]["seconds_left"] == 208


def test_a_rescheduled_task_goes_on_with_what_is_kept(clock: Clock) -> None:
    progress = Progress()
    for number in range(5):
        progress = Progress(kept=json.loads(json.dumps(progress.kept)))
        reading = progress.add_reading(judged(REACHED, {A: 2_325 * number, B: 775 * number}))
        clock.now += 10

    assert reading.as_json()["progress"] == {"records_per_second": 310.0, "seconds_left": 218}


def test_another_process_without_memory_says_nothing_at_first(clock: Clock) -> None:
    polled(Progress(), clock, REACHED, 5)

    assert Progress().add_reading(judged(REACHED, {A: 11_625, B: 3_875})).as_json()["progress"] is None


def test_a_wait_is_not_stalled_while_nobody_could_see_its_position(clock: Clock) -> None:
    progress = Progress(stalled_after=60.0)
    progress.add_reading(judged(REACHED, {A: 5, B: 5}))
    clock.now += 50
    progress.is_new_error(NoCommitError("no answer"))
    clock.now += 50
    assert progress.stalled is None
    progress.add_reading(judged(REACHED, {A: 5, B: 5}))
    assert progress.stalled is None
    clock.now += 60
    progress.add_reading(judged(REACHED, {A: 5, B: 5}))
    assert "nothing has moved for 1 min" in str(progress.stalled)
