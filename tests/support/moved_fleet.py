"""Many pipelines that the command line moves as one."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition

READ, BACK = 10, 7
SHIFT = ("--shift-by", str(BACK - READ))


class Fleet:
    """
    Queries that were stopped, and the file that lists their pipelines.

    :param names: of their groups.
    :param batches: the ends of the batches of each query.
    :param defaults: of all entries of the file.
    """

    def __init__(
        self, root: Path, names: Sequence[str], *batches: Mapping[str, Mapping[int, int]], **defaults: Any
    ) -> None:
        self.names = [*names]
        self.queries = {name: Query(root / name, str(uuid.uuid4())) for name in names}
        for query in self.queries.values():
            for batch, ends in enumerate(batches):
                query.run(batch, ends)
        self.file, self.state = root / "pipelines.json", root / "pipelines.json.recovery.json"
        self._defaults = defaults
        self.list([self.entry(name) for name in names])

    def entry(self, name: str, **other: Any) -> dict[str, Any]:
        return {"group_id": name, "checkpoint_location": self.queries[name].location, **other}

    def list(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write the file."""
        self.file.write_text(json.dumps({"defaults": self._defaults, "pipelines": entries}))

    def stages(self) -> dict[str, int]:
        """{stage: how many pipelines the progress has there}."""
        return Counter(member["stage"] for member in json.loads(self.state.read_text())["pipelines"])


class Pipelines(Fleet):
    """Queries that are at 10 in three partitions, as their groups are."""

    def __init__(self, root: Path, topic: str, broker: Any, many: int) -> None:
        self.topic, self.broker = topic, broker
        stem = uuid.uuid4().hex[:8]
        ends = ({topic: dict.fromkeys(range(3), at)} for at in (5, READ))
        super().__init__(root, [f"{stem}-{number:02d}" for number in range(many)], *ends)
        for name in self.names:
            self.commit(name, READ)

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
