"""
Do random resets of random groups lead where Kafka's own tool leads?

Each batch is one reset of one or several groups: ours on some, Kafka's tool on twins that have committed the
same. A case is one group in a batch. Where Kafka's tool takes another offset than the one it was asked for,
or none was to be had, ours must refuse and change nothing; told to clamp, it must do as Kafka's tool does.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_groups
from airflow_kafka_offsets.moves.groups import plan_group_resets
from airflow_kafka_offsets.readings.places import read_place

pytestmark = pytest.mark.integration

SEED = 20261121
DEADLINE = 30.0
KEPT = {"retention.ms": "-1"}
HOUR = timedelta(hours=1)
ZONES = [None, timezone.utc, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-3))]
WORKERS = 2

BATCHES = {
    "earliest": 4,
    "latest": 4,
    "current": 6,
    "offset": 8,
    "shift": 8,
    "datetime": 10,
    "duration": 6,
    "file": 6,
}
"""Scenario -> number of batches."""

FIXED = {"earliest": "earliest", "latest": "latest", "current": "committed"}
"""Scenario -> our place, where nothing is left to chance."""

AT_LEAST = {
    ("earliest", "exact"): 20,
    ("latest", "exact"): 20,
    ("current", "exact"): 10,
    ("current", "no commit"): 5,
    ("current", "commit outside"): 4,
    ("offset", "exact"): 15,
    ("offset", "clamped"): 15,
    ("shift", "exact"): 3,
    ("shift", "clamped"): 15,
    ("shift", "no commit"): 10,
    ("datetime", "exact"): 15,
    ("datetime", "deleted"): 5,
    ("datetime", "future"): 15,
    ("duration", "exact"): 15,
    ("duration", "deleted"): 5,
    ("file", "exact"): 10,
    ("file", "clamped"): 10,
}
"""Scenario and verdict -> number of cases that there must be."""


@dataclass
class World:
    """What is on the broker."""

    now: datetime
    logs: dict[TopicPartition, LogRange] = field(default_factory=dict)
    first: dict[TopicPartition, datetime] = field(default_factory=dict)
    """Time of the record at the log start, where that is not 0."""

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(tp.topic for tp in self.logs))


@pytest.fixture(scope="module")
def world(bootstrap_servers, make_topic, produce, delete_records):
    """
    Logs with records of whole hours ago.

    Among them are empty ones, ones whose first or all records were deleted, ones with records in no order of
    their times, and ones with transactions.
    """
    now = datetime.now(tz=timezone.utc)
    # Kafka's times are whole milliseconds.
    world, rng = World(now.replace(microsecond=now.microsecond // 1000 * 1000)), random.Random(SEED)

    def ago(hours):
        return int((world.now - hours * HOUR).timestamp() * 1000)

    plain, trimmed, mixed, transactions = (make_topic(count, KEPT) for count in (4, 4, 3, 2))
    sizes = {plain: {0: 40, 1: 25, 2: 60}, trimmed: {0: 30, 1: 20, 2: 25, 3: 15}, mixed: {0: 30, 1: 12}}
    for topic, partitions in sizes.items():
        hours = {
            number: sorted((rng.randrange(2, 60) for _ in range(size)), reverse=True)
            for number, size in partitions.items()
        }
        if topic == mixed:
            for each in hours.values():
                rng.shuffle(each)
        produce(topic, partitions, {number: [ago(hour) for hour in each] for number, each in hours.items()})
        if topic == trimmed:
            starts = {0: 10, 1: 20, 2: 5}
            delete_records(topic, starts)
            for number in (0, 2):
                world.first[TopicPartition(topic, number)] = world.now - hours[number][starts[number]] * HOUR
    ends = write_transactions(bootstrap_servers, transactions, ago)
    for topic, count in ((plain, 4), (trimmed, 4), (mixed, 3), (transactions, 2)):
        world.logs |= read_logs(bootstrap_servers, topic, count, ends)
    return world


def write_transactions(bootstrap_servers, topic, ago):
    """Write some that are committed and one that is aborted to two partitions, and return the log ends."""
    ends = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(DEADLINE)
    for hour, size, end in (
        (50, 5, producer.commit_transaction),
        (40, 4, producer.abort_transaction),
        (30, 3, producer.commit_transaction),
    ):
        producer.begin_transaction()
        for number in range(size):
            producer.produce(topic, b"x", partition=number % 2, timestamp=ago(hour))
            ends[TopicPartition(topic, number % 2)] += 1
        assert producer.flush(DEADLINE) == 0
        end(DEADLINE)
        # The marker.
        ends = {tp: offset + 1 for tp, offset in ends.items()}
    return ends


def read_logs(bootstrap_servers, topic, count, ends):
    """Read what the partitions of a topic hold, when they are known to hold so much."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "log_level": 0})
    logs, deadline = {}, time.monotonic() + DEADLINE
    while len(logs) < count:
        # The last marker is written when the transaction has ended.
        assert time.monotonic() < deadline, "the transaction did not end"
        tp = TopicPartition(topic, len(logs))
        log = LogRange(*consumer.get_watermark_offsets(ClientPartition(*tp), timeout=DEADLINE))
        if log.end >= ends.get(tp, 0):
            logs[tp] = log
    consumer.close()
    return logs


@dataclass
class Batch:
    """One reset: what the groups have committed, and what is asked of them all."""

    world: World
    scenario: str
    turn: int
    """How many batches with the scenario were before it: what is rare by chance has its turn."""
    rng: random.Random
    commits: list[dict[TopicPartition, int]] = field(init=False)
    topics: list[str] = field(init=False)
    """As ``--topic``; empty for all topics."""
    value: Any = None
    moment: datetime | None = None
    file: list[dict[TopicPartition, int]] = field(default_factory=list)

    def __post_init__(self):
        groups = (1, 7, 7, 10)[self.turn % 4]
        self.commits = [self._some(0.1 if self.scenario == "current" else 0) for _ in range(groups)]
        self.topics = self._scope()
        if self.scenario in FIXED:
            self.value = FIXED[self.scenario]
        else:
            getattr(self, f"_{self.scenario}")()

    def _some(self, outside):
        """Offsets of some partitions, of one at least; such a share of them is outside the log."""
        most = self.rng.random() < 0.5
        found = {}
        while not found:
            for tp, log in self.world.logs.items():
                if most or self.rng.random() < 0.5:
                    found[tp] = self.rng.randint(*log)
                    if self.rng.random() < outside:
                        found[tp] = self.rng.choice([max(0, log.start - 3), log.end + 4])
        return found

    def _scope(self):
        everything = self.turn % 2 == 0 if self.scenario in ("current", "shift") else self.turn % 4 == 2
        if everything:
            return []
        scope = []
        for topic in self.rng.sample(self.world.topics, self.rng.choice([1, 1, 2, 3])):
            numbers = [tp.partition for tp in self.world.logs if tp.topic == topic]
            if self.rng.random() < 0.6:
                some = sorted(self.rng.sample(numbers, self.rng.randint(1, len(numbers))))
                scope.append(f"{topic}:{','.join(map(str, some))}")
            else:
                scope.append(topic)
        return scope

    def _offset(self):
        if self.turn % 4 == 3:
            self.value = self.rng.choice([0, 10, 70])
            return
        self.value = self.rng.randint(*self.rng.choice(list(self.world.logs.values())))
        if self.turn % 4 != 2:
            fits = [tp for tp, log in self.world.logs.items() if self.value in log]
            self.topics = [f"{tp.topic}:{tp.partition}" for tp in fits]

    def _shift(self):
        self.value = self.rng.choice([0, 1, -1, 2] if self.turn % 4 < 2 else [-5, 12, -12, 100])

    def _hours(self):
        if self.turn % 3 != 1:
            return self.rng.randint(1, 61)
        trimmed = next(iter(self.world.first)).topic
        self.topics = [topic for topic in self.topics if not topic.startswith(trimmed)] + [trimmed]
        return self.rng.randint(45, 61)

    def _datetime(self):
        if self.turn % 4 == 3:
            moment = self.world.now + self.rng.choice([1, 24 * 400]) * HOUR
        else:
            moves = timedelta(milliseconds=self.rng.choice([-1, 0, 0, 1, 1_800_000]))
            moment = self.world.now - self._hours() * HOUR + moves
        self.moment = moment
        zone = self.rng.choice(ZONES)
        text = moment.astimezone(zone or timezone.utc).isoformat(timespec="milliseconds")
        self.value = text if zone else text.removesuffix("+00:00")

    def _duration(self):
        hours = self._hours()
        # Half an hour from the next record, so that it does not matter when it is looked up.
        self.moment = self.world.now - hours * HOUR - HOUR / 2
        days, rest = divmod(hours, 24)
        self.value = self.rng.choice([f"PT{hours}H30M", f"P{days}DT{rest}H30M", f"PT{hours * 60 + 30}M"])

    def _file(self):
        self.topics = []
        outside = (0, 0.15)[self.turn % 2]
        self.file = [self._some(outside) for _ in self.commits]

    def in_scope(self, tp):
        return tp in TopicScope.parse(self.topics or None)

    def flags(self, file):
        """What to give to Kafka's tool."""
        if self.scenario == "file":
            return ["--from-file", str(file)]
        scope = [word for topic in self.topics for word in ("--topic", topic)] or ["--all-topics"]
        if self.scenario in FIXED:
            return [*scope, f"--to-{self.scenario}"]
        name = {"offset": "--to-offset", "shift": "--shift-by", "datetime": "--to-datetime"}
        return [*scope, name.get(self.scenario, "--by-duration"), str(self.value)]

    def parsed(self, file):
        """The same for ours."""
        names = {
            "file": "from_file",
            "shift": "shift_by",
            "datetime": "to_datetime",
            "duration": "by_duration",
        }
        return read_place(
            names.get(self.scenario, "to_offset"), file if self.scenario == "file" else self.value
        )

    def write(self, file, groups):
        lines = [
            f"{group},{tp.topic},{tp.partition},{offset}\n"
            if len(groups) > 1
            else f"{tp.topic},{tp.partition},{offset}\n"
            for group, offsets in zip(groups, self.file, strict=True)
            for tp, offset in offsets.items()
        ]
        file.write_text("".join(lines))

    def moved(self, number):
        """The partitions of a group that are to move."""
        if self.scenario == "file":
            return sorted(self.file[number])
        return sorted(
            tp for tp in (self.world.logs if self.topics else self.commits[number]) if self.in_scope(tp)
        )

    def judge(self, number):
        """Partition -> verdict on what is asked for it."""
        return {tp: self._judge(number, tp) for tp in self.moved(number)}

    def _judge(self, number, tp):
        log, held = self.world.logs[tp], self.commits[number].get(tp)
        if self.scenario in ("current", "shift") and held is None:
            return "no commit"
        if self.scenario == "current" and held not in log:
            return "commit outside"
        target = {"offset": self.value, "file": self.file[number].get(tp) if self.file else None}.get(
            self.scenario
        )
        if self.scenario == "shift":
            target = held + self.value
        if target is not None and target not in log:
            return "clamped"
        if self.moment is not None and self.moment > self.world.now:
            return "future"
        if self.moment is not None and tp in self.world.first and self.world.first[tp] > self.moment:
            return "deleted"
        return "exact"

    def differing(self, number):
        """Partition -> what ours holds in the end where Kafka's tool has another answer, or none."""
        expected = {}
        for tp, verdict in self.judge(number).items():
            log, held = self.world.logs[tp], self.commits[number].get(tp)
            if verdict == "commit outside":
                expected[tp] = min(max(held, log.start), log.end)
            if self.scenario == "shift" and "no commit" in self.judge(number).values():
                stands = log.end if held is None else held
                expected[tp] = min(max(stands + self.value, log.start), log.end)
        return expected


WORST = ["no commit", "commit outside", "clamped", "future", "deleted", "exact"]


def check(batch, client, oracle, new_group, folder):
    """Do it both ways, compare, and return the verdict on each group."""
    mine, theirs = ([new_group() for _ in batch.commits] for _ in range(2))
    before = dict(zip(mine, batch.commits, strict=True))
    oracle.commit(before | dict(zip(theirs, batch.commits, strict=True)))
    if batch.file:
        batch.write(folder / "ours.csv", mine)
        batch.write(folder / "theirs.csv", theirs)
    verdicts = [
        min(batch.judge(number).values(), key=WORST.index, default="exact") for number in range(len(mine))
    ]

    scopes = dict.fromkeys(mine, TopicScope.parse(batch.topics or None))
    scenario = batch.parsed(str(folder / "ours.csv"))
    now = datetime.now(tz=timezone.utc)
    plans = plan_group_resets(client, scopes, scenario, now=now)
    for verdict, plan in zip(verdicts, plans, strict=True):
        assert bool(plan.refusals) == (verdict != "exact"), (verdict, plan.refusals)
    if any(plan.refusals for plan in plans):
        with pytest.raises(PlanRefusedError):
            apply_groups(client, PipelinePlan(plans), CommitMetadata(tool="test"))
        assert oracle.committed(*mine) == before
        plans = plan_group_resets(
            client, scopes, scenario, now=now, on_out_of_range="clamp", on_no_commit="latest"
        )
    apply_groups(client, PipelinePlan(plans), CommitMetadata(tool="test"))

    # Where one group makes Kafka's tool fail, what becomes of the others is left to chance.
    runs = [[twin] for twin in theirs] if "no commit" in verdicts and batch.scenario == "shift" else [theirs]
    for groups in runs:
        result = oracle.reset(groups, *batch.flags(folder / "theirs.csv"), "--execute")
        fails = (
            len(groups) == 1
            and batch.scenario == "shift"
            and verdicts[theirs.index(groups[0])] == "no commit"
        )
        assert bool(result.error) == fails, result
    held = oracle.committed(*mine, *theirs)
    for number, (group, twin) in enumerate(zip(mine, theirs, strict=True)):
        assert held[group] == held[twin] | batch.differing(number), verdicts[number]
    return verdicts


@pytest.mark.long
def test_the_offsets_are_those_of_kafkas_tool(world, oracle, new_group, bootstrap_servers, tmp_path):
    wanted = [(scenario, turn) for scenario, count in BATCHES.items() for turn in range(count)]

    def work(worker):
        counts = Counter()
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
            for number in range(worker, len(wanted), WORKERS):
                batch = Batch(world, *wanted[number], random.Random(f"{SEED}/{number}"))
                folder = tmp_path / str(number)
                folder.mkdir()
                try:
                    verdicts = check(batch, client, oracle, new_group, folder)
                except Exception as error:
                    error.add_note(
                        f"seed {SEED}, batch {number}: {batch.flags(folder)}; commits {batch.commits}"
                    )
                    raise
                counts.update((batch.scenario, verdict) for verdict in verdicts)
        return counts

    with ThreadPoolExecutor(WORKERS) as pool:
        counts = sum(pool.map(work, range(WORKERS)), Counter())
    assert counts.total() >= 300
    assert {kind: count for kind, count in counts.items() if count < AT_LEAST.get(kind, 0)} == {}
    assert set(AT_LEAST) <= set(counts)
