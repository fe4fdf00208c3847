"""
Do random resets of random groups lead where Kafka's own tool leads?

Each batch is one reset of one or several groups: ours on some, Kafka's tool on twins that have committed the
same. A case is one group in a batch. Where Kafka's tool takes another offset than the one it was asked for,
or none was to be had, ours must refuse and change nothing; told to clamp, it must do as Kafka's tool does.
Where ours differs even then: see ``test_acceptance.py``.
"""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from deadlines import until

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

SEED = 10
BATCHES = 10
"""Of each scenario."""
KEPT = {"retention.ms": "-1"}
HOUR = timedelta(hours=1)
ZONES = [None, timezone.utc, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-3))]
WORKERS = 2

SCENARIOS = {
    "to-earliest": ("to_offset", {"exact"}),
    "to-latest": ("to_offset", {"exact"}),
    "to-current": ("to_offset", {"exact", "no commit"}),
    "to-offset": ("to_offset", {"exact", "clamped"}),
    "shift-by": ("shift_by", {"exact", "clamped"}),
    "to-datetime": ("to_datetime", {"exact", "deleted", "future"}),
    "by-duration": ("by_duration", {"exact", "deleted"}),
    "from-file": ("from_file", {"exact", "clamped"}),
}
"""An option of Kafka's tool -> our parameter, and the verdicts that its cases get."""
FIXED = {"to-earliest": "earliest", "to-latest": "latest", "to-current": "committed"}
"""An option without a value -> our value."""
WORST = ["no commit", "clamped", "future", "deleted", "exact"]


class World:
    """What is on the broker."""

    def __init__(self):
        now = datetime.now(tz=timezone.utc)
        # Kafka's times are whole milliseconds.
        self.now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        self.hours: list[int] = []
        """How long ago the records were written."""
        self.topics = {}
        """Topic -> its partitions."""
        self.logs: dict[TopicPartition, LogRange] = {}
        self.first: dict[TopicPartition, datetime] = {}
        """Time of the record at the log start, where that is not 0."""

    def ago(self, hours):
        return int((self.now - hours * HOUR).timestamp() * 1000)


@pytest.fixture
def world(broker, make_topic, produce, delete_records, send_in_transaction):
    """
    Logs with records of whole hours ago.

    Among them are empty ones, ones whose first or all records were deleted, ones with records in no order of
    their times, and ones with transactions.
    """
    world, rng = World(), random.Random(SEED)
    plain, trimmed, mixed, transactions = (make_topic(count, KEPT) for count in (4, 4, 3, 2))
    sizes = {plain: {0: 40, 1: 25, 2: 60}, trimmed: {0: 30, 1: 20, 2: 25, 3: 15}, mixed: {0: 30, 1: 12}}
    for topic, partitions in sizes.items():
        hours = {number: [rng.randrange(2, 60) for _ in range(size)] for number, size in partitions.items()}
        if topic != mixed:
            hours = {number: sorted(each, reverse=True) for number, each in hours.items()}
        world.hours += [hour for each in hours.values() for hour in each]
        produce(topic, partitions, {number: [*map(world.ago, each)] for number, each in hours.items()})
        if topic == trimmed:
            starts = {0: 10, 1: 20, 2: 5}
            delete_records(topic, starts)
            for number in (0, 2):
                world.first[TopicPartition(topic, number)] = world.now - hours[number][starts[number]] * HOUR
    in_transactions = [TopicPartition(transactions, number) for number in (0, 1)]
    for hour, abort in ((50, False), (40, True), (30, False)):
        for tp in in_transactions:
            send_in_transaction(tp, world.ago(hour), abort=abort)
    # A marker is written when its transaction has ended.
    until(lambda: {log.end for log in broker.log_ranges(in_transactions).values()} == {6}, "the markers")
    for topic, count in ((plain, 4), (trimmed, 4), (mixed, 3), (transactions, 2)):
        world.topics[topic] = [TopicPartition(topic, number) for number in range(count)]
        found = broker.log_ranges(world.topics[topic])
        world.logs |= {tp: found[tp] for tp in world.topics[topic]}
    return world


class Batch:
    """One reset: what the groups have committed, and what is asked of them all."""

    def __init__(self, world, scenario, rng):
        self.world, self.scenario, self.rng = world, scenario, rng
        self.commits = [self._offsets() for _ in range(rng.choice((1, 7, 10)))]
        self.topics, self.moment, self.file = [], None, [{} for _ in self.commits]
        """As ``--topic``, where none means all topics; the time; the offsets in the file."""
        # Kafka's tool fails where a partition has no commit to shift.
        if scenario not in ("shift-by", "from-file") and rng.random() < 0.7:
            self.topics = self._some_topics()
        self.value = FIXED[scenario] if scenario in FIXED else getattr(self, scenario.replace("-", "_"))()

    def _offsets(self, outside=0.0):
        """Offsets of some partitions, of one at least; such a share of them is outside the log."""
        share, found = self.rng.choice((0.5, 0.9)), {}
        while not found:
            for tp, log in self.world.logs.items():
                if self.rng.random() < share:
                    found[tp] = self.rng.randint(*log)
                    if self.rng.random() < outside:
                        found[tp] = self.rng.choice([max(0, log.start - 3), log.end + 4])
        return found

    def _some_topics(self):
        scope = []
        for topic in self.rng.sample([*self.world.topics], self.rng.choice([1, 1, 2, 3])):
            numbers = [tp.partition for tp in self.world.topics[topic]]
            some = sorted(self.rng.sample(numbers, self.rng.randint(1, len(numbers))))
            scope.append(f"{topic}:{','.join(map(str, some))}" if self.rng.random() < 0.6 else topic)
        return scope

    def to_offset(self):
        value = self.rng.randint(*self.rng.choice([*self.world.logs.values()]))
        if self.rng.random() < 0.5:
            fits = [tp for tp, log in self.world.logs.items() if value in log]
            self.topics = [f"{tp.topic}:{tp.partition}" for tp in fits]
        return value

    def shift_by(self):
        return self.rng.choice([0, 0, 1, -1, -5, 12, 100])

    def to_datetime(self):
        if self.rng.random() < 0.3:
            self.moment = self.world.now + self.rng.choice([1, 24 * 400]) * HOUR
        else:
            moves = timedelta(milliseconds=self.rng.choice([-1, 0, 0, 1]))
            self.moment = self.world.now - self.rng.choice(self.world.hours) * HOUR + moves
        zone = self.rng.choice(ZONES)
        text = self.moment.astimezone(zone or timezone.utc).isoformat(timespec="milliseconds")
        return text if zone else text.removesuffix("+00:00")

    def by_duration(self):
        hours = self.rng.randint(1, 61)
        # Half an hour from the next record, so that it does not matter when it is looked up.
        self.moment = self.world.now - hours * HOUR - HOUR / 2
        return f"P{hours // 24}DT{hours % 24}H30M"

    def from_file(self):
        self.file = [self._offsets(outside=self.rng.choice((0, 0.15))) for _ in self.commits]

    def flags(self, file):
        """What to give to Kafka's tool."""
        if self.scenario == "from-file":
            return ["--from-file", str(file)]
        scope = [word for topic in self.topics for word in ("--topic", topic)] or ["--all-topics"]
        return [*scope, f"--{self.scenario}", *([] if self.scenario in FIXED else [str(self.value)])]

    def write(self, file, groups):
        lines = [
            f"{group},{tp.topic},{tp.partition},{offset}\n"
            if len(groups) > 1
            else f"{tp.topic},{tp.partition},{offset}\n"
            for group, offsets in zip(groups, self.file, strict=True)
            for tp, offset in offsets.items()
        ]
        file.write_text("".join(lines))

    def judge(self, number):
        """The worst verdict on what is asked for the partitions of a group."""
        scope = TopicScope.parse(self.topics or None)
        moved = self.file[number] or (self.world.logs if self.topics else self.commits[number])
        return min((self._judge(number, tp) for tp in moved if tp in scope), key=WORST.index)

    def _judge(self, number, tp):
        log, held = self.world.logs[tp], self.commits[number].get(tp)
        if self.scenario == "to-current":
            return "no commit" if held is None else "exact"
        if self.scenario == "shift-by":
            target = held + self.value
        else:
            target = self.value if self.scenario == "to-offset" else self.file[number].get(tp)
        if target is not None and not log.start <= target <= log.end:
            return "clamped"
        if self.moment is not None and self.moment > self.world.now:
            return "future"
        deleted = self.moment is not None and self.world.first.get(tp, self.moment) > self.moment
        return "deleted" if deleted else "exact"


def check(batch, client, oracle, new_group, folder):
    """Do it both ways, compare, and return the verdict on each group."""
    mine, theirs = ([new_group() for _ in batch.commits] for _ in range(2))
    before = dict(zip(mine, batch.commits, strict=True))
    oracle.commit(before | dict(zip(theirs, batch.commits, strict=True)))
    batch.write(folder / "ours.csv", mine)
    batch.write(folder / "theirs.csv", theirs)
    verdicts = [batch.judge(number) for number in range(len(mine))]

    scopes = dict.fromkeys(mine, TopicScope.parse(batch.topics or None))
    value = str(folder / "ours.csv") if batch.value is None else batch.value
    place = read_place(SCENARIOS[batch.scenario][0], value)
    now = datetime.now(tz=timezone.utc)
    plans = plan_group_resets(client, scopes, place, now=now)
    for verdict, plan in zip(verdicts, plans, strict=True):
        assert bool(plan.refusals) == (verdict != "exact"), (verdict, plan.refusals)
    if any(plan.refusals for plan in plans):
        with pytest.raises(PlanRefusedError):
            apply_groups(client, PipelinePlan(plans), CommitMetadata(tool="test"))
        assert oracle.committed(*mine) == before
        plans = plan_group_resets(
            client, scopes, place, now=now, on_out_of_range="clamp", on_no_commit="latest"
        )
    apply_groups(client, PipelinePlan(plans), CommitMetadata(tool="test"))

    assert oracle.reset(theirs, *batch.flags(folder / "theirs.csv"), "--execute").error is None
    held = oracle.committed(*mine, *theirs)
    for verdict, group, twin in zip(verdicts, mine, theirs, strict=True):
        assert held[group] == held[twin], verdict
    return verdicts


@pytest.mark.long
def test_the_offsets_are_those_of_kafkas_tool(world, oracle, new_group, bootstrap_servers, tmp_path):
    wanted = [*SCENARIOS] * BATCHES

    def work(worker):
        counts = Counter()
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
            for number in range(worker, len(wanted), WORKERS):
                batch = Batch(world, wanted[number], random.Random(f"{SEED}/{number}"))
                folder = tmp_path / str(number)
                folder.mkdir()
                try:
                    verdicts = check(batch, client, oracle, new_group, folder)
                except Exception as error:
                    error.add_note(f"batch {number}: {batch.flags(folder)}; commits {batch.commits}")
                    raise
                counts.update((batch.scenario, verdict) for verdict in verdicts)
        return counts

    with ThreadPoolExecutor(WORKERS) as pool:
        counts = sum(pool.map(work, range(WORKERS)), Counter())
    assert counts.total() >= 300
    assert set(counts) == {(name, verdict) for name, (_, all_) in SCENARIOS.items() for verdict in all_}
