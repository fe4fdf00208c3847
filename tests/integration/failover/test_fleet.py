"""Many pipelines (PIPELINES=60 for sixty) fail over as one, and are killed or run twice meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest
from mirrored_clusters import READ, SYNCS
from moved_fleet import Fleet

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MANY = int(os.environ.get("PIPELINES", "12"))
QUIET = ("--quiet-period", "0")


class MirroredFleet(Fleet):
    """Queries that were stopped on a mirrored cluster."""

    def __init__(self, root: Any, clusters: Any, topic: str, cli: Any, stem: str) -> None:
        self.clusters, self.topic, self.cli, self.copy = clusters, topic, cli, f"other.{topic}"
        names, ends = [f"{stem}-{number:02d}" for number in range(MANY)], ({0: 10, 1: 10}, READ)
        mirror = {"kafka_config_id": "standby", "prefix": "other.", "syncs_topic": SYNCS["other"]}
        batches = ({topic: each} for each in ends)
        super().__init__(root, names, *batches, kafka_config_id="primary", mirror=mirror)

    def line(self, verb: str, *options: str) -> tuple[str, ...]:
        both = (*("--bootstrap-server", self.clusters.source, "--to-bootstrap-server", self.clusters.target),)
        clusters = both if verb == "plan-failover" else ("--bootstrap-server", self.clusters.target)
        quiet = QUIET if verb in ("apply", "restore") else ()
        return ("recover", verb, str(self.file), *clusters, *quiet, *options)

    def run(self, verb: str, *options: str) -> Any:
        done = self.cli(*self.line(verb, *options))
        assert done.code == 0, (done.out, done.err)
        return done

    def now(self) -> dict[str, int]:
        found = json.loads(self.run("status", "--output", "json").out)["pipelines"]
        return Counter(each["now"] for each in found)

    def moved(self) -> list[str]:
        """The groups that are at the positions of their queries on the mirror, as their queries are."""
        return [
            name
            for name, query in self.queries.items()
            if self.clusters.committed(name, self.copy) == READ
            and {tp.topic for tp in SparkCheckpoint(query.location).read().kafka_offsets["0"]} == {self.copy}
        ]


@pytest.fixture
def fleet(tmp_path, mirrored, topic, cli, new_group, connections):
    return MirroredFleet(tmp_path, mirrored, topic, cli, new_group())


def test_a_command_that_is_killed_at_any_time_is_continued(fleet):
    fleet.run("plan-failover")
    program = "from airflow_kafka_offsets.cli import main; main()"
    kills = 0
    for after in (1, 2, 3, 4):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *fleet.line("apply", "--execute", "--max-active", "2")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started = time.monotonic()
        while process.poll() is None and fleet.stages()["applied"] < after * MANY // 6:
            assert time.monotonic() - started < 120
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(30)
        assert set(fleet.now()) <= {"moved", "not moved", "moved in part"}
    assert kills
    fleet.run("apply", "--execute")
    assert fleet.now() == {"moved": MANY}
    # The connections of the file lead to the mirror too.
    assert fleet.cli("recover", "status", fleet.file).out.count("applied  moved") == MANY
    for query in fleet.queries.values():
        assert [move.done for move in ArchivedMoves(SparkCheckpoint(query.location))] == [True]


def test_two_people_apply_one_plan_at_once(fleet, tmp_path):
    """Each on a machine of their own, where the other's lock is not seen."""
    fleet.run("plan-failover")
    other = tmp_path / "other"
    other.mkdir()
    for file in (fleet.file, fleet.state):
        (other / file.name).write_text(file.read_text())
    program = "from airflow_kafka_offsets.cli import main; main()"
    line = fleet.line("apply", "--execute", "--max-active", "2")
    lines = [line, tuple(str(other / fleet.file.name) if word == str(fleet.file) else word for word in line)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *each],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for each in lines
    ]
    texts = [process.communicate(timeout=240)[0] for process in processes]
    # Whoever met the other's move is told so, and continues.
    fleet.run("apply", "--execute")
    again = fleet.cli(*lines[1])
    assert again.code == 0, (texts, again)
    assert fleet.moved() == fleet.names, texts
    for query in fleet.queries.values():
        assert [move.done for move in ArchivedMoves(SparkCheckpoint(query.location))] == [True], texts
