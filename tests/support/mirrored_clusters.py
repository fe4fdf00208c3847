"""
Two Kafkas and a real MirrorMaker 2 between them, which copies topics in two ways, for the tests of failovers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from breakable_kafka import BreakableKafka
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from airflow_kafka_offsets.checkpoint.failover_data_file import write_failover_data
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.record_reads import Record
from airflow_kafka_offsets.local.mirror_maker import IDENTITY, MirrorMaker, mirror_settings
from airflow_kafka_offsets.model.failover_data import FailoverData
from airflow_kafka_offsets.model.failover_plan import TranslatedPartition
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.translation import Translation
from airflow_kafka_offsets.readings.failover import (
    complete_failover_data,
    gather_failover_data,
    translate_sources,
)
from airflow_kafka_offsets.readings.mirror import last_reads

SYNCS = {"same": "mm2-offset-syncs.source.internal", "other": "mm2-offset-syncs.other.internal"}
MIRRORS = {
    "same": Mirror("standby", syncs_topic=SYNCS["same"]),
    "other": Mirror("standby", prefix="other.", syncs_topic=SYNCS["other"]),
}
"""
``same``: topics keep their names, and aborted records are copied as real ones. ``other``: they get a prefix,
and aborted records are left out.
"""
_BROKER = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    # The records are of 2023.
    "log.retention.ms": "-1",
}
START = 1_700_000_000_000
READ = {0: 70, 1: 55}
"""Positions of queries in a filled topic."""


class Written(NamedTuple):
    """A record of the source, and where it is on the mirror."""

    upstream: int
    copies: list[int]


@dataclass
class Mirrored:
    """
    The pair: ``same`` and ``other`` are the prefixes of topics that are mirrored in one way or the other.
    """

    source: str
    target: str
    maker: MirrorMaker
    clients: dict[str, OffsetsClient] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def on_source(self) -> OffsetsClient:
        return self.clients[self.source]

    @property
    def on_target(self) -> OffsetsClient:
        return self.clients[self.target]

    def topic(self, way: str = "same", partitions: int = 1, **config: str) -> str:
        """Create a topic on the source."""
        name = f"{way}-{next(self.numbers)}"
        admin = AdminClient({"bootstrap.servers": self.source, "log_level": 0})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        self.until(lambda: name in self.on_source.partitions([name]), f"topic {name}")
        return name

    def filled_topic(self, way: str = "other") -> str:
        """Create a topic of two partitions with 100 records in each, and wait for the mirror."""
        name = self.topic(way, partitions=2)
        for number in READ:
            produce(self.source, name, 100, partition=number, first=1_000 * number)
        self.wait_for_copy(way, name)
        return name

    def committed(self, group: str, copy: str) -> dict[int, int | None]:
        """Where a group is in two partitions of a topic on the mirror."""
        found = self.on_target.committed(group, [TopicPartition(copy, number) for number in READ])
        return {tp.partition: commit and commit.offset for tp, commit in found.items()}

    def kept(self, tp: TopicPartition, at: int) -> FailoverData:
        """What a commit keeps of a position: the last record before it."""
        logs = self.on_source.log_ranges([tp])
        read = {tp: [last] for tp, last in last_reads(self.on_source, {tp: at}, logs).items()}
        return FailoverData().with_position(1, 1, "", read, {tp: logs[tp].end})

    def translate(
        self,
        mirror: Mirror,
        tp: TopicPartition,
        at: int,
        kept: FailoverData = FailoverData(),  # noqa: B008  # it is frozen
        *,
        alive: bool = True,
    ) -> TranslatedPartition:
        """Translate a position, with or without the source."""
        sources = {"0": {tp: at}}
        source = self.on_source if alive else None
        data, logs, _ = complete_failover_data(source, self.on_target, mirror, sources, kept)
        (found,) = translate_sources(self.on_target, mirror, sources, data, logs)
        return found

    def compact(self, tp: TopicPartition, fewer_than: int) -> None:
        """Let the source compact a topic, and wait until fewer records are left."""
        alter_topic(self.source, tp.topic, {"cleanup.policy": "compact"})
        self.until(lambda: len(self.records(self.on_source, tp)) < fewer_than, f"the compaction of {tp}")

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the first records of a topic on the mirror, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.target, "log_level": 0})
        for deleted in admin.delete_records(
            [ClientPartition(topic, *each) for each in before.items()]
        ).values():
            deleted.result(30)

    def until(self, condition: Any, what: str, seconds: float = 60.0) -> None:
        self.maker.wait(condition, what, seconds)

    def wait_for_copy(self, way: str, topic: str) -> None:
        """Wait until the newest committed record of each partition of a topic is on the mirror."""
        mirror, numbers = MIRRORS[way], self.on_source.partitions([topic])[topic]
        self.until(lambda: mirror.topic(topic) in self.on_target.partitions([mirror.topic(topic)]), topic)
        for number in numbers:
            wanted = self.values(self.on_source, TopicPartition(topic, number))[-1:]
            copy = mirror.partition(TopicPartition(topic, number))
            self.until(
                lambda w=wanted, c=copy: {*w} <= {*self.values(self.on_target, c)}, f"{copy}: {wanted}"
            )

    def values(self, client: OffsetsClient, tp: TopicPartition) -> list[bytes | None]:
        """Return the values of all committed records."""
        return [record.value for record in self.records(client, tp, committed=True)]

    def records(self, client: OffsetsClient, tp: TopicPartition, *, committed: bool = False) -> list[Record]:
        found: list[Record] = []
        log = client.log_ranges([tp])[tp]
        client.read_records(
            {tp: OffsetRange(*log)},
            lambda _, record: found.append(record),
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        return found

    def truth(self, way: str, tp: TopicPartition) -> Truth:
        """Read both logs; each value must be another one."""
        copies: dict[bytes | None, list[int]] = {}
        copy = MIRRORS[way].partition(tp)
        for record in self.records(self.on_target, copy):
            copies.setdefault(record.value, []).append(record.offset)
        written = [
            Written(record.offset, copies[record.value])
            for record in self.records(self.on_source, tp)
            if record.value in copies
        ]
        return Truth(written, self.on_target.log_ranges([copy])[copy].end)


@dataclass
class Truth:
    """What the logs of both clusters hold, read as a whole."""

    written: Sequence[Written]
    end: int

    def lost(self, position: int, at: int) -> int:
        """Records at or after a position that are passed over from a place on the mirror."""
        return sum(each.upstream >= position and max(each.copies) < at for each in self.written)

    def again(self, position: int, at: int) -> int:
        """Records before a position that are read from there."""
        return sum(copy >= at for each in self.written if each.upstream < position for copy in each.copies)

    def check(self, position: int, found: Translation) -> None:
        """Check that nothing is lost, and no more is read again than a translation says."""
        assert found.offset is not None, (position, found)
        assert self.lost(position, found.offset) == 0, (position, found)
        assert self.again(position, found.offset) <= found.again, (position, found)


@contextmanager
def mirrored_clusters(directory: Path, **settings: str) -> Iterator[Mirrored]:
    """Start both clusters and the mirror."""
    with (
        BreakableKafka(properties=_BROKER) as source,
        BreakableKafka(properties=_BROKER) as target,
    ):
        servers = source.bootstrap_servers, target.bootstrap_servers
        both = {
            **mirror_settings(*servers, ["same-.*"], ["same-.*"]),
            "clusters": "source, other, target",
            "other.bootstrap.servers": servers[0],
            "other->target.enabled": "true",
            "other->target.topics": "other-.*",
            "other->target.groups": "other-.*",
            "other.consumer.isolation.level": "read_committed",
            "replication.policy.class": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
            "source->target.replication.policy.class": IDENTITY,
            **settings,
        }
        with MirrorMaker(directory, both, heap="512m") as maker:
            mirrored = Mirrored(*servers, maker)
            for each in servers:
                mirrored.clients[each] = OffsetsClient({"bootstrap.servers": each})
            try:
                yield mirrored
            finally:
                for client in mirrored.clients.values():
                    client.close()


def keep_failover_data(
    source: OffsetsClient, target: OffsetsClient, checkpoint: SparkCheckpoint, mirror: Mirror
) -> FailoverData:
    """Keep beside a checkpoint what a failover needs, as a commit does."""
    kept = gather_failover_data(source, target, checkpoint, mirror)
    write_failover_data(checkpoint, kept)
    return kept


def alter_topic(servers: str, topic: str, settings: dict[str, str]) -> None:
    """Change settings of a topic."""
    to = AlterConfigOpType.SET
    changes = [ConfigEntry(name, value, incremental_operation=to) for name, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce(
    servers: str, topic: str, records: int, *, partition: int = 0, first: int = 0, **options: Any
) -> None:
    """Write records with the values ``first``, ``first + 1`` and so on, a second apart."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 5, **options})
    for number in range(first, first + records):
        producer.produce(topic, b"%d" % number, partition=partition, timestamp=START + 1_000 * number)
        producer.poll(0)
    assert producer.flush(60) == 0


def produce_in_transactions(
    servers: str,
    topic: str,
    records: int,
    *,
    partition: int = 0,
    first: int = 0,
    seed: int = 7,
    resent: bool = False,
) -> None:
    """
    Write transactions of one to nine records, a fifth of which are aborted.

    :param resent: an aborted transaction is sent again, with the same records.
    """
    chance = random.Random(seed)
    settings = {
        "bootstrap.servers": servers,
        "transactional.id": f"{topic}-{partition}-{first}",
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.init_transactions(30)
    number = first
    while number < first + records:
        size = chance.randint(1, 9)
        aborts = chance.random() < 0.2
        for abort in [True, False] if aborts and resent else [aborts]:
            producer.begin_transaction()
            for each in range(number, number + size):
                producer.produce(topic, b"%d" % each, partition=partition, timestamp=START + 1_000 * each)
            assert producer.flush(30) == 0
            producer.abort_transaction(30) if abort else producer.commit_transaction(30)
        number += size


def produce_by_keys(servers: str, topic: str, records: int, *, keys: int, first: int = 0) -> None:
    """Write records of few keys, for a topic that is compacted."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 5})
    chance = random.Random(first)
    for number in range(first, first + records):
        key = b"%d" % chance.randrange(keys)
        producer.produce(topic, b"%d" % number, key, 0, timestamp=START + number)
        if number % 100 == 99:  # a batch of its own, and so a segment
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0
