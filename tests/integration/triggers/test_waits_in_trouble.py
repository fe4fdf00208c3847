"""Waits in the triggerer whose broker is away or silent, or refuses a connection."""

import asyncio
import json
import time
from contextlib import aclosing

import pytest
from waiting import again

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.triggers.poll import poll_repeatedly
from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger, OffsetsReachedTrigger
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.wait import Reading

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


@pytest.mark.parametrize("wrong", [{"security.protocol": "nonsense"}, {"bootstrap.servers": ""}])
def test_a_connection_that_is_refused_is_read_again_by_who_comes_next(
    wrong, behind, bootstrap_servers, connect
):
    wait = LagWait(group_id=behind, max_lag=0)

    async def run():
        connect({"bootstrap.servers": bootstrap_servers, **wrong})
        async with aclosing(poll_repeatedly(wait, 1.0)) as first:
            refused = await anext(first)
            connect(bootstrap_servers)
            async with aclosing(poll_repeatedly(wait, 1.0)) as second:
                # Who keeps waiting gets the corrected connection too.
                return refused, [await asyncio.wait_for(anext(each), DEADLINE) for each in (second, first)]

    refused, answers = asyncio.run(run())
    assert not getattr(refused, "retriable", False)
    assert "nonsense" in str(refused) or "bootstrap.servers" in str(refused)
    assert all(isinstance(answer, Reading) for answer in answers)
