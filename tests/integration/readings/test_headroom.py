"""Is a record there for as long as its headroom says, and when does the broker really delete it?"""

import itertools
import json
import time

import pytest
from breakable_kafka import BreakableKafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from deadlines import until

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.retention import read_headrooms

pytestmark = pytest.mark.integration

KEPT = 4.0
CHECKED = 0.2
SLACK = 1.0
"""Seconds in which a loaded machine may be late with what it does or sees."""
SMALL = {"retention.ms": str(int(KEPT * 1000)), "segment.ms": "1000"}
TOPICS = {
    "delete": SMALL,
    "both": SMALL | {"cleanup.policy": "compact,delete"},
    "stamped by the broker": SMALL | {"message.timestamp.type": "LogAppendTime"},
    "one segment": SMALL | {"segment.ms": "3600000"},
}
RECORDS = 10


@pytest.fixture(scope="module")
def quick():
    """A broker that checks retention five times a second, from the beginning on."""
    often = str(int(CHECKED * 1000))
    properties = {
        "log.retention.check.interval.ms": often,
        # It is the cleaner that checks topics with compaction.
        "log.cleaner.backoff.ms": often,
        "log.initial.task.delay.ms": "100",
    }
    with BreakableKafka(properties=properties) as kafka:
        yield kafka.bootstrap_servers


def headroom_at(client, tp, position):
    return read_headrooms(client, {tp: position}, client.log_ranges([tp]))[tp]


def test_a_record_is_deleted_after_its_headroom_and_within_its_segment_and_a_check(
    quick, make_topic, produce, record_property
):
    topics = {name: TopicPartition(make_topic(1, config, on=quick), 0) for name, config in TOPICS.items()}
    promised = {tp: list[float]() for tp in topics.values()}
    written = {tp: list[float]() for tp in topics.values()}
    deleted = {tp: list[float]() for tp in topics.values()}
    with OffsetsClient({"bootstrap.servers": quick}) as client:
        for number in range(RECORDS):
            for tp in topics.values():
                produce(tp.topic, [{"value": b"x", "key": str(number).encode()}], on=quick)
                written[tp].append(time.time())
                found = headroom_at(client, tp, number)
                assert found.state == "time"
                assert found.by_time is not None
                assert found.by_time <= KEPT
                promised[tp].append(time.time() + found.by_time)
            time.sleep(0.25)  # so that there are several segments
            watch(client, deleted)
        until(lambda: watch(client, deleted), tick=0.02)
    early, late = [], []
    for tp, moments in deleted.items():
        # Deleted together: a segment, or those that one check has found.
        for _, together in itertools.groupby(range(RECORDS), key=lambda number: moments[number]):
            numbers = list(together)
            newest = written[tp][numbers[-1]]
            early += [moments[number] - promised[tp][number] for number in numbers]
            late.append(moments[numbers[-1]] - (newest + KEPT))
    measured = {
        "deleted after the headroom, least and most": (round(min(early), 2), round(max(early), 2)),
        "after the newest record of the segment expired, most": round(max(late), 2),
        "segments": {name: len(set(deleted[tp])) for name, tp in topics.items()},
    }
    record_property("measured", json.dumps(measured))
    print(measured)
    # What the client was promised is never more, but for the time between the two clocks that it read.
    assert min(early) > -0.1
    assert max(late) < CHECKED + SLACK
    assert len(set(deleted[topics["delete"]])) > 1
    assert len(set(deleted[topics["one segment"]])) == 1


def watch(client, deleted):
    """Note when the records before the log start went; return whether all are gone."""
    logs, now = client.log_ranges(deleted), time.time()
    for tp, moments in deleted.items():
        moments += [now] * (logs[tp].start - len(moments))
    return all(len(moments) == RECORDS for moments in deleted.values())


def test_times_in_the_past_and_in_the_future(quick, make_topic, produce):
    hour, second = 3_600_000, 1_000
    # A record in another batch begins another segment if it is later than the first by segment.ms.
    config = {"retention.ms": str(2 * second), "segment.ms": str(24 * hour)}
    old, kept, future, *soon = (TopicPartition(make_topic(1, config, on=quick), 0) for _ in range(5))
    with OffsetsClient({"bootstrap.servers": quick}) as client:
        now = int(time.time() * 1000)
        # An expired record is kept by a newer one of its segment; one of the future by itself.
        for (with_newer, alone), later in (((kept, future), hour), (soon, 2 * second)):
            produce(with_newer.topic, {0: 2}, timestamps_ms={0: [now - hour, now + later]}, on=quick)
            produce(alone.topic, {0: 1}, timestamps_ms={0: [now + later]}, on=quick)
        produce(old.topic, {0: 1}, timestamps_ms={0: [now - hour]}, on=quick)
        until(lambda: any(log.start for log in client.log_ranges(soon).values()), tick=0.02)
        assert time.time() * 1000 >= now + 4 * second
        until(lambda: all(log.start for log in client.log_ranges(soon).values()))
        until(lambda: client.log_ranges([old])[old].start == 1)
        assert headroom_at(client, old, 0).state == "lost"
        found = headroom_at(client, kept, 0)
        assert (found.state, found.by_time) == ("time", 0)
        assert "expired: deleted as soon as the newest record" in found.reason
        found = headroom_at(client, future, 0)
        assert found.by_time is not None
        assert found.by_time > 2
        assert "a timestamp in the future" in found.reason


def test_bytes_delete_before_time_does_and_nothing_was_promised(quick, make_topic, produce):
    config = {"retention.bytes": "1", "segment.ms": "1000"}
    tp = TopicPartition(make_topic(1, config, on=quick), 0)
    with OffsetsClient({"bootstrap.servers": quick}) as client:
        produce(tp.topic, {0: 1}, on=quick)
        found = headroom_at(client, tp, 0)
        assert found.state == "unknown"
        assert found.reason.startswith("retention.bytes=1:")
        time.sleep(1.1)  # the segment's time, after which the next record begins a new one
        produce(tp.topic, {0: 1}, on=quick)
        until(lambda: client.log_ranges([tp])[tp].start > 0, seconds=20)


def test_a_topic_without_retention_of_its_own_has_the_brokers(quick, make_topic, produce):
    plain, own = (
        TopicPartition(make_topic(1, config, on=quick), 0) for config in ({}, {"retention.ms": "9000000"})
    )
    for tp in (plain, own):
        produce(tp.topic, {0: 1}, on=quick)
    admin = AdminClient({"bootstrap.servers": quick, "log_level": 0})
    (broker,) = admin.list_topics(timeout=20).brokers

    def brokers(name, value, how=AlterConfigOpType.SET):
        entries = [ConfigEntry(name, value, incremental_operation=how)]
        changed = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=entries)
        (done,) = admin.incremental_alter_configs([changed]).values()
        done.result(20)

    with OffsetsClient({"bootstrap.servers": quick}) as client:
        try:
            brokers("log.retention.ms", "3600000")
            until(lambda: (headroom_at(client, plain, 0).by_time or 0) < 3_601)
            assert headroom_at(client, plain, 0).by_time == pytest.approx(3_600, abs=60)
            assert headroom_at(client, own, 0).by_time == pytest.approx(9_000, abs=60)
            brokers("log.retention.bytes", "1000000")
            until(lambda: headroom_at(client, plain, 0).state == "unknown")
            assert headroom_at(client, own, 0).state == "unknown"
        finally:
            for name in ("log.retention.ms", "log.retention.bytes"):
                brokers(name, None, AlterConfigOpType.DELETE)
