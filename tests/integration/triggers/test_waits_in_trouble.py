"""Waits in the triggerer whose broker is away or silent."""

import asyncio
import json
import time

import pytest
from waiting import again

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger, OffsetsReachedTrigger

pytestmark = pytest.mark.integration

AWAY = 20.0
DEADLINE = 60.0


@pytest.mark.long
def test_a_wait_goes_on_after_a_broker_was_stopped_or_silent_for_20_seconds(
    own_kafka, make_topic, produce, new_group, monkeypatch
):
    """Both kinds of trouble at the same time, each on a broker of its own."""
    brokers = {"stopped": own_kafka(), "silent": own_kafka()}
    group, topics = new_group(), {}
    for name, kafka in brokers.items():
        servers = kafka.bootstrap_servers
        connection = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": servers}})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", connection)
        topics[name] = make_topic(partitions=1, on=servers)
        produce(topics[name], {0: 5}, on=servers)

    def commit(name, offset):
        with OffsetsClient({"bootstrap.servers": brokers[name].bootstrap_servers}) as client:
            client.commit(group, {TopicPartition(topics[name], 0): offset})

    def triggers(name):
        common = {"group_id": group, "topics": topics[name], "kafka_config_id": name, "poll_interval": 1}
        yield ConsumerGroupLagTrigger(**common, max_lag=0)
        yield OffsetsReachedTrigger(**common, target={topics[name]: {"0": 5}})

    def trouble():
        brokers["silent"].freeze()
        since = time.monotonic()
        brokers["stopped"].kill()
        time.sleep(max(0.0, since + AWAY - time.monotonic()))
        brokers["silent"].thaw()
        brokers["stopped"].restart()
        for name in brokers:
            commit(name, 5)

    async def run():
        waiting = [
            asyncio.create_task(anext(again(trigger).run())) for name in brokers for trigger in triggers(name)
        ]
        await asyncio.sleep(2)  # Two polls of each. A wait that has not polled yet has to end as well.
        await asyncio.to_thread(trouble)
        return await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE)

    for name in brokers:
        commit(name, 0)
    events = [event.payload for event in asyncio.run(run())]
    assert [event.get("message") for event in events] == [None] * 4
    assert [event["reading"].get("total_lag", 0) for event in events] == [0] * 4
