"""Complete hours of a real log: markers of transactions, deleted records."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from hours_of_pipelines import FOREVER, Runs, ms, plan

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka import record_reads
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


def test_hours_come_as_the_group_passes_their_last_records(make_topic, write, commit, group):
    topic = make_topic(2, FOREVER)
    write(topic, {0: [0.1, 0.9, 1.5, 3.2], 1: [0.2, 1.1, 2.9]})
    runs = Runs(group_id=group, topics=topic)
    commit(group, topic, {0: 1, 1: 1})
    assert runs.run() == []
    commit(group, topic, {0: 2, 1: 1})
    assert runs.run() == ["00"]
    commit(group, topic, {0: 4, 1: 3})
    assert runs.run() == ["01"]  # the second partition holds nothing of 03:00 or later
    write(topic, {1: [3.1]})
    assert runs.run() == ["02"]
    assert runs.run() == []


@pytest.mark.parametrize("abort", [False, True])
def test_markers_of_transactions_show_nothing_and_hold_nothing_up(
    make_topic, send_in_transaction, commit, group, abort
):
    topic = make_topic(1, FOREVER)
    tp = TopicPartition(topic, 0)
    runs = Runs(group_id=group, topics=topic)
    # Each record, and its marker, which carries the broker's clock: that of today.
    send_in_transaction(tp, ms(0.5))
    send_in_transaction(tp, ms(0.7), abort=abort)
    for position in (1, 2, 3, 4):
        commit(group, topic, {0: position})
        assert runs.run() == [], position
    send_in_transaction(tp, ms(1.5))
    commit(group, topic, {0: 2})
    assert runs.run() == []
    # A consumer that commits the offset after its last record has not passed the marker.
    commit(group, topic, {0: 3})
    assert runs.run() == ["00"]
    send_in_transaction(tp, ms(2.5))
    commit(group, topic, {0: 8})
    assert runs.run() == ["01"]


def test_the_marker_of_a_transaction_does_not_end_an_hour(
    make_topic, commit, group, context, bootstrap_servers
):
    topic = make_topic(1, FOREVER)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)
    for hours in ([0.1, 0.2], [0.3, 0.4], [1.1], [2.1], [3.1]):  # the records' own times
        producer.begin_transaction()
        for hour in hours:
            producer.produce(topic, b"", partition=0, timestamp=ms(hour))
        producer.commit_transaction(20)
    commit(group, topic, {0: 12})
    assert Runs(group_id=group, topics=topic).run() == ["00", "01", "02"]
    windows = [plan(context, f"2026-03-01T0{hour}:00:00", topics=topic, every="hour") for hour in range(3)]
    assert [(each["start"][topic]["0"], each["end"][topic]["0"]) for each in windows] == [
        (0, 6),
        (6, 8),
        (8, 10),
    ]


def test_hours_meet_at_the_same_record_whenever_they_are_planned(make_topic, context, bootstrap_servers):
    topic = make_topic(1, FOREVER)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)

    def write(*hours):
        producer.begin_transaction()
        for hour in hours:
            producer.produce(topic, b"", partition=0, timestamp=ms(hour))
        producer.commit_transaction(20)

    write(0.1)
    write(0.2, 1.1, 0.3)
    first = plan(context, "2026-03-01T00:00:00", topics=topic, every="hour")
    write(0.4, 0.5, 0.6, 1.2, 0.7, 1.3)
    second = plan(context, "2026-03-01T01:00:00", topics=topic, every="hour")
    assert (first["end"], second["start"]) == ({topic: {"0": 3}}, {topic: {"0": 3}})


def test_a_broker_whose_records_are_slow_hides_no_deleted_ones(
    make_topic, write, context, delete_records, monkeypatch
):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.1, 0.2, 1.1, 2.1]})
    delete_records(topic, {0: 2})
    monkeypatch.setattr(record_reads, "_TIMES_WITHIN", 0.002)
    with pytest.raises(BrokerUnavailableError):
        plan(context, "2026-03-01T00:00:00", topics=topic, every="hour")
