"""How long does the lag of many groups take?"""

from __future__ import annotations

from cluster import Cluster
from measuring import Contestant, Section, interleaved
from peers import KafkaPython, described_lag

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import committed_offsets

PARTITIONS = 50
KEPT = "ours, a connection for each group kept"
NOT_KEPT = "ours, 8 connections kept, which are opened anew each time"
PYTHON = "kafka-python"
TOOL = "`kafka-consumer-groups --describe --all-groups`, whole process"


def measure(cluster: Cluster, groups: int, rounds: int) -> Section:
    """To be measured first: Kafka's tool describes whatever groups there are."""
    partitions = cluster.partitions(PARTITIONS)
    names = [cluster.name(f"group-{number:03}") for number in range(groups)]
    python = KafkaPython(cluster)
    for name in names:
        python.commit(name, dict.fromkeys(partitions, 1))

    def ours(client: OffsetsClient) -> int:
        committed = {name: client.committed(name, partitions) for name in names}
        logs = client.log_ranges(partitions)
        return sum(
            Lag.measure(name, committed_offsets(commits), logs).total for name, commits in committed.items()
        )

    task = f"{groups} groups of {PARTITIONS} partitions"
    with cluster.client() as few, cluster.client(keep=groups + 1) as all_kept:
        times = interleaved(
            [
                Contestant(task, KEPT, lambda: ours(all_kept)),
                Contestant(task, NOT_KEPT, lambda: ours(few)),
                Contestant(task, PYTHON, lambda: python.lag(names)),
                Contestant(task, TOOL, lambda: described_lag(cluster, "--all-groups")),
            ],
            rounds,
        )
    return Section(
        "Lag of many groups",
        times,
        notes=[
            "One connection of confluent-kafka reads the commits of one group; kafka-python asks for all "
            "groups in one request."
        ],
    )
