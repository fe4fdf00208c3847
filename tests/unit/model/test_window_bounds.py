from datetime import datetime, timedelta, timezone

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.window import check_bounds

NOW = datetime(2026, 3, 2, tzinfo=timezone.utc)
A, B = NOW - timedelta(days=2), NOW - timedelta(days=1)
EARLIEST, LATEST = Place("earliest"), Place("latest")


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (Place("time", A), Place("time", A), "a window without length: in Airflow 3 a plain cron string"),
        (Place("time", B), Place("time", A), "is after end"),
        (EARLIEST, Place("time", NOW + timedelta(seconds=1)), "end=.* is in the future"),
        (Place("time", NOW + timedelta(days=1)), LATEST, "start=.* is in the future"),
        (
            Place("offsets", {TopicPartition("orders", 0): 1}),
            Place("offsets", {TopicPartition("orders", 1): 1}),
            "orders-0, orders-1 is only in one of the two",
        ),
    ],
)
def test_bounds_that_make_no_window_are_refused(start, end, said):
    with pytest.raises(PlanRefusedError, match=said):
        check_bounds(start, end, NOW)


def test_a_time_in_one_zone_may_equal_one_in_another():
    there = timezone(timedelta(hours=5))
    with pytest.raises(PlanRefusedError, match="without length"):
        check_bounds(Place("time", A), Place("time", A.astimezone(there)), NOW)


@pytest.mark.parametrize(
    ("start", "end"),
    [(EARLIEST, LATEST), (Place("time", A), Place("time", B)), (Place("time", A), Place("time", NOW))],
)
def test_bounds_of_a_window_pass(start, end):
    check_bounds(start, end, NOW)
