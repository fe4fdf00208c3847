"""Fixtures for a pipeline that is moved, on a real Kafka or on one in memory: its query and its group."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from written_query import QUERY_ID, Query

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition


@pytest.fixture
def new_query(tmp_path: Path) -> Callable[..., Query]:
    """
    new_query({topic: {0: 5}}, ...) -> a query that was stopped after batch 1, which ended at these offsets.
    """
    numbers = itertools.count()

    def make(*sources: Mapping[str, Mapping[int, int]], query_id: str = QUERY_ID) -> Query:
        query = Query(tmp_path / f"checkpoint-{next(numbers)}", query_id)
        first = [{topic: dict.fromkeys(ends, 0) for topic, ends in source.items()} for source in sources]
        query.run(0, *first)
        query.run(1, *sources)
        return query

    return make


@pytest.fixture
def commit(broker: OffsetsClient) -> Callable[..., None]:
    """commit(group, topic, {0: 5}, metadata="")."""

    def make(group: str, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
        to = {TopicPartition(topic, number): offset for number, offset in offsets.items()}
        broker.commit(group, to, metadata)

    return make


@pytest.fixture
def committed(broker: OffsetsClient) -> Callable[[str, str], dict[int, int]]:
    """
    committed(group, topic) -> {partition: offset} of the first three, without those that have no commit.
    """

    def look(group: str, topic: str) -> dict[int, int]:
        found = broker.committed(group, [TopicPartition(topic, number) for number in range(3)])
        return {tp.partition: commit.offset for tp, commit in found.items() if commit is not None}

    return look
