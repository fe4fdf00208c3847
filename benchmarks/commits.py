"""Measures how long commits and resets take."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from cluster import RECORDS, Cluster
from measuring import Contestant, Section, Target, interleaved
from peers import KafkaPython

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import format_csv
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_groups
from airflow_kafka_offsets.moves.groups import plan_group_resets

OURS = "ours"
OURS_READ_BACK = "ours, and read back"
OUR_TOOL = "`airflow-kafka-offsets group reset --execute`, whole process"
PYTHON = "kafka-python"
FILE_TOOL = "`kafka-consumer-groups --reset-offsets --from-file`, whole process"
TOOL = "`kafka-consumer-groups --reset-offsets --to-earliest`, whole process"
METADATA = CommitMetadata(
    dag="orders_daily",
    run="scheduled__2026-11-21T00:00:00+00:00",
    task="commit",
    query="5a5a3b0e-3d5e-4c7e-9f3e-0a6a8f4f7c11",
    batch=4711,
    token="0123456789ab",
    at=1_795_219_200,
)


def measure_commit(cluster: Cluster, sizes: list[int], rounds: int) -> Section:
    python = KafkaPython(cluster)
    contestants = []
    with contextlib.ExitStack() as stack:
        for size in sizes:
            contestants += _commits(cluster, stack.enter_context(cluster.client()), python, size)
        times = interleaved(contestants, rounds)
    note = (
        "Ours commits to a group with a name of 60 characters, with our metadata of up to 200 bytes, and "
        "asks first whether it may. The others commit to a group with a name of 10 characters, without "
        "metadata, and do not look."
    )
    section = Section("Commit", times, notes=[note])
    if 10_000 in sizes:
        many = _task(10_000)
        section.targets = [
            Target(
                "Commit of 10,000 partitions: faster than Kafka's tool from a file",
                times.ratio((many, FILE_TOOL), (many, OURS)),
                10,
                at_least=True,
            ),
            Target(
                "Commit of 10,000 partitions, read back: faster than kafka-python, which does not",
                times.ratio((many, PYTHON), (many, OURS_READ_BACK)),
                1,
                at_least=True,
            ),
        ]
    return section


def measure_reset(cluster: Cluster, sizes: list[int], rounds: int) -> Section:
    python = KafkaPython(cluster)
    contestants = []
    with contextlib.ExitStack() as stack:
        for size in sizes:
            contestants += _resets(cluster, stack.enter_context(cluster.client()), python, size)
        times = interleaved(contestants, rounds)
    few, many = _task(sizes[0]), _task(sizes[-1])
    targets = [Target(f"Reset of {few}", 1000 * times.median(few, OURS), 30, at_least=False, unit="ms")]
    if sizes[-1] >= 10_000:
        faster = times.ratio((many, TOOL), (many, OUR_TOOL))
        targets.append(Target(f"`group reset` of {many}: faster than Kafka's tool", faster, 2, at_least=True))
    return Section(
        "Reset to the log start",
        times,
        targets,
        [
            "Ours plans, looks for members, compares with the log, commits and reads back. kafka-python "
            "neither looks for members nor reads back."
        ],
    )


def _commits(cluster: Cluster, client: OffsetsClient, python: KafkaPython, size: int) -> list[Contestant]:
    partitions = cluster.partitions(size)
    long_name = cluster.name(f"commit-{size}-").ljust(60, "x")
    metadata = METADATA.text(size)
    short_name = cluster.name("")[:8] + f"-{len(str(size))}"
    file = cluster.directory / f"offsets-{size}.csv"
    at = _other_offsets()

    def ours() -> None:
        client.commit(long_name, dict.fromkeys(partitions, at()), metadata)

    def ours_read_back() -> None:
        offset = at()
        client.commit(long_name, dict.fromkeys(partitions, offset), metadata)
        found = {commit.offset for commit in client.committed(long_name, partitions).values() if commit}
        if found != {offset}:
            raise SystemExit(f"committed {offset}, and read back {found}")

    def kafka_python() -> None:
        python.commit(short_name, dict.fromkeys(partitions, at()))

    file.write_text(format_csv({short_name: dict.fromkeys(partitions, 1)}), encoding="utf-8")
    task = _task(size)
    return [
        Contestant(task, OURS, ours),
        Contestant(task, OURS_READ_BACK, ours_read_back),
        Contestant(task, PYTHON, kafka_python),
        Contestant(task, FILE_TOOL, lambda: _from_file(cluster, short_name, file)),
    ]


def _from_file(cluster: Cluster, group_id: str, file: Path) -> None:
    cluster.kafka_tool("--reset-offsets", "--group", group_id, "--from-file", str(file), "--execute")


def _resets(cluster: Cluster, client: OffsetsClient, python: KafkaPython, size: int) -> list[Contestant]:
    partitions, topic = cluster.partitions(size), cluster.topic(size)
    groups = {
        who: cluster.name(f"reset-{number}-{size}")
        for number, who in enumerate((OURS, OUR_TOOL, PYTHON, TOOL))
    }
    for group_id in groups.values():
        client.commit(group_id, dict.fromkeys(partitions, RECORDS))

    def ours() -> None:
        plans = plan_group_resets(
            client,
            {groups[OURS]: TopicScope.parse(topic)},
            Place("earliest"),
            now=datetime.now(tz=timezone.utc),
        )
        apply_groups(client, PipelinePlan(plans), METADATA)

    task = _task(size)
    return [
        Contestant(task, OURS, ours),
        Contestant(
            task,
            OUR_TOOL,
            lambda: _printed(
                cluster.our_tool(
                    "group", "reset", groups[OUR_TOOL], "--topic", topic, "--to-earliest", "--execute"
                )
            ),
        ),
        Contestant(task, PYTHON, lambda: python.reset(groups[PYTHON], partitions)),
        Contestant(
            task,
            TOOL,
            lambda: _printed(
                cluster.kafka_tool(
                    *(
                        "--reset-offsets",
                        "--group",
                        groups[TOOL],
                        "--topic",
                        topic,
                        "--to-earliest",
                        "--execute",
                    )
                )
            ),
        ),
    ]


def _printed(text: str) -> None:
    if not text.strip():
        raise SystemExit("a reset printed nothing")


def _other_offsets() -> Callable[[], int]:
    """Return a function that returns a different offset each time."""
    offsets = itertools.cycle(range(RECORDS))
    return lambda: next(offsets)


def _task(size: int) -> str:
    return f"{size:,} partitions"
