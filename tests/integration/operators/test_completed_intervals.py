"""Complete hours of a real log: markers of transactions, deleted records."""

import pytest
from hours_of_pipelines import FOREVER, Runs, ms, plan

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka import record_reads
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


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


def test_a_broker_whose_records_are_slow_hides_no_deleted_ones(
    make_topic, write, context, delete_records, monkeypatch
):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.1, 0.2, 1.1, 2.1]})
    delete_records(topic, {0: 2})
    monkeypatch.setattr(record_reads, "_TIMES_WITHIN", 0.002)
    with pytest.raises(BrokerUnavailableError):
        plan(context, "2026-03-01T00:00:00", topics=topic, every="hour")
