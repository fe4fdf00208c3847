"""Measures how long it takes to find a group's completed hours, and which requests it needs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from cluster import Cluster, say
from confluent_kafka import Producer
from measuring import Contestant, Section, Target, interleaved

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.interval import IntervalSchedule
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.interval_feed import IntervalFeed
from airflow_kafka_offsets.waits.interval_position import IntervalPosition

SIZES = (1, 100, 1_000)
PIPELINES = 500
PIPELINE = 4
"""Number of partitions of each pipeline."""
DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
TIMES = (0.5, 1.2, 10.2, 10.3)
"""Number of hours with records in each partition."""
READ = {1: 1, 10: 2}
"""Complete hours -> the position."""
_DEADLINE = 120.0


def measure(cluster: Cluster, sizes: tuple[int, ...], pipelines: int, rounds: int) -> Section:
    """Measure one hour and ten, for groups of several sizes, and many pipelines one after the other."""
    contestants, table = [], []
    with cluster.client() as client:
        for size in sizes:
            topic = _topic(cluster, size)
            for hours, position in READ.items():
                group = cluster.name(f"hours-{size}-{hours}")
                client.commit(group, {TopicPartition(topic, number): position for number in range(size)})
                who = f"{hours} complete hour{'s' if hours > 1 else ''}"
                contestants.append(
                    Contestant(f"{size:,} partitions", who, _look(client, group, topic, hours))
                )
        topic = _topic(cluster, PIPELINE)
        groups = [cluster.name(f"pipeline-{number}") for number in range(pipelines)]
        for group in groups:
            client.commit(group, {TopicPartition(topic, number): 2 for number in range(PIPELINE)})
        looks = [_look(client, group, topic, 10) for group in groups]
        many = f"{pipelines} pipelines of {PIPELINE} partitions"
        contestants.append(Contestant(many, "10 complete hours", lambda: _all(looks)))
        times = interleaved(contestants, rounds)
    for size in sizes if cluster.ways else ():
        table += _requests(cluster, size)
    each = times.median(many, "10 complete hours") / pipelines * 1000
    largest = f"{max(sizes):,} partitions"
    ratio = times.ratio((largest, "10 complete hours"), (largest, "1 complete hour"))
    return Section(
        "Complete intervals",
        times,
        [Target(f"{largest}: ten hours take as long as one", ratio, 1.5, at_least=False)],
        [
            f"One client, kept. Of {pipelines} pipelines, one after the other, each takes {each:.0f} ms.",
            *table,
        ],
    )


def _look(client: OffsetsClient, group: str, topic: str, hours: int) -> Callable[[], None]:
    position = IntervalPosition(group_id=group, topics=[topic])
    feed = IntervalFeed("hours", IntervalSchedule.parse("hour"), None, timedelta(0), 200)

    def look() -> None:
        found = position.read(client, None, None)
        if found is None:
            raise SystemExit("no position")
        complete = feed.completed(DAY, found.times).intervals
        if len(complete) != hours:
            raise SystemExit(f"{group}: found {len(complete)} complete hours, expected {hours}")

    return look


def _requests(cluster: Cluster, size: int) -> list[str]:
    """Return the requests that a reading sends to the broker."""
    topic, lines = _topic(cluster, size), []
    for hours in READ:
        with cluster.client(cluster.ways[0].servers) as client:
            look = _look(client, cluster.name(f"hours-{size}-{hours}"), topic, hours)
            look()
            cluster.ways[0].passed()
            look()
            passed = cluster.ways[0].passed()
        asked = {name: number for name, number in sorted(passed.items()) if name not in ("to", "from")}
        lines.append(
            f"{size:,} partitions, {hours} hour{'s' if hours > 1 else ''}: {sum(asked.values())} requests ("
            f"{', '.join(f'{number} {name}' for name, number in asked.items())}), "
            f"{passed.get('from', 0) / 1000:,.0f} KB."
        )
    return lines


_topics: dict[int, str] = {}


def _topic(cluster: Cluster, partitions: int) -> str:
    if partitions not in _topics:
        name = _topics[partitions] = cluster.name(f"hours-{partitions}")
        say(f"making topic {name}")
        cluster.create(name, partitions)
        producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 200, "log_level": 0})
        for number in range(partitions):
            for hours in TIMES:
                at = int((DAY + timedelta(hours=hours)).timestamp() * 1000)
                producer.produce(name, b"x" * 100, partition=number, timestamp=at)
            producer.poll(0)
        if producer.flush(_DEADLINE):
            raise SystemExit(f"topic {name}: records were not acknowledged")
    return _topics[partitions]


def _all(looks: list[Callable[[], None]]) -> None:
    for look in looks:
        look()
