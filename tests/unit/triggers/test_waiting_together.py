"""Many waits that share one thread: what they cost, and that none of them spoils the others."""

import asyncio
import json
import threading
import time
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from deadlines import until, until_async
from memory_broker import filled_broker
from memory_clients import open_client
from waiting import again

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    CheckpointNotFoundError,
    StorageError,
    UnknownTopicPartitionError,
    UsageError,
)
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.kafka import client as kafka_client
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.config import plain_settings
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.triggers import poll, shared_poller
from airflow_kafka_offsets.triggers.poll import poll_repeatedly
from airflow_kafka_offsets.triggers.shared_poller import PollRequest
from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import KnownCheckpoint, Reading

pytestmark = pytest.mark.usefixtures("fast_polls")

DEADLINE = 30.0


class CountingClient(OffsetsClient):
    """Notes what it is asked."""

    def __init__(self, memory):
        super().__init__(memory.config())
        self.asked = []

    def committed(self, group_id, partitions):
        self.asked.append(("committed", group_id))
        return super().committed(group_id, partitions)

    def committed_groups(self, wanted, **parameters):
        self.asked.append(("committed_groups", len(wanted)))
        return super().committed_groups(wanted, **parameters)

    def log_ranges(self, partitions, **parameters):
        self.asked.append(("log_ranges", len(set(partitions))))
        return super().log_ranges(partitions, **parameters)

    def partitions(self, topics=None):
        self.asked.append(("partitions", tuple(topics or ())))
        return super().partitions(topics)

    def log_ids(self, topics):
        self.asked.append(("log_ids", len(set(topics))))
        return super().log_ids(topics)


@pytest.fixture
def clients(memory, monkeypatch):
    """The clients that the pollers make."""
    made = []

    def make(*_, **__):
        made.append(CountingClient(memory))
        return made[-1]

    monkeypatch.setattr(kafka_client, "OffsetsClient", make)
    return made


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield

    def left():
        ours = ("kafka offsets of", "read checkpoint")
        return [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]

    until(lambda: not left(), "the threads to end")
    assert poll._pollers == {}


@pytest.fixture
def groups(new_group, make_topic, produce, commit):
    """groups(3, 2) -> three groups, each 5 behind in two topics of its own."""

    def make(count, topics=1):
        names = [make_topic(partitions=1) for _ in range(topics)]
        for name in names:
            produce(name, {0: 5})
        made = [new_group() for _ in range(count)]
        for group in made:
            for name in names:
                commit(group, name, {0: 0})
        return made, names

    return make


def poll_for(waits, times, interval=0.05):
    """Poll for waits so many times; return the outcomes of each."""

    async def run():
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(aclosing(poll_repeatedly(wait, interval))) for wait in waits
            ]

            async def take(stream):
                return [await asyncio.wait_for(anext(stream), DEADLINE) for _ in range(times)]

            return await asyncio.gather(*map(take, streams))

    return asyncio.run(run())


def test_a_round_asks_for_each_group_and_for_the_logs_once(groups, clients):
    names, topics = groups(3, topics=2)
    waits = [LagWait(group_id=group, topics=topic, max_lag=0) for group in names for topic in topics]
    before = threading.active_count()
    outcomes = poll_for(waits * 5, times=3)
    assert threading.active_count() < before + 10
    assert all(
        isinstance(outcome, Reading) and outcome.lags[0].total == 5 for each in outcomes for outcome in each
    )
    (client,) = clients
    # Positions first: a live group can only seem further behind.
    assert client.asked[-2:] == [("committed_groups", 3), ("log_ranges", 2)]
    assert sum(question == "partitions" for question, _ in client.asked) <= 2


def test_waits_that_come_later_fall_into_step(groups, clients):
    names, (topic,) = groups(4)

    async def run():
        async with AsyncExitStack() as stack:
            streams = []
            for group in names:
                wait = LagWait(group_id=group, topics=topic, max_lag=0)
                streams.append(await stack.enter_async_context(aclosing(poll_repeatedly(wait, 0.1))))
                await anext(streams[-1])
                await asyncio.sleep(0.02)  # they come one after the other, within one interval
            for _ in range(5):
                await asyncio.gather(*map(anext, streams))

    asyncio.run(run())
    (client,) = clients
    assert client.asked[-6:] == [("committed_groups", 4), ("log_ranges", 1)] * 3


def test_a_partition_without_a_commit_is_asked_for_together_with_the_others(groups, clients, make_topic):
    many, (topic,) = groups(10)
    new = make_topic(partitions=1)
    waits = [
        LagWait(group_id=group, topics=[topic, new], max_lag=0, on_no_commit="earliest") for group in many
    ]
    outcomes = poll_for(waits, times=3)
    assert all(outcome.lags[0].total == 5 for each in outcomes for outcome in each)
    (client,) = clients
    assert client.asked[-2:] == [("committed_groups", 10), ("log_ranges", 2)]
    assert not [asked for asked in client.asked if asked[0] == "committed"]


def test_a_partition_that_was_added_since_the_last_poll_ends_no_wait(
    groups, clients, memory, commit, produce
):
    (group,), (topic,) = groups(1)
    names = {"group_id": group, "topics": topic, "max_lag": 0}
    waits = [LagWait(**names, on_no_commit=policy) for policy in ("earliest", "latest")]

    async def run():
        async with AsyncExitStack() as stack:
            polls = [aclosing(poll_repeatedly(wait, 0.05)) for wait in waits]
            streams = [await stack.enter_async_context(each) for each in polls]
            before = [await anext(each) for each in streams]
            memory.grow(topic, 2)
            produce(topic, {1: 5})
            commit(group, topic, {0: 5, 1: 0})
            added = [outcome for _ in range(3) for outcome in await asyncio.gather(*map(anext, streams))]
            commit(group, topic, {1: 5})

            async def ends(stream):  # polls from before the commit may be left
                while not (await anext(stream)).done:
                    pass

            await asyncio.wait_for(asyncio.gather(*map(ends, streams)), DEADLINE)
            return [*before, *added]

    assert not any(each.done for each in asyncio.run(run()))
    (client,) = clients
    assert sum(question == "partitions" for question, _ in client.asked) <= 5


def test_the_topics_of_a_checkpoint_without_backlog_are_checked_once_for_each_position(
    clients, make_topic, produce, new_query
):
    """An event trigger polls on after each poll without a backlog."""
    topic = make_topic(partitions=1)
    produce(topic, {0: 6})
    query = new_query({topic: {0: 5}})
    wait = LagWait(checkpoint_location=query.location, max_lag=1)

    async def run():
        async with aclosing(poll_repeatedly(wait, 0.05)) as outcomes:
            for batch in (2, 3):
                found = [await asyncio.wait_for(anext(outcomes), DEADLINE) for _ in range(4)]
                assert all(isinstance(outcome, Reading) and outcome.done for outcome in found)
                query.run(batch, {topic: {0: 6}})
        return clients[0].asked.count(("log_ids", 1))

    assert asyncio.run(run()) == 2


def test_a_topic_that_is_not_there_is_the_error_of_its_own_wait_only(groups, clients):
    (group,), (topic,) = groups(1)
    waits = [
        LagWait(group_id=group, topics="no-such-topic", max_lag=0),
        LagWait(group_id=group, topics=topic, max_lag=0),
    ]
    missing = ReachedWait(group_id=group, target={topic: {"0": 1}, "gone": {"0": 1}})
    bad, good, gone = poll_for([*waits, missing], times=2)
    assert all(isinstance(outcome, UnknownTopicPartitionError) for outcome in bad + gone)
    assert all(isinstance(outcome, Reading) for outcome in good)


def test_a_checkpoint_that_does_not_answer_keeps_nobody_else_waiting(groups, clients, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_poller, "PATIENCE", 0.5)
    (group,), (topic,) = groups(1)
    silent = LagWait(checkpoint_location=str(tmp_path), max_lag=0)
    release = threading.Event()
    monkeypatch.setattr(SparkCheckpoint, "read", lambda self: release.wait(DEADLINE))
    try:
        no_answer, answer = poll_for([silent, LagWait(group_id=group, topics=topic, max_lag=0)], times=2)
    finally:
        release.set()
    assert all("the storage did not answer within 0.5 s" in str(outcome) for outcome in no_answer)
    assert all(outcome.retriable for outcome in no_answer)
    assert all(isinstance(outcome, Reading) for outcome in answer)


@pytest.mark.parametrize("at_end", [False, True])
def test_a_storage_that_hangs_while_its_moves_are_read_keeps_nobody_else_waiting(
    groups, clients, monkeypatch, new_query, at_end
):
    monkeypatch.setattr(shared_poller, "PATIENCE", 0.5)
    (group,), (topic,) = groups(1)
    release = threading.Event()

    def hang(*_):
        release.wait(DEADLINE)
        return iter(())

    location = new_query({topic: {0: 5}}).location
    if at_end:
        waits = [LagWait(checkpoint_location=location, max_lag=0, tolerance=each) for each in range(3)]
        monkeypatch.setattr(ArchivedMoves, "batches_after", hang)
    else:
        # The newest move that names a cluster is read with the checkpoint, and that of the topics later.
        waits = [LagWait(group_id=group, checkpoint_location=location, max_lag=0)]
        monkeypatch.setattr(
            ArchivedMoves, "newest_with_cluster", lambda _, topics=(): hang() if topics else None
        )
    began = time.monotonic()
    try:
        *silent, answer = poll_for([*waits, LagWait(group_id=group, topics=topic, max_lag=0)], times=3)
        took = time.monotonic() - began
    finally:
        release.set()
    assert all("the storage did not answer within 0.5 s" in str(each) for found in silent for each in found)
    assert all(isinstance(outcome, Reading) for outcome in answer)
    assert took < 5


def test_a_late_answer_about_a_topic_is_not_taken_for_the_checkpoint_of_another_wait(
    clients, make_topic, produce, new_query, monkeypatch
):
    monkeypatch.setattr(shared_poller, "PATIENCE", 0.5)
    produce(topic := make_topic(partitions=1), {0: 5})
    location = new_query({topic: {0: 5}}).location
    judged, answered = [], threading.Event()

    class Judged(LagWait):
        def judge(self, client, positions):
            judged.append(client)
            if len(judged) == 2:
                answered.wait(DEADLINE)
            return super().judge(client, positions)

        def check_topics(self, client, checkpoint, positions):
            assert isinstance(checkpoint, KnownCheckpoint)
            # What comes late must not get into the answers of a later round.
            assert client not in judged
            if len(judged) == 1:
                time.sleep(0.6)  # longer than the patience
                answered.set()

    outcomes = poll_for([Judged(checkpoint_location=location, max_lag=0)] * 2, times=2)
    assert all("the storage did not answer" in str(first) for first, _ in outcomes)
    assert all(second.done for _, second in outcomes)


def test_topics_whose_check_takes_longer_than_a_round_are_checked_once(
    clients, make_topic, produce, new_query, monkeypatch
):
    """As with a hundred batches on a slow storage: the wait would never end."""
    monkeypatch.setattr(shared_poller, "PATIENCE", 0.05)
    produce(topic := make_topic(partitions=1), {0: 5})

    class Slow(LagWait):
        def check_topics(self, client, checkpoint, positions):
            time.sleep(0.2)

    wait = Slow(checkpoint_location=new_query({topic: {0: 5}}).location, max_lag=0)
    (outcomes,) = poll_for([wait], times=20)
    assert isinstance(outcomes[0], StorageError)
    assert isinstance(outcomes[-1], Reading)


def test_a_storage_that_refuses_is_opened_again_because_its_connection_may_be_corrected(
    groups, clients, monkeypatch, tmp_path
):
    (group,), (topic,) = groups(1)
    opened = []

    def read(checkpoint):
        if checkpoint is opened[0]:
            raise StorageError("the storage refuses access")
        raise CheckpointNotFoundError(str(tmp_path))

    def open_checkpoint(location, _):
        opened.append(SparkCheckpoint(location))
        return opened[-1]

    monkeypatch.setattr(SparkCheckpoint, "read", read)
    monkeypatch.setattr(poll, "spark_checkpoint", open_checkpoint)
    wait = LagWait(group_id=group, topics=topic, checkpoint_location=str(tmp_path), max_lag=0)
    ((refused, *later),) = poll_for([wait], times=3)
    assert isinstance(refused, StorageError)
    assert all(isinstance(outcome, Reading) for outcome in later)
    assert len(opened) == 2


# A UsageError, since a name of the brokers may lead to another cluster: a new client is on one cluster only.
@pytest.mark.parametrize("error", [BrokerError("authentication failed"), UsageError("lead to two clusters")])
def test_what_is_refused_is_tried_with_the_connection_as_it_is_then(groups, clients, monkeypatch, error):
    (group,), (topic,) = groups(1)
    log_ranges = CountingClient.log_ranges

    def refuse(client, partitions, **parameters):
        if client is clients[0]:
            raise error
        return log_ranges(client, partitions, **parameters)

    monkeypatch.setattr(CountingClient, "log_ranges", refuse)
    ((refused, *later),) = poll_for([LagWait(group_id=group, topics=topic, max_lag=0)], times=3)
    assert refused is error
    assert all(isinstance(outcome, Reading) for outcome in later)
    assert len(clients) == 2


def test_an_error_nobody_thought_of_ends_one_wait_and_not_the_thread(groups, clients, monkeypatch):
    (group,), (topic,) = groups(1)

    class Broken(LagWait):
        def judge(self, client, positions):
            raise ZeroDivisionError("oops")

    broken, fine = poll_for(
        [Broken(group_id=group, topics=topic, max_lag=0), LagWait(group_id=group, topics=topic, max_lag=0)],
        times=2,
    )
    assert all(isinstance(outcome, ZeroDivisionError) for outcome in broken)
    assert all(isinstance(outcome, Reading) for outcome in fine)

    class BrokenTrigger(ConsumerGroupLagTrigger):
        wait_class = Broken

    async def run():
        trigger = BrokenTrigger(group_id=group, topics=topic, max_lag=0, poll_interval=0.1)
        return await anext(trigger.run())

    event = asyncio.run(run()).payload
    assert (event["status"], event["message"]) == ("error", "oops")


def test_a_wait_that_is_cancelled_leaves_the_others_alone(groups, clients, commit):
    (group,), (topic,) = groups(1)

    async def run():
        def start():
            trigger = again(
                ConsumerGroupLagTrigger(group_id=group, topics=topic, max_lag=0, poll_interval=0.1)
            )
            return asyncio.create_task(anext(trigger.run()))

        cancelled, going_on = start(), start()
        await until_async(lambda: clients and clients[0].asked, "both to be under way")
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await asyncio.to_thread(commit, group, topic, {0: 5})
        return await asyncio.wait_for(going_on, DEADLINE)

    assert asyncio.run(run()).payload["status"] == "done"
    assert len(clients) == 1


def test_a_thread_that_ended_is_replaced(groups, clients, monkeypatch):
    (group,), (topic,) = groups(1)
    broken = [RuntimeError("can't start new thread")]
    read = shared_poller.SharedPoller._read_checkpoints

    def read_checkpoints(self, batch, storage):
        if broken:
            raise broken.pop()
        return read(self, batch, storage)

    monkeypatch.setattr(shared_poller.SharedPoller, "_read_checkpoints", read_checkpoints)
    ((error, answer),) = poll_for([LagWait(group_id=group, topics=topic, max_lag=0)], times=2)
    assert "can't start new thread" in str(error)
    assert isinstance(answer, Reading)


def test_a_connection_that_was_changed_counts_for_new_and_old_waits(groups, monkeypatch):
    """The pipeline was moved to another cluster, and the old one answers as before."""
    monkeypatch.setattr(poll, "RECHECK", 0.2)
    (group,), (topic,) = groups(1)
    wait = LagWait(group_id=group, topics=topic, max_lag=0)
    elsewhere = filled_broker(range(9), topic=topic)

    async def run():
        async with aclosing(poll_repeatedly(wait, 0.05)) as old, aclosing(poll_repeatedly(wait, 0.05)) as new:
            before = await asyncio.wait_for(anext(old), DEADLINE)
            connection = {"conn_type": "kafka", "extra": elsewhere.config()}
            monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
            first = await asyncio.wait_for(anext(new), DEADLINE)
            await asyncio.sleep(0.2)
            return before, first, await asyncio.wait_for(anext(old), DEADLINE)

    with open_client(elsewhere) as client:
        client.commit(group, {TopicPartition(topic, 0): 0})
    assert [reading.as_json()["total_lag"] for reading in asyncio.run(run())] == [5, 9, 9]


def test_a_slow_answer_of_airflow_is_not_cut_off(groups, monkeypatch):
    """In Airflow 3.1, each later request of the triggerer would get the answer to the one before it."""
    monkeypatch.setattr(poll, "RECHECK", 0.0)
    monkeypatch.setattr(poll, "CALL", 0.1)
    (group,), (topic,) = groups(1)
    read, ends, answered = KafkaOffsetsHook.client_config, [], asyncio.Event()

    async def send():
        try:
            if ends:
                await answered.wait()
        except asyncio.CancelledError:
            ends.append("cut off")
            raise
        ends.append("answered")

    def client_config(hook):
        async_to_sync(send)()
        return read(hook)

    async def run():
        wait = LagWait(group_id=group, topics=topic, max_lag=0)
        async with aclosing(poll_repeatedly(wait, 0.05)) as outcomes:
            for _ in range(2):  # no second request before the first one is answered
                assert isinstance(await asyncio.wait_for(anext(outcomes), DEADLINE), Reading)
            answered.set()
            await until_async(lambda: len(ends) > 1, "the answer")
            await asyncio.sleep(0.2)

    monkeypatch.setattr(KafkaOffsetsHook, "client_config", client_config)
    asyncio.run(run())
    assert ends == ["answered", "answered"]


def test_another_token_function_is_a_changed_connection():
    """A new function object of the same name is not: callbacks are imported or made at each reading."""

    class Login:
        def token(self, _):
            return "token", 0.0

    def settings(oauth_cb):
        return plain_settings({"bootstrap.servers": "kafka:9092", "oauth_cb": oauth_cb})

    assert settings(Login().token) == settings(Login().token)
    assert settings(partial(max, 1)) == settings(partial(max, 1))
    assert settings(max) != settings(min)


def request(interval, longest=None, ends=float("inf"), group="g"):
    unused: Any = None
    return PollRequest(
        LagWait(group_id=group, max_lag=0), interval, longest or interval, ends, unused, outcomes=unused
    )


def polled_at(requests, until, took=0.5):
    """When each wait is polled: as the poller does it, on a clock of the test's own."""
    now, times = 0.0, {each: [] for each in requests}
    while now < until:
        near = [each for each in requests if each.early <= now]
        if not any(each.due <= now for each in near):
            now = min(each.due for each in requests)
            continue
        for each in near:
            times[each].append(now)
            each.schedule(now, 1.0)
        now += took
    return times


def test_a_long_interval_beside_a_short_one_stays_long():
    short, long = request(10.0), request(3600.0)
    times = polled_at([short, long], until=8 * 3600)[long]
    assert len(times) in (8, 9)


def test_an_interval_that_grows_beside_a_steady_one_grows_as_it_would_alone():
    def grown(*others):
        growing = request(60.0, longest=3600.0)
        return len(polled_at([growing, *others], until=6 * 3600)[growing])

    assert abs(grown() - grown(request(10.0))) <= 2


def test_the_last_poll_is_at_the_end_of_the_wait():
    growing = request(60.0, longest=100_000.0, ends=5_000.0)
    assert 5_000.0 in polled_at([growing], until=6_000)[growing]


def test_a_checkpoint_that_is_not_there_is_an_error_only_where_it_is_the_position(groups, clients, tmp_path):
    (group,), (topic,) = groups(1)
    location = str(tmp_path / "later")
    position = LagWait(checkpoint_location=location, max_lag=0)
    beside = LagWait(group_id=group, topics=topic, checkpoint_location=location, max_lag=0)
    missing, answer = poll_for([position, beside], times=2)
    assert all("later" in str(outcome) for outcome in missing)
    assert all(isinstance(outcome, Reading) for outcome in answer)


def test_trouble_of_some_is_put_behind_the_others(groups, clients, monkeypatch):
    """Two waits that each take all of a round's patience do not keep a third one from its polls for good."""
    monkeypatch.setattr(shared_poller, "PATIENCE", 0.05)
    (group,), (topic,) = groups(1)

    class Away(LagWait):
        def find_positions(self, client, state):
            time.sleep(0.06)  # longer than the patience
            raise BrokerUnavailableError("away", code="_TRANSPORT")

    waits = [
        Away(group_id="a", max_lag=0),
        Away(group_id="b", max_lag=0),
        LagWait(group_id=group, topics=topic, max_lag=0),
    ]
    *_, outcomes = poll_for(waits, times=3)
    assert isinstance(outcomes[-1], Reading)
