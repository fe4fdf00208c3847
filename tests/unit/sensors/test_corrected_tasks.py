"""Corrected parameters count from the next poll on, and an old record counts behind a recent one."""

import json
import time
from datetime import datetime, timezone

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import filled_broker
from memory_clients import open_client
from waiting import lag_sensor, poke_once, reached_sensor, reading_of

from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.reached import ReachedWait

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def make_read_topic(make_topic, produce, commit, group):
    """A topic of one partition with five records, of which the group has read none."""

    def make():
        topic = make_topic(1)
        produce(topic, {0: 5})
        commit(group, topic, {0: 0})
        return topic

    return make


def poll(context, group, **parameters):
    poke_once(reached_sensor(group, mode="reschedule", **parameters), context)


def test_a_corrected_target_counts_at_the_next_poll(group, make_read_topic, commit, context):
    topic = make_read_topic()
    poll(context, group, target={topic: {"0": 1}})
    commit(group, topic, {0: 1})
    poll(context, group, target={topic: {"0": 5}})


def test_a_time_in_place_of_the_log_end_counts_at_the_next_poll(
    group, make_read_topic, produce, commit, context
):
    topic = make_read_topic()
    poll(context, group, topics=[topic])
    commit(group, topic, {0: 5})
    now = datetime.now(tz=timezone.utc)
    produce(topic, {0: 3}, {0: [int(now.timestamp() * 1000) - 1000] * 3})
    poll(context, group, topics=[topic], target=now)


def test_corrected_topics_count_at_the_next_poll(group, make_read_topic, commit, context):
    one, two = make_read_topic(), make_read_topic()
    poll(context, group, topics=[one])
    commit(group, one, {0: 5})
    poll(context, group, topics=[one, two])


def test_a_target_of_the_cluster_before_is_not_waited_for_on_another_one(
    group, make_read_topic, context, monkeypatch
):
    topic = make_read_topic()
    poll(context, group, topics=[topic])
    elsewhere = filled_broker(range(9), topic=topic, cluster_id="another")
    with open_client(elsewhere) as client:
        client.commit(group, {TopicPartition(topic, 0): 5})
    connection = {"conn_type": "kafka", "extra": elsewhere.config()}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    gate = reached_sensor(group, topics=[topic])
    with pytest.raises(AirflowFailException, match="the target is of cluster cluster-in-memory"):
        gate.execute(context)
    context["ti"].max_tries = 1  # cleared
    poll(context, group, topics=[topic])


def test_a_target_that_an_earlier_version_has_kept_without_its_cluster_stays(
    group, make_read_topic, produce, commit, context
):
    topic = make_read_topic()
    wait = ReachedWait(group_id=group, topics=[topic], target="latest")
    known = {name: value for name, value in wait.parameters.items() if name != "cluster"}
    kept = {"for": digest(known | {"tolerance": None}), "offsets": {topic: {"0": 5}}}
    WaitMemory(context).target = kept
    produce(topic, {0: 3})
    commit(group, topic, {0: 5})
    gate = reached_sensor(group, topics=[topic], mode="reschedule")
    assert gate.execute(context)["target"] == {topic: {"0": 5}}


def test_a_recent_record_that_was_read_does_not_hide_old_ones(group, make_topic, produce, commit):
    topic = make_topic(1, config={"retention.ms": "-1"})
    now = int(time.time() * 1000)
    produce(topic, {0: 3}, timestamps_ms={0: [now, now - 7_200_000, now - 7_200_000]})
    commit(group, topic, {0: 1})
    done, value = reading_of(lag_sensor(group, max_time_lag=600))
    assert not done
    assert value["time_lag"] > 7000
