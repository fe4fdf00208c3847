"""The rates of a pipeline and the progress of a wait that somebody watches."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest

from airflow_kafka_offsets.errors import DriftError
from airflow_kafka_offsets.model.digest import partitions_digest
from airflow_kafka_offsets.ui import watched_progress
from airflow_kafka_offsets.ui.instances import wait_question
from airflow_kafka_offsets.ui.watched_progress import WatchedProgress
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import Reading

TARGET = {"orders": {"0": 80_000}}


class Sinking:
    """A wait of which less remains at each poll."""

    parsers: ClassVar = {"group_id": None}
    checkpoint_location = None
    kafka_config_id = "kafka_default"
    moving = False
    recreated = False
    left: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, **_):
        pass

    def read_checkpoint(self, checkpoint):
        assert checkpoint is None

    def find_positions(self, client, state):
        return {}

    def check_topics(self, client, state, positions):
        if self.recreated:
            raise DriftError("the topic was deleted and created again")

    def judge(self, client, positions):
        left = self.left.pop(0)
        return Reading(left == (0, 0), dict, "", remaining=left, moving=self.moving)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(at=1_000_000.0)
    monkeypatch.setattr("airflow_kafka_offsets.ui.watched_progress.time.time", lambda: clock.at)
    return clock


@pytest.fixture
def watch(monkeypatch, clock):
    """watch(amounts) -> what each poll says, ten seconds apart."""
    monkeypatch.setattr(watched_progress, "WAITS", {"reached": Sinking})

    @contextmanager
    def lend(kafka_config_id, end):
        yield None

    progress = WatchedProgress(lend)

    def poll(amounts, began=None, every=10.0):
        Sinking.left = [(amount, amount) if isinstance(amount, int) else amount for amount in amounts]
        found = []
        for _ in amounts:
            found.append(progress.poll_wait({"kind": "reached", "parameters": {}, "began": began}, 0.0))
            clock.at += every
        return found

    return poll


def test_what_remains_is_said_at_once_and_the_pace_when_it_is_known(watch):
    polls = watch([80_000 - 3_100 * number for number in range(6)])

    assert [(poll["remaining"], poll["of"]) for poll in polls[:2]] == [(80_000, 80_000), (76_900, 80_000)]
    assert [poll["pace"] for poll in polls[:4]] == [None] * 4
    assert polls[5]["pace"] == "15,500 of 80,000 read, 310/s, about 3 min"


def test_the_reading_with_which_the_wait_began_counts(watch):
    (poll,) = watch([60_000], began=[999_000.0, 80_000])

    assert (poll["remaining"], poll["of"], poll["pace"]) == (60_000, 80_000, None)


def test_nothing_is_said_of_what_is_not_known(watch):
    (poll,) = watch([()], began=[999_000.0, 80_000])

    assert (poll["remaining"], poll["of"], poll["pace"]) == (None, None, None)


def test_of_a_target_that_moves_nobody_knows_how_much_there_is(watch, monkeypatch):
    monkeypatch.setattr(Sinking, "moving", True)

    polls = watch([80_000 - 3_100 * number for number in range(6)])

    assert {poll["of"] for poll in polls} == {None}
    assert polls[5]["pace"] == "lag falls by 310/s net, about 3 min to the threshold"


def test_a_wait_that_nobody_has_watched_for_long_is_measured_again(watch):
    watch([80_000 - 3_100 * number for number in range(6)])
    watch([40_000], every=600.0)

    assert watch([30_000])[0]["pace"] is None


def test_a_wait_that_is_over_is_so_before_its_task_knows(watch):
    assert watch([5, 0])[1]["done"]


def test_a_wait_that_its_task_refuses_to_end_is_not_over(watch, monkeypatch):
    monkeypatch.setattr(Sinking, "recreated", True)

    assert not watch([5])[0]["done"]
    with pytest.raises(DriftError):
        watch([0])


@pytest.mark.parametrize(
    ("fields", "reading", "kind"),
    [
        ({"max_lag": 0, "max_time_lag": None, "min_headroom": None}, {}, "lag"),
        # Ages do not fall as records do.
        ({"max_lag": 0, "max_time_lag": "PT5M", "min_headroom": None}, {}, None),
        ({"max_lag": None, "max_time_lag": None, "min_headroom": 60}, {}, None),
        ({"target": TARGET, "tolerance": 0}, {}, "reached"),
        ({"target": '{"orders": {"0": 80000}}', "tolerance": 0}, {}, "reached"),
        # What it means was decided when the wait began.
        ({"target": "latest", "tolerance": 0}, {}, None),
        ({"target": "2026-01-01T00:00:00Z", "tolerance": 0}, {}, None),
        ({"target": "latest", "tolerance": 0}, {"target": TARGET}, "reached"),
        # A topic's own wait has no records that remain.
        ({"target": "2026-01-01T00:00:00Z", "on_idle_partition": "wait"}, {}, None),
        ({"max_lag": 0, "group_id": "***"}, {}, None),
        ({"max_lag": 0, "topics": "Truncated. You can change this behaviour in ..."}, {}, None),
        ({}, {"target": TARGET}, None),
    ],
)
def test_a_wait_is_watched_if_its_target_is_known(fields, reading, kind):
    found = wait_question(fields, reading)

    assert (found and found["kind"]) == kind
    if reading and found:
        assert found["parameters"]["target"] == TARGET


@pytest.mark.parametrize(("kind", "of"), [("lag", LagWait), ("reached", ReachedWait)])
def test_the_fields_by_which_a_wait_is_known_are_its_parameters(kind, of):
    assert watched_progress.WAITS[kind] is of
    own = {"max_lag", "max_time_lag", "min_headroom"} if kind == "lag" else {"target", "tolerance"}
    assert own <= of.parsers.keys()


NOTHING = {"records_in": None, "records_out": None, "lag_falls": None, "seconds_left": None}


def reading(committed, log_end, over="a", headroom_state="none"):
    lags = [None if at is None else end - at for at, end in zip(committed, log_end, strict=True)]
    partitions = {"lag": lags, "log_end": log_end, "committed": committed, "headroom_state": [headroom_state]}
    return {"totals": {"over": over}, "partitions": partitions}


@pytest.fixture
def rates(clock):
    """rates(readings, every=10) -> the rates after these polls."""

    def poll(readings, every=10.0):
        progress = WatchedProgress(lambda *_: pytest.fail("a reading needs no client"))
        for each in readings:
            found = progress.rates({"group_id": "g"}, each)
            clock.at += every
        return found

    return poll


def falling(polls=6):
    return [reading([100 * n, 50 * n], [10_000 + 20 * n, 1_000 + 10 * n]) for n in range(polls)]


def test_rates_are_known_after_a_few_polls(rates):
    assert rates(falling(4)) == NOTHING
    # Lag falls by 80 and 40 in 10 s; from 11,000 records, of which one partition has 10,000.
    assert rates(falling(6)) == {
        "records_in": 3.0,
        "records_out": 15.0,
        "lag_falls": 12.0,
        "seconds_left": 1_200.0,
    }


def test_what_comes_in_is_known_although_nobody_reads(rates):
    found = rates([reading([5], [100 * n]) for n in range(6)])
    assert found == {**NOTHING, "records_in": 10.0}


@pytest.mark.parametrize(
    "last",
    [
        reading([None, 300], [10_200, 1_100]),
        reading([600, 300], [10_200, 1_100], headroom_state="lost"),
    ],
)
def test_there_is_no_time_left_where_lag_is_not_all(rates, last):
    assert rates([*falling(6), last])["seconds_left"] is None


def test_other_partitions_and_a_long_absence_begin_again(rates):
    assert rates([*falling(6), reading([600, 300], [10_200, 1_100], over="b")]) == NOTHING
    assert rates(falling(6), every=121.0) == NOTHING


def test_the_same_partitions_have_the_same_name():
    assert partitions_digest([("a", 1), ("b", 0)]) == partitions_digest([("b", 0), ("a", 1)])
    assert (
        len({partitions_digest(each) for each in ([("a", 1)], [("a", 1)] * 2, [("a", 11)], [("b", 1)])}) == 4
    )
    assert partitions_digest([]) is None
