"""Many pipelines that the command line moves as one."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition

READ, BACK = 10, 7
SHIFT = ("--shift-by", str(BACK - READ))


class Pipelines:
    """Queries that are at 10 in three partitions, as their groups are, and the file that lists them."""

    def __init__(self, root: Path, topic: str, broker: Any, many: int) -> None:
        self.topic, self.broker = topic, broker
        self.queries: dict[str, Query] = {}
        stem = uuid.uuid4().hex[:8]
        for number in range(many):
            name = f"{stem}-{number:02d}"
            query = self.queries[name] = Query(root / name, str(uuid.uuid4()))
            query.run(0, {topic: dict.fromkeys(range(3), 5)})
            query.run(1, {topic: dict.fromkeys(range(3), READ)})
            self.commit(name, READ)
        self.names = [*self.queries]
        self.file = root / "pipelines.yaml"
        self.state = root / "pipelines.yaml.recovery.json"
        entries = [
            {"group_id": name, "checkpoint_location": query.location} for name, query in self.queries.items()
        ]
        self.file.write_text(json.dumps({"pipelines": entries}))

    def commit(self, name: str, offset: int) -> None:
        self.broker.commit(name, {TopicPartition(self.topic, number): offset for number in range(3)})

    def groups(self) -> dict[str, set[int]]:
        """{group: offsets}."""
        found = {name: self.broker.committed_everywhere(name).values() for name in self.names}
        return {name: {commit.offset for commit in each} for name, each in found.items()}

    def at(self) -> dict[int, int]:
        """{offset: how many pipelines are there}; both stores of each must be at the same place."""
        groups = self.groups()
        assert groups == {name: {*query.stands().values()} for name, query in self.queries.items()}
        return Counter(offset for (offset,) in groups.values())

    def stages(self) -> dict[str, int]:
        return Counter(member["stage"] for member in json.loads(self.state.read_text())["pipelines"])


@pytest.fixture
def fleet_topic(make_topic: Callable[..., str], produce: Callable[..., None]) -> str:
    name = make_topic(3)
    produce(name, {0: 20, 1: 20, 2: 20})
    return name


@pytest.fixture
def pipelines(tmp_path: Path, fleet_topic: str, broker: Any) -> Callable[[int], Pipelines]:
    """pipelines(3) -> so many."""
    return lambda many: Pipelines(tmp_path, fleet_topic, broker, many)


@pytest.fixture
def recovering(cli: Any) -> Callable[..., Any]:
    """recovering("plan", pipelines, ...) -> what the command did."""

    def run(verb: str, pipelines: Pipelines, *options: str) -> Any:
        quiet = ("--quiet-period", "0") if verb in ("apply", "restore") else ()
        return cli("recover", verb, pipelines.file, *quiet, *options)

    return run
