"""Everything that moves a group or a pipeline, as movers that are set against each other."""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.spark.listener.committer import Committer
from airflow_kafka_offsets.spark.listener.queries import SourceState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from interleaving import Interleaving
    from kafka_oracle import Oracle

    Offsets = Mapping[int, int]

PARTITIONS = (0, 1)
RECORDS = 100
QUERY_ID = "11111111-2222-3333-4444-555555555555"
BEFORE, GROUP_AT, CHECKPOINT_AT = 70, 50, 60
"""Where a pipeline was before its last reset, and where that reset has left its checkpoint; its group is
behind."""
JOIN = 30.0


class State(NamedTuple):
    """Where group and checkpoint are; ``None`` where partitions differ, or there is no checkpoint."""

    group: int | None
    checkpoint: int | None


class Task:
    """As much of a task instance as an operator needs."""

    dag_id, map_index, max_tries = "flights", -1, 0

    def __init__(self, task_id: str, run_id: str) -> None:
        self.task_id, self.run_id = task_id, run_id

    def xcom_push(self, key: str, value: object) -> None:
        """Take what an operator pushes, and keep nothing."""


class World:
    """
    One group, and its checkpoint if it has one, on which two movers meet.

    :param template: a checkpoint to copy, and the receipt of the reset that has moved it.
    """

    def __init__(
        self,
        broker: OffsetsClient,
        bootstrap_servers: str,
        oracle: Oracle,
        topic: str,
        receipt: Mapping[str, Any],
        checkpoint: tuple[Path, Path] | None,
    ) -> None:
        self.broker, self.bootstrap_servers, self.oracle, self.topic = (
            broker,
            bootstrap_servers,
            oracle,
            topic,
        )
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        text = json.dumps(receipt).replace(receipt["group_id"], self.group)
        self.location: str | None = None
        if checkpoint is not None:
            template, home = checkpoint
            self.location = str(home / uuid.uuid4().hex[:8] / "checkpoint")
            shutil.copytree(template, self.location)
            kept = next((template / "_kafka_offsets").iterdir()).name
            groups = f"{self.location}/_kafka_offsets/{kept}/groups.json"
            _replace(groups, receipt["group_id"], self.group)
            text = text.replace(str(template), self.location)
        self.receipt = json.loads(text)
        broker.commit(self.group, self.at(GROUP_AT))

    def at(self, offset: int) -> dict[TopicPartition, int]:
        """Return the offset in every partition."""
        return {TopicPartition(self.topic, number): offset for number in PARTITIONS}

    def as_json(self, offset: int) -> dict[str, dict[str, int]]:
        """Return the offset in every partition, in Spark's form."""
        return {self.topic: {str(number): offset for number in PARTITIONS}}

    @property
    def names(self) -> dict[str, Any]:
        """The pipeline's names."""
        return {"group_id": self.group, "checkpoint_location": self.location}


def _replace(path: str, old: str, new: str) -> None:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text.replace(old, new))


class Mover:
    """
    Moves a group or a pipeline in one way.

    :param number: tells two movers of one kind apart: which run it is, and where it moves to.
    """

    on_checkpoint = True
    """Whether it concerns a checkpoint, if there is one."""
    ours = True
    """Whether it is of this package."""
    fenced = False
    """Whether the broker keeps others out between its read and its write."""
    forward_only = False
    """Whether it never goes backwards unless asked."""
    relative = False
    moves_checkpoint = False

    def __init__(self, name: str, number: int = 0) -> None:
        self.name, self.number = name, number

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        """Return the move, to be called in a thread."""
        raise NotImplementedError

    def model(self, state: State) -> State | None:
        """Return where it moves a pipeline alone; ``None`` where it refuses."""
        raise NotImplementedError

    def in_gap(self, asked: Sequence[str]) -> bool:
        """
        Return whether these requests are all that it may make from its last look at the group to its write.

        Where it moves a checkpoint it looks right before that; what then comes is found after its write.
        """
        first = asked[0].partition(" ") if asked else ("", "", "")
        moves = first[0] in ("file", "remove") and not first[2].startswith("_kafka_offsets/")
        return asked == ["send"] or (self.moves_checkpoint and moves)

    def _operator(self, operator: Any, world: World) -> Callable[[], Any]:
        """Two of one kind are the same task of two runs."""
        context: Any = {"ti": Task(operator.task_id, f"run-{self.name}-{self.number}")}
        return lambda: operator.execute(context)


class CommitMover(Mover):
    """Commits a checkpoint's position, or given offsets where there is none."""

    forward_only = True

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        given: dict[str, Any] = {} if world.location else {"offsets": world.as_json(self._given)}
        return self._operator(CommitOffsetsOperator(task_id="commit", **given, **world.names), world)

    @property
    def _given(self) -> int:
        return (60, 66)[self.number]

    def model(self, state: State) -> State | None:
        to = self._given if state.checkpoint is None else state.checkpoint
        return None if state.group is None or to < state.group else state._replace(group=to)


class ResetMover(Mover):
    """Resets to given offsets."""

    moves_checkpoint = True

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        quiet: dict[str, Any] = {"quiet_period": 0} if world.location else {}
        to = world.as_json(self._to)
        return self._operator(
            ResetOffsetsOperator(task_id="reset", to_offset=to, **quiet, **world.names), world
        )

    @property
    def _to(self) -> int:
        return (20, 30)[self.number]

    def model(self, state: State) -> State | None:
        return State(self._to, None if state.checkpoint is None else self._to)


class SameResetMover(ResetMover):
    """Resets to the same offsets as the first reset, in another run."""

    def __init__(self) -> None:
        super().__init__("same reset", 0)


class RestoreMover(Mover):
    """Takes the last reset back."""

    moves_checkpoint = True

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        quiet: dict[str, Any] = {"quiet_period": 0} if world.location else {}
        return self._operator(
            RestoreOffsetsOperator(
                task_id="restore",
                receipt=world.receipt,
                when="always",
                allow_stale=True,
                **quiet,
                **world.names,
            ),
            world,
        )

    def model(self, state: State) -> State | None:
        return State(BEFORE, None if state.checkpoint is None else BEFORE)


class WindowMover(Mover):
    """Commits the end of a window that begins where the group is."""

    on_checkpoint = False
    forward_only = True

    def __init__(self, name: str, number: int = 0, *, fenced: bool = True) -> None:
        super().__init__(name, number)
        self.fenced = fenced

    @property
    def _end(self) -> int:
        return (55, 58)[self.number]

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        ranges = {tp: OffsetRange(GROUP_AT, self._end) for tp in world.at(0)}
        operator = CommitOffsetWindowOperator(
            task_id="window",
            window=OffsetWindow(ranges).as_json(),
            fenced=self.fenced,
            group_id=world.group,
        )
        return self._operator(operator, world)

    def model(self, state: State) -> State | None:
        return state._replace(group=self._end) if state.group in (GROUP_AT, self._end) else None


class ListenerMover(Mover):
    """Commits what a query has finished, as the listener in the Spark driver does."""

    on_checkpoint = False
    forward_only = True

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        to = world.at(self._to)

        class Query:
            query_id, name = QUERY_ID, "flights"

            def is_active(self) -> bool:
                return True

            def sources(self) -> list[SourceState]:
                options = {"kafka.bootstrap.servers": world.bootstrap_servers}
                return [SourceState("KafkaV2[Subscribe]", world.group, options, to)]

            def newest_batch(self) -> int:
                return 1

            def forget(self) -> None:
                """Nothing is kept."""

        def new_client(settings: Mapping[str, str]) -> OffsetsClient:
            return OffsetsClient({"bootstrap.servers": settings["bootstrap.servers"]})

        def commit() -> int:
            committer = Committer(new_client)
            query: Any = Query()
            refusals: list[KafkaOffsetsError] = []
            note = committer.outcomes.not_committed

            def not_committed(query: Any, error: KafkaOffsetsError, group_id: str = "") -> None:
                refusals.append(error)
                note(query, error, group_id)

            committer.outcomes.not_committed = not_committed  # type: ignore[method-assign]
            committer.follow("run", query)
            committer.finished("run", 1)
            try:
                committer.step()
            finally:
                committer.close()
                for client in committer._clients.values():
                    client.close()
            if refusals:
                raise refusals[0]
            return self._to

        return commit

    _to = CHECKPOINT_AT

    def in_gap(self, asked: Sequence[str]) -> bool:
        """It looks once, and asks once more whether it may commit before it does."""
        return asked == ["read commits", "send"]

    def model(self, state: State) -> State | None:
        return None if state.group is None or state.group > self._to else state._replace(group=self._to)


class ToolMover(Mover):
    """Looks at the group with Kafka's own tool, and resets it."""

    on_checkpoint = ours = False

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        def reset() -> str:
            turns.gate("tool describe")
            world.oracle.consumer_groups("--describe", "--group", world.group)
            mover = turns.gate("tool reset")
            done = world.oracle.reset(
                world.group, "--topic", world.topic, "--to-offset", str(self._to), "--execute"
            )
            if done.error or "NEW-OFFSET" not in done.stdout or f" {self._to} " not in f"{done.stdout} ":
                raise ToolError(done.error or done.stdout + done.stderr)
            turns.note(mover, "write", dict.fromkeys(PARTITIONS, self._to))
            turns.gate("tool end")
            return done.stdout

        return reset

    _to = 40

    def model(self, state: State) -> State | None:
        return state._replace(group=self._to)


class ToolError(Exception):
    """Kafka's own tool or client has refused."""


class ConsumerMover(Mover):
    """Joins the group, reads on from its commits, commits, and leaves."""

    on_checkpoint = ours = False
    fenced = relative = True
    reads = 5

    def prepare(self, world: World, turns: Interleaving) -> Callable[[], Any]:
        def consume() -> dict[int, int]:
            turns.gate("join")
            consumer = Consumer(
                {
                    "bootstrap.servers": world.bootstrap_servers,
                    "group.id": world.group,
                    "client.id": "a-reader",
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            try:
                joined: list[Any] = []
                consumer.subscribe([world.topic], on_assign=lambda _, given: joined.append(given))
                for _ in range(int(JOIN / 0.02)):
                    consumer.poll(0.02)
                    if joined and len(joined[-1]) == len(PARTITIONS):
                        break
                assert joined, "the consumer was not let in"
                mover = turns.gate("read commits")
                wanted = [ClientPartition(world.topic, number) for number in PARTITIONS]
                found = consumer.committed(wanted, timeout=JOIN)
                turns.note(mover, "read", {each.partition: each.offset for each in found})
                to = [ClientPartition(each.topic, each.partition, each.offset + self.reads) for each in found]
                turns.gate("send")
                consumer.commit(offsets=to, asynchronous=False)
                written = {each.partition: each.offset for each in to}
                turns.note(mover, "write", written)
                turns.gate("leave")
                return written
            finally:
                consumer.close()

        return consume

    def model(self, state: State) -> State | None:
        return None if state.group is None else state._replace(group=state.group + self.reads)


def group_pairs() -> list[tuple[Mover, Mover]]:
    """Return all pairs that meet on a group, but those in which nobody is of this package."""
    first = [
        CommitMover("commit"),
        ResetMover("reset"),
        RestoreMover("restore"),
        WindowMover("fenced window"),
        WindowMover("window", fenced=False),
        ListenerMover("listener"),
        ToolMover("Kafka's tool"),
        ConsumerMover("consumer"),
    ]
    second = [
        CommitMover("commit", 1),
        ResetMover("reset", 1),
        WindowMover("fenced window", 1),
        WindowMover("window", 1, fenced=False),
    ]
    return _pairs(first, second)


def pipeline_pairs() -> list[tuple[Mover, Mover]]:
    """Return all pairs of which one at least moves group and checkpoint, or commits the checkpoint's."""
    first = [
        CommitMover("commit"),
        ResetMover("reset"),
        RestoreMover("restore"),
        ListenerMover("listener"),
        ToolMover("Kafka's tool"),
        ConsumerMover("consumer"),
    ]
    second = [CommitMover("commit", 1), ResetMover("reset", 1), RestoreMover("restore", 1)]
    pairs = [pair for pair in _pairs(first, second) if any(each.on_checkpoint for each in pair)]
    return [*pairs, (first[1], SameResetMover())]


def _pairs(first: list[Mover], second: list[Mover]) -> list[tuple[Mover, Mover]]:
    twins = {mover.name: mover for mover in second}
    pairs = [(mover, twins[mover.name]) for mover in first if mover.name in twins]
    pairs += itertools.combinations(first, 2)
    return [pair for pair in pairs if any(each.ours for each in pair)]
