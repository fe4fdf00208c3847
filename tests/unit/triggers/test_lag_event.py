"""When does a backlog start a DAG?"""

import asyncio
import logging

import pytest
from airflow.sdk import Asset, AssetWatcher
from deadlines import until_async
from waiting import again, as_kept

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.triggers.event import LagEventTrigger

pytestmark = pytest.mark.usefixtures("memory", "fast_polls")

OLD = 1_357_000_000_000


class AssetState(dict):
    """What Airflow 3.3 keeps for an asset."""

    async def aget(self, key, default=None):
        return self.get(key, default)

    async def aset(self, key, value):
        self[key] = as_kept(value)

    async def says(self, fired):
        """Wait until the trigger has noted that it has fired, or that the backlog is gone."""
        await until_async(lambda: [bool(kept["fired_at"]) for kept in self.values()] == [fired])


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(partitions=2)
    produce(name, {0: 6, 1: 4}, timestamps_ms={0: [OLD] * 6, 1: [OLD] * 4})
    return name


@pytest.fixture
def rounds(monkeypatch):
    """Grows with each round of polls."""
    made = []
    read = OffsetsClient.committed_groups

    def count(client, wanted, **how):
        made.append(wanted)
        return read(client, wanted, **how)

    monkeypatch.setattr(OffsetsClient, "committed_groups", count)
    return made


class Watch:
    """A trigger that runs as in the triggerer, and what it has fired."""

    def __init__(self, trigger, rounds, state=None):
        self._trigger = again(trigger)
        self._trigger.asset_state_store = state
        self._rounds = rounds
        self.fired = []

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self):
        async for event in self._trigger.run():
            self.fired.append(event.payload)

    async def until(self, count):
        """Wait until it has fired so many times."""
        await until_async(lambda: len(self.fired) >= count)

    async def polls(self, count):
        """Let it poll so many times more: a round is judged by the time the next but one begins."""
        enough = len(self._rounds) + count + 2
        await until_async(lambda: len(self._rounds) >= enough)


def trigger(group, topic, **parameters):
    return LagEventTrigger(
        group_id=group, topics=topic, **{"min_lag": 5, "poll_interval": 0.05, **parameters}
    )


def fired(watched, rounds, count):
    """What a trigger has fired once it has fired so many times."""

    async def run():
        async with Watch(watched, rounds) as watch:
            await watch.until(count)
            return watch.fired

    return asyncio.run(run())


def test_it_fires_once_for_each_crossing_with_the_totals(group, topic, commit, caplog, rounds):
    state = AssetState()
    caplog.set_level(logging.INFO)

    async def run():
        async with Watch(trigger(group, topic), rounds, state) as watch:
            for crossing in range(1, 4):
                await watch.until(crossing)
                await state.says(True)
                assert len(watch.fired) == crossing
                await asyncio.to_thread(commit, group, topic, {0: 6, 1: 4})
                await state.says(False)
                await asyncio.to_thread(commit, group, topic, {0: 1, 1: 4})
            return watch.fired

    first, second, *_ = asyncio.run(run())
    assert first == {
        "version": 1,
        "group_id": group,
        "position": "group",
        "total_lag": 10,
        "max_partition_lag": 6,
        "lost": 0,
        "topics": {topic: 10},
    }
    assert second["total_lag"] == 5
    assert f"Unread records: {group}: total lag 10" in caplog.text
    assert "max_lag" not in caplog.text  # which the watcher does not name


def test_it_fires_again_while_the_backlog_stays(group, topic, rounds):
    assert len(fired(trigger(group, topic, refire_after=0.2), rounds, 3)) == 3


def test_what_a_run_has_left_fires_again_long_before_refire_after(group, topic, commit, rounds):
    state = AssetState()

    async def run():
        async with Watch(trigger(group, topic), rounds, state) as watch:
            await watch.until(1)
            await asyncio.to_thread(commit, group, topic, {0: 3, 1: 1})
            await watch.until(2)
            await watch.polls(2)
            return watch.fired

    _, second = asyncio.run(run())
    assert second["total_lag"] == 6


def test_below_the_threshold_it_does_not_fire(group, topic, commit, rounds):
    commit(group, topic, {0: 2, 1: 4})

    async def run():
        async with Watch(trigger(group, topic), rounds) as watch:
            await watch.polls(2)
            return watch.fired

    assert asyncio.run(run()) == []


def test_a_restart_does_not_make_it_fire_again_where_state_is_kept(group, topic, rounds):
    state = AssetState()

    async def first():
        async with Watch(trigger(group, topic), rounds, state) as watch:
            await watch.until(1)
            await state.says(True)

    async def again(state):
        async with Watch(trigger(group, topic), rounds, state) as watch:
            await watch.polls(2)
            return len(watch.fired)

    asyncio.run(first())
    assert asyncio.run(again(state)) == 0
    assert asyncio.run(again(None)) == 1


def test_records_that_wait_for_too_long_fire_however_few_they_are(group, topic, commit, rounds):
    commit(group, topic, {0: 5, 1: 4})

    (payload,) = fired(trigger(group, topic, min_lag=None, min_time_lag="PT1H"), rounds, 1)
    assert payload["total_lag"] == 1
    assert payload["time_lag"] > 3600


def test_a_group_whose_first_commit_it_waits_for_is_named(group, topic, commit, caplog, rounds):
    async def run():
        async with Watch(trigger(group, topic, on_no_commit="latest"), rounds) as watch:
            await watch.polls(1)
            assert watch.fired == []
            said = [message for record in caplog.records if "No event" in (message := record.getMessage())]
            await asyncio.to_thread(commit, group, topic, {0: 0, 1: 0})
            await watch.until(1)
            return said

    (said,) = asyncio.run(run())
    assert f"group '{group}' has committed nothing on this broker" in said


def test_a_topic_that_comes_later_is_waited_for(group, memory, caplog, rounds):
    async def run():
        async with Watch(trigger(group, "later"), rounds) as watch:
            await watch.polls(1)
            assert "Poll failed, no event: topic later is not on the broker" in caplog.text
            memory.create("later")
            memory.append("later", 0, range(7))
            await watch.until(1)
            return watch.fired

    (payload,) = asyncio.run(run())
    assert payload["total_lag"] == 7


def test_it_is_what_a_watcher_takes_and_the_same_each_time(group, topic):
    orders = KafkaPipeline(group_id=group, topics=topic)
    watched = Asset(
        "orders", watchers=[AssetWatcher(name="backlog", trigger=LagEventTrigger(**orders, min_lag=5))]
    )
    assert watched.watchers[0].name == "backlog"
    assert (
        LagEventTrigger(**orders, min_lag=5).serialize() == LagEventTrigger(**orders, min_lag=5).serialize()
    )
