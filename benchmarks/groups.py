"""Measures how long it takes to read the lag of many groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil
from cluster import Cluster
from measuring import Contestant, Section, Target, interleaved
from peers import KafkaPython, described_lag
from raw import RawClient

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets

SIZES = ((200, 50), (2_000, 20))
WARM = "ours, kept"
COLD = "ours, a new client each time"
RAW = "raw protocol, kept"
RAW_COLD = "raw protocol, a new connection each time"
PYTHON = "kafka-python, kept"
TOOL = "`kafka-consumer-groups --describe --all-groups`, whole process"


def measure(cluster: Cluster, sizes: tuple[tuple[int, int], ...], rounds: int) -> list[Section]:
    """Measure first, with the fewest groups first, because Kafka's tool describes all existing groups."""
    return [_measure(cluster, groups, partitions, rounds) for groups, partitions in sizes]


def _measure(cluster: Cluster, groups: int, count: int, rounds: int) -> Section:
    partitions = cluster.partitions(count)
    wanted = {cluster.name(f"{groups}-{number}"): partitions for number in range(groups)}
    raw, python = RawClient(cluster.servers), KafkaPython(cluster)
    for name in wanted:
        raw.commit(name, dict.fromkeys(partitions, 1))

    def ours(client: OffsetsClient) -> int:
        return total_lag(client, wanted, partitions)

    def ours_cold() -> int:
        with cluster.client() as client:
            return ours(client)

    def raw_cold() -> int:
        return RawClient(cluster.servers).lag(wanted)

    task = f"{groups:,} groups of {count} partitions"
    threads, connections = _cost(cluster, ours)
    with cluster.client() as client:
        contestants = [
            Contestant(task, WARM, lambda: ours(client)),
            Contestant(task, RAW, lambda: raw.lag(wanted)),
            Contestant(task, PYTHON, lambda: python.lag(list(wanted))),
        ]
        few = groups <= SIZES[0][0]
        if few:
            contestants += [
                Contestant(task, COLD, ours_cold),
                Contestant(task, RAW_COLD, raw_cold),
                Contestant(task, TOOL, lambda: described_lag(cluster, "--all-groups")),
            ]
        times = interleaved(contestants, rounds)
    targets = [
        Target(f"{task}: threads", threads, 10, at_least=False, unit="threads"),
        Target(f"{task}: connections", connections, 3, at_least=False, unit="connections"),
    ]
    if few:
        targets += [
            Target(f"{task}, warm: times raw", times.ratio((task, WARM), (task, RAW)), 3, at_least=False),
            Target(
                f"{task}, cold: times raw", times.ratio((task, COLD), (task, RAW_COLD)), 5, at_least=False
            ),
        ]
    else:
        faster = times.ratio((task, PYTHON), (task, WARM))
        targets.append(Target(f"{task}: faster than kafka-python", faster, 1, at_least=True))
    notes = [
        "The raw protocol and kafka-python ask for all groups in one request. Ours asks in one process that "
        "is kept; cold, that process is started too."
    ]
    return Section(f"Lag of {groups:,} groups", times, targets, notes)


def total_lag(
    client: OffsetsClient,
    wanted: Mapping[str, Sequence[TopicPartition]],
    partitions: Iterable[TopicPartition],
) -> int:
    """Return the total lag of many groups that read these partitions."""
    committed = client.committed_groups(wanted)
    logs = client.log_ranges(partitions)
    total = 0
    for name, commits in committed.items():
        if isinstance(commits, Exception):
            raise commits
        total += Lag.measure(name, committed_offsets(commits), logs).total
    return total


def _cost(cluster: Cluster, ask: Callable[[OffsetsClient], int]) -> tuple[int, int]:
    """Return how many threads and connections a reading needs in this process and the admin process."""
    before = _used()
    with cluster.client() as client:
        ask(client)
        threads, connections = _used()
    return threads - before[0], connections - before[1]


def _used() -> tuple[int, int]:
    own = psutil.Process()
    family = [own, *(child for child in own.children() if "admin_worker" in " ".join(child.cmdline()))]
    return (
        sum(process.num_threads() for process in family),
        sum(len(process.net_connections("tcp")) for process in family),
    )
