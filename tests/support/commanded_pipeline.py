"""Commands, and a pipeline that they move: 8 and 3 of 10 and 4 records were read, by group and checkpoint."""

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from airflow_kafka_offsets.model.offsets import TopicPartition


@pytest.fixture
def topic(make_topic: Callable[..., str], produce: Callable[..., None]) -> str:
    name = make_topic(2)
    produce(name, {0: 10, 1: 4})
    return name


@pytest.fixture
def group(topic: str, new_group: Callable[[], str], commit: Callable[..., None]) -> str:
    name = new_group()
    commit(name, topic, {0: 8, 1: 3})
    return name


@pytest.fixture
def query(topic: str, new_query: Any) -> Any:
    return new_query({topic: {0: 8, 1: 3}})


@pytest.fixture
def committed(broker: Any, group: str, topic: str) -> Callable[[], dict[int, int]]:
    """committed() -> {partition: offset} of the group."""

    def look() -> dict[int, int]:
        found = broker.committed(group, [TopicPartition(topic, number) for number in range(2)])
        return {tp.partition: commit.offset for tp, commit in found.items() if commit is not None}

    return look


@pytest.fixture
def do(cli: Any, topic: str, group: str, query: Any) -> Callable[[str], Any]:
    """do("group reset GROUP --topic TOPIC --checkpoint URI ...") runs a command on the pipeline."""
    names = {"TOPIC": topic, "GROUP": group, "URI": query.location}
    return lambda line: cli(*shlex.split(re.sub("TOPIC|GROUP|URI", lambda name: names[name[0]], line)))


@pytest.fixture
def value(do: Callable[[str], Any]) -> Callable[[str], Any]:
    """value("group lag GROUP") -> what a command prints as JSON."""

    def run(line: str) -> Any:
        done = do(f"{line} --output json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    return run
