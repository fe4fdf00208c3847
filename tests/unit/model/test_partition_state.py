import pytest

from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.partition_state import PartitionState, offsets_to_read

TP = TopicPartition("orders", 0)
LOG = LogRange(10, 100)


def state(committed, checkpoint=None, log=LOG, **more):
    return PartitionState(TP, committed, log, checkpoint=checkpoint, **more)


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
    assert offsets_to_read([state(None)]) == {TP: 10}
    assert offsets_to_read([state(4, 70)]) == {TP: 70}
    assert offsets_to_read([state(4, log=None)]) == {}
    # Nothing of a log is read by positions of another one.
    assert offsets_to_read([state(120, 120)]) == offsets_to_read([state(40, recreated=True)]) == {TP: 10}
    assert offsets_to_read([state(0)]) == {TP: 0}


def test_a_headroom_that_nobody_required_or_measured_is_no_verdict():
    assert state(40, 40, min_headroom=60).verdict == "in step"
    for headroom in (Headroom("unknown"), Headroom("time", 0.0)):
        assert state(40, 40, headroom=headroom).verdict == "in step"
        assert state(40, 40, headroom=headroom, min_headroom=60).verdict != "in step"
