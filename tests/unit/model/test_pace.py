"""The pace of a wait: what is said of it, and when nothing is."""

import json
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.pace import ENOUGH, Pace, ProgressHistory, estimate_text, rate_text

Amount = Callable[[float], int]
START = 1_772_344_800.0


def polled(times: Iterable[float], *amounts: Amount) -> ProgressHistory:
    descent = ProgressHistory()
    for time in times:
        descent = descent.after_poll(START + time, [amount(time) for amount in amounts])
    return descent


def every(seconds: float, polls: int) -> list[float]:
    return [seconds * number for number in range(polls)]


def falling(rate: float, start: int = 80_000) -> Amount:
    return lambda time: max(0, start - int(rate * time))


def in_batches(
    size: int, each: float, start: int = 80_000, written: float = 0.0, since: float = 0.0
) -> Amount:
    """What is left while a batch of so many records ends every so many seconds, and a producer writes."""
    return lambda time: start + int(written * time) - size * int((time + since) // each)


def test_a_steady_fall_is_said_with_its_rate_and_its_end() -> None:
    pace = polled(every(10, 5), falling(310)).pace

    assert pace == Pace(310.0, (80_000 - 12_400) / 310, 12_400, 80_000)
    assert pace.text(moving=False) == "12,400 of 80,000 read, 310/s, about 4 min"
    assert pace.text(moving=True) == "lag falls by 310/s net, about 4 min to the threshold"
    assert pace.as_json() == {"records_per_second": 310.0, "seconds_left": 218}


def test_too_few_polls_say_nothing() -> None:
    assert [polled(every(10, polls), falling(310)).pace is None for polls in (0, 1, 4, 5)] == [
        True,
        True,
        True,
        False,
    ]


def test_a_query_that_commits_once_a_batch_is_measured_from_batch_to_batch() -> None:
    pace = polled(every(10, 31), in_batches(6_000, 60)).pace

    assert pace is not None
    assert pace.rate == 100
    assert pace.seconds == pytest.approx(50_000 / 100, rel=0.1)


def test_lag_that_rises_between_two_batches_falls_net_of_the_producer() -> None:
    pace = polled(every(10, 50), in_batches(12_000, 60, written=100)).pace

    assert pace is not None
    assert pace.rate == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("written", [199, 200, 201, 400])
def test_a_producer_that_is_as_fast_leaves_nothing_to_say(written: float) -> None:
    amount = in_batches(12_000, 60, written=written)

    assert all(polled(every(10, polls), amount).pace is None for polls in range(80))


def test_chance_is_not_taken_for_a_trend() -> None:
    hovering = [1_000, 1_080, 980, 1_050, 960, 1_060, 940, 1_030, 920, 1_010, 905]

    assert polled(range(len(hovering)), lambda time: hovering[int(time)]).pace is None


def test_a_position_that_went_back_begins_again() -> None:
    amounts = [100, 90, 80, 70, 60, 50, 95, 85, 75, 65, 55]
    paces = [
        polled(range(polls), lambda time: amounts[int(time)]).pace for polls in range(1, len(amounts) + 1)
    ]

    assert [pace is not None for pace in paces] == [*[False] * 4, True, True, True, *[False] * 3, True]
    assert paces[-1] is not None
    assert (paces[-1].rate, paces[-1].first_backlog) == (10, 100)


def test_a_query_that_stands_still_says_nothing_once_the_next_batch_is_overdue() -> None:
    stopped = in_batches(6_000, 60)

    paces = [polled(every(10, polls), lambda time: stopped(min(time, 300))).pace for polls in (31, 43, 44)]

    assert [pace is None for pace in paces] == [False, False, True]


def test_an_uneven_pace_says_nothing() -> None:
    amounts = [1_000, 999, 998, 997, 800, 600, 400]

    assert polled(range(7), lambda time: amounts[int(time)]).pace is None


def test_the_partition_that_is_furthest_behind_decides_when_it_ends() -> None:
    pace = polled(every(10, 6), falling(300), falling(50, start=40_000)).pace

    assert pace is not None
    assert pace.seconds == pytest.approx((40_000 - 2_500) / 50)


def test_no_end_is_said_while_the_partition_that_is_furthest_behind_does_not_move() -> None:
    pace = polled(every(10, 6), falling(300), lambda _: 40_000).pace

    assert pace is not None
    assert pace.text(moving=False) == "15,000 of 80,000 read, 300/s"
    assert pace.text(moving=True) == "lag falls by 300/s net"
    assert pace.as_json()["seconds_left"] is None


def test_nothing_is_said_when_nothing_remains() -> None:
    assert polled(every(10, 6), falling(2_000, start=100_000)).pace is None


def test_amounts_that_are_not_known_begin_again() -> None:
    descent = polled(every(10, 6), falling(310))

    assert descent.after_poll(START + 60, ()) == ProgressHistory()


def test_a_clock_that_went_back_begins_again() -> None:
    descent = polled(every(10, 6), falling(310))

    assert descent.after_poll(START, [70_000]).pace is None


@given(
    rate=st.floats(0.01, 1e6),
    interval=st.floats(1, 3_600),
    polls=st.integers(ENOUGH + 1, 30),
)
def test_a_steady_fall_is_found_at_any_rate(rate: float, interval: float, polls: int) -> None:
    assume(rate * interval >= 50)
    start = int(rate * interval * 40)

    pace = polled(every(interval, polls), falling(rate, start)).pace

    assert pace is not None
    assert pace.rate == pytest.approx(rate, rel=0.05)
    assert pace.seconds == pytest.approx((start - rate * interval * (polls - 1)) / rate, rel=0.1)


@given(
    each=st.floats(5, 600),
    interval=st.floats(1, 300),
    since=st.floats(0, 1),
    polls=st.integers(0, 60),
)
def test_what_is_said_of_batches_is_right_or_nothing(
    each: float, interval: float, since: float, polls: int
) -> None:
    size = 1_000
    amount = in_batches(size, each, start=10**7, since=since * each)

    pace = polled(every(interval, polls), amount).pace

    assert pace is None or size / each / 2.5 < pace.rate < size / each * 2.5


@given(st.lists(st.tuples(st.floats(0, 1e9), st.lists(st.integers(0, 10**12), max_size=2)), max_size=30))
def test_whatever_is_polled_a_pace_is_positive_and_the_memory_small(
    polls: list[tuple[float, list[int]]],
) -> None:
    descent = ProgressHistory()
    for at, amounts in polls:
        descent = descent.after_poll(at, amounts)

        assert all(later.amounts[0] < earlier.amounts[0] for earlier, later in pairwise(descent.falls))
        assert len(descent.falls) <= 8
        if pace := descent.pace:
            assert pace.rate > 0
            assert pace.seconds is None or pace.seconds > 0
            assert 0 <= pace.read <= pace.first_backlog
            assert "None" not in pace.text(moving=True) + pace.text(moving=False)


@given(st.integers(0, 30), st.integers(0, 500))
def test_it_goes_on_in_another_process(polls: int, rate: int) -> None:
    descent = polled(every(10, polls), falling(rate), falling(rate / 2))

    assert ProgressHistory.from_json(json.loads(json.dumps(descent.as_json()))) == descent


@pytest.mark.parametrize("value", [None, {}, [], "x", {"first": 1, "last": None, "falls": []}, {"last": [1]}])
def test_what_is_no_memory_counts_as_nothing_known(value: object) -> None:
    assert ProgressHistory.from_json(value) == ProgressHistory()


@pytest.mark.parametrize(
    ("times", "amounts"),
    [
        ([10.0, 10.0, 10.0, 10.0], [[4], [3], [2], [1]]),
        ([10.0, 20.0, 20.0, 30.0], [[4], [3], [2], [1]]),
        ([40.0, 30.0, 20.0, 10.0], [[4], [3], [2], [1]]),
        ([10.0, 20.0, float("nan"), 30.0], [[4], [3], [2], [1]]),
        ([10.0, 20.0, 30.0, 40.0], [[4], [3], [], [1]]),
    ],
)
def test_falls_that_no_wait_has_seen_count_as_nothing_known(
    times: list[float], amounts: list[list[int]]
) -> None:
    falls = [[at, left, 0] for at, left in zip(times, amounts, strict=True)]

    read = ProgressHistory.from_json({"first": 4, "last": [50.0, [1], 0], "falls": falls})

    assert read == ProgressHistory()
    assert read.after_poll(START, [1]).pace is None


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1_234_567.0, "1,234,567/s"),
        (310.4, "310/s"),
        (3.24, "3.2/s"),
        (0.5, "30/min"),
        (0.02, "1.2/min"),
        (0.001, "3.6/h"),
        (0.0002, "17/d"),
        (5 / 604_800, "0.7/d"),
    ],
)
def test_a_rate_has_the_unit_in_which_it_is_a_number(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_a_pace_that_would_be_none_in_a_day_is_not_said() -> None:
    month = 30 * 86_400
    paces = [polled(every(month, 6), falling(per_month / month)).pace for per_month in (2, 4)]

    assert paces[0] is None
    assert paces[1] is not None
    assert "0.1/d" in paces[1].text(moving=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3, "a few seconds"),
        (30, "half a minute"),
        (60, "a minute"),
        (90, "1.5 min"),
        (178, "3 min"),
        (200, "3 min"),
        (5_000, "83 min"),
        (5_400, "1.5 h"),
        (6_000, "1.7 h"),
        (7_200, "2 h"),
        (100_000, "28 h"),
        (200_000, "2.3 d"),
        (300_000, "3 d"),
    ],
)
def test_an_estimate_has_one_unit(seconds: float, text: str) -> None:
    assert estimate_text(seconds) == text
