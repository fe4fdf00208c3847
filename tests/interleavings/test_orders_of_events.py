"""Batches, ends, other listeners, commit tasks, resets, and a broker that is away: in any order."""

from itertools import product
from typing import Any

import pytest
from memory_broker import filled_broker
from memory_clients import connected, open_client
from written_query import offset_log

from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.listener import committer as committer_module
from airflow_kafka_offsets.spark.listener import runs
from airflow_kafka_offsets.spark.listener.committer import Committer
from airflow_kafka_offsets.spark.listener.queries import SourceState

ORDERS = TopicPartition("orders", 0)
STEPS = ("batch", "unheard_batch", "idle", "work", "wait", "broker", "reset", "restart", "listener", "task")


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Run:
    """A run of the query: it begins where the checkpoint is, and does not notice when that is moved."""

    query_id = name = "q-1"

    def __init__(self, world):
        self.world, self.at, self.active = world, world.checkpoint, True

    def is_active(self):
        return self.active

    def sources(self):
        return [SourceState("orders", {"kafka.bootstrap.servers": "here"}, {ORDERS: self.at})]

    def newest_batch(self):
        return self.world.batch

    def planned(self, batch):
        if batch != self.world.batch:
            return None
        return parse_offset_log(offset_log({"orders": {0: self.world.checkpoint}}), "offsets")

    def since_moves(self, batch, topics):
        return None

    def moved_to(self, topics):
        return None

    def newest_move(self):
        return self.world.move

    def forget(self):
        pass


class World:
    """A query with its checkpoint, its group, and the committer that follows it."""

    def __init__(self, clock, client):
        self.clock, self.client, self.away = clock, client, False
        self.checkpoint, self.batch, self.move, self.runs = 0, -1, 0, 0
        self.run: Any = None
        self.committer: Committer
        self.committers: list[Committer] = []
        self.listener()
        self.start()
        self.batch_with_event()
        self.work()

    def __getattr__(self, call):
        """The client's calls; none is answered while the broker is away."""

        def answer(*given, **named):
            if self.away:
                raise BrokerUnavailableError("no answer")
            return getattr(self.client, call)(*given, **named)

        return answer

    def close(self):
        pass

    def listener(self):
        """Stop the listener, and make another one."""
        if self.run is not None:
            self.flush()
            self.committer.close()
        self.committer = Committer(lambda settings: self, group_id="g")
        self.committers.append(self.committer)
        if self.run is not None:
            self.committer.follow(self.run_id, self.run)

    def start(self):
        self.runs, self.run = self.runs + 1, Run(self)
        self.run_id = f"run-{self.runs}"
        self.committer.follow(self.run_id, self.run)

    def unheard_batch(self):
        self.run.at, self.batch = self.run.at + 3, self.batch + 1
        self.checkpoint = self.run.at

    def batch_with_event(self):
        self.unheard_batch()
        self.committer.record_finished(self.run_id, self.batch)

    def idle(self):
        self.committer.record_idle(self.run_id)

    def work(self):
        self.clock.now += 2
        self.committer.commit_due()

    def wait(self):
        self.clock.now += 4000

    def broker(self):
        self.away = not self.away

    def reset(self):
        """Move checkpoint and group, after a time without batches."""
        self.work()
        if not self.away:
            self.clock.now += 10
            self.move, self.checkpoint = self.move + 1, 1
            self.commit_as("reset")

    def task(self):
        """Commit the checkpoint in a task, which does not move the group back."""
        if not self.away and self.group() <= self.checkpoint:
            self.commit_as("commit")

    def commit_as(self, tool):
        made = CommitMetadata(tool=tool, query="q-1", move=self.move, batch=self.batch)
        self.client.commit("g", {ORDERS: self.checkpoint}, made.text())

    def stop(self):
        self.run.active = False

    def restart(self):
        self.stop()
        self.start()

    def flush(self):
        self.committer.flush(5)

    def play(self, step):
        getattr(self, "batch_with_event" if step == "batch" else step)()

    def group(self):
        return self.client.committed("g", [ORDERS])[ORDERS].offset


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (committer_module, runs):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_after_any_three_steps_a_group_without_an_error_is_where_its_checkpoint_is(clock):
    broker, wrong = filled_broker(range(100)), []
    with connected():
        client = open_client(broker)
        for order in product(STEPS, repeat=3):
            broker.forget("g")
            world = World(clock, client)
            for step in order:
                world.play(step)
            world.stop()
            world.away = False
            world.flush()
            errors = [error for each in world.committers for error in each.outcomes.errors]
            if not errors and world.group() != world.checkpoint:
                wrong.append((*order, world.group(), world.checkpoint))
    assert wrong == []
