"""A pipeline on a cluster that is mirrored, which fails over to the mirror."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from airflow_task import TaskInstance
from mirrored_clusters import MIRRORS, READ, SYNCS, Mirrored
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline


class Pipeline:
    """A query that was stopped after a batch, its names, and where it and its group are."""

    def __init__(self, clusters: Mirrored, way: str, topic: str, query: Query, group: str) -> None:
        self.clusters, self.topic, self.query, self.group = clusters, topic, query, group
        self.mirror = MIRRORS[way]
        self.copy = self.mirror.topic(topic)
        self.copies = [TopicPartition(self.copy, number) for number in READ]
        prefix = {"prefix": self.mirror.prefix} if self.mirror.prefix else {}
        self.names = KafkaPipeline(
            group_id=group,
            checkpoint_location=query.location,
            kafka_config_id="primary",
            mirror={"kafka_config_id": "standby", "syncs_topic": SYNCS[way], **prefix},
        )
        both = ("--bootstrap-server", clusters.source, "--to-bootstrap-server", clusters.target)
        named = [word for name, value in prefix.items() for word in (f"--{name}", value)]
        self.options = (query.location, group, "--syncs-topic", SYNCS[way], *named, *both)

    def committed(self) -> dict[int, int | None]:
        """Where the group is on the mirror."""
        return self.clusters.committed(self.group, self.copy)

    def at(self) -> dict[TopicPartition, int]:
        """Where the query is."""
        return SparkCheckpoint(self.query.location).read().kafka_offsets["0"]

    def is_unmoved(self) -> bool:
        unmoved = {TopicPartition(self.topic, number): at for number, at in READ.items()}
        return self.at() == unmoved and self.committed() == dict.fromkeys(READ)

    def plan(self, **how: Any) -> dict[str, Any]:
        """The plan of the operator, as a later task gets it."""
        context: Any = {"ti": TaskInstance()}
        task = FailOverOperator(task_id="plan", plan_only=True, **how, **self.names)
        planned: dict[str, Any] = json.loads(json.dumps(task.execute(context)))
        return planned


@pytest.fixture(scope="module")
def topics(mirrored: Mirrored) -> Callable[[str], str]:
    """topics(way) -> a filled topic. Later MirrorMaker has more syncs of it, which translate more exactly."""
    return cache(mirrored.filled_topic)


@pytest.fixture
def topic(topics: Callable[[str], str]) -> str:
    """A filled topic that the mirror gives a prefix."""
    return topics("other")


@pytest.fixture
def pipelines(
    mirrored: Mirrored,
    topics: Callable[[str], str],
    tmp_path: Path,
    new_group: Callable[[], str],
    connections: object,
) -> Callable[..., Pipeline]:
    """pipelines(way="other", topic=None, group=None) -> a pipeline that was stopped after batch 2."""

    def make(way: str = "other", topic: str | None = None, group: str | None = None) -> Pipeline:
        query, read = Query(tmp_path / new_group()), topic or topics(way)
        for batch, ends in enumerate(({0: 10, 1: 10}, {0: 40, 1: 30}, READ)):
            query.run(batch, {read: ends})
        return Pipeline(mirrored, way, read, query, group or new_group())

    return make


@pytest.fixture
def pipeline(pipelines: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline whose topic has a prefix on the mirror."""
    return pipelines()
