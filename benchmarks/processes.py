"""Measures the command line as a whole process, from its start to the printed table."""

from __future__ import annotations

from cluster import Cluster
from measuring import Contestant, Section, Target, interleaved
from peers import described_lag

OURS = "`airflow-kafka-offsets group lag`"
OURS_OF_TOPIC = "`airflow-kafka-offsets group lag --topic`"
TOOL = "`kafka-consumer-groups --describe`"


def measure(cluster: Cluster, sizes: list[int], rounds: int) -> Section:
    contestants = []
    with cluster.client() as client:
        for size in sizes:
            group_id = cluster.name(f"process-{size}")
            client.commit(group_id, dict.fromkeys(cluster.partitions(size), 1))
            contestants += _contestants(cluster, size, group_id)
    times = interleaved(contestants, rounds)
    section = Section("Command line, whole process", times)
    section.targets = [
        Target(
            f"`group lag` of {size:,} partitions: faster than Kafka's describe",
            times.ratio((_task(size), TOOL), (_task(size), OURS)),
            5,
            at_least=True,
        )
        for size in sizes
    ]
    return section


def _contestants(cluster: Cluster, size: int, group_id: str) -> list[Contestant]:
    def printed(*arguments: str) -> int:
        text = cluster.our_tool("group", "lag", group_id, *arguments)
        return int(text.splitlines()[0].rpartition(" ")[2].replace(",", ""))

    task = _task(size)
    return [
        Contestant(task, OURS, printed),
        Contestant(task, OURS_OF_TOPIC, lambda: printed("--topic", cluster.topic(size))),
        Contestant(task, TOOL, lambda: described_lag(cluster, "--group", group_id)),
    ]


def _task(size: int) -> str:
    return f"{size:,} partitions"
