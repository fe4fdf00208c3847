"""Measures how long it takes to read the lag of one group."""

from __future__ import annotations

import contextlib

from cluster import Cluster
from measuring import Contestant, Section, Target, interleaved
from peers import BareClient, KafkaPython, described_lag
from raw import RawClient

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.readings.positions import group_positions, measure_lag

OURS = "ours"
OURS_OF_TOPIC = "ours, the topic's partitions looked up each time"
ONE_CALL = "confluent-kafka, one call for all partitions"
PYTHON = "kafka-python"
RAW = "raw protocol, the same three questions"
TOOL = "`kafka-consumer-groups --describe`, whole process"


def measure(cluster: Cluster, sizes: list[int], rounds: int) -> Section:
    python = KafkaPython(cluster)
    contestants = []
    with contextlib.ExitStack() as stack:
        for size in sizes:
            contestants += _contestants(cluster, stack.enter_context(cluster.client()), python, size)
        times = interleaved(contestants, rounds)
    section = Section("Lag of one group", times)
    section.notes.append(
        "All clients are given the partitions; ours and the raw protocol also read the log starts, to tell "
        "lag from lost records. A sensor that looks alone looks the partitions up each time, to see those "
        "that were added: the second line."
    )
    if 10_000 in sizes and 1_000 in sizes:
        many, fewer = _task(10_000), _task(1_000)
        section.targets = [
            Target(
                "Lag of 10,000 partitions: faster than one client call for all of them",
                times.ratio((many, ONE_CALL), (many, OURS)),
                5,
                at_least=True,
            ),
            Target(
                "Lag of 10,000 partitions: faster than kafka-python",
                times.ratio((many, PYTHON), (many, OURS)),
                1,
                at_least=True,
            ),
            *(
                Target(
                    f"Lag of {task}: times raw", times.ratio((task, OURS), (task, RAW)), 1.5, at_least=False
                )
                for task in (fewer, many)
            ),
            Target(
                "Lag of 10,000 partitions: times that of 1,000",
                times.ratio((many, OURS), (fewer, OURS)),
                12,
                at_least=False,
            ),
        ]
    return section


def measure_far(cluster: Cluster, sizes: list[int], rounds: int) -> list[Section]:
    """Measure over delayed connections to the broker; skipped if the broker was given by the user."""
    if not cluster.ways:
        return []
    contestants: list[Contestant] = []
    with contextlib.ExitStack() as stack:
        for size in sizes:
            partitions, group_id = cluster.partitions(size), cluster.name(f"far-{size}")
            for way in cluster.ways:
                client = stack.enter_context(cluster.client(way.servers))
                client.commit(group_id, {tp: tp.partition % 2 for tp in partitions})
                contestants += _far(client, RawClient(way.servers), group_id, partitions, way.delay)
        times = interleaved(contestants, rounds)
    targets = [
        Target(f"Lag of {task}: times raw", times.ratio((task, OURS), (task, RAW)), 1.5, at_least=False)
        for task in times.tasks
    ]
    note = "A process between client and broker delays each response by the given milliseconds."
    return [Section("Lag of one group, by the time of a round trip", times, targets, [note])]


def _far(
    client: OffsetsClient, raw: RawClient, group_id: str, partitions: list[TopicPartition], delay: int
) -> list[Contestant]:
    def ours() -> int:
        return measure_lag(client, group_id, committed_offsets(client.committed(group_id, partitions))).total

    task = f"{_task(len(partitions))}, +{delay} ms"
    return [
        Contestant(task, OURS, ours),
        Contestant(task, RAW, lambda: raw.lag({group_id: partitions})),
    ]


def _contestants(cluster: Cluster, client: OffsetsClient, python: KafkaPython, size: int) -> list[Contestant]:
    group_id, partitions = cluster.name(f"lag-{size}"), cluster.partitions(size)
    client.commit(group_id, {tp: tp.partition % 2 for tp in partitions})
    bare, scope = BareClient(cluster, group_id), TopicScope.parse(cluster.topic(size))
    raw = RawClient(cluster.servers)

    def ours() -> int:
        commits = client.committed(group_id, partitions)
        positions = committed_offsets(commits)
        return measure_lag(client, group_id, positions).total

    def ours_of_topic() -> int:
        return measure_lag(client, group_id, group_positions(client, group_id, scope)).total

    task = _task(size)
    return [
        Contestant(task, OURS, ours),
        Contestant(task, OURS_OF_TOPIC, ours_of_topic),
        Contestant(task, ONE_CALL, lambda: bare.lag_in_one_call(partitions)),
        Contestant(task, PYTHON, lambda: python.lag([group_id])),
        Contestant(task, RAW, lambda: raw.lag({group_id: partitions})),
        Contestant(task, TOOL, lambda: described_lag(cluster, "--group", group_id)),
    ]


def _task(size: int) -> str:
    return f"{size:,} partitions"
