"""Everything that moves a group or a pipeline, as movers that are set against each other."""

from __future__ import annotations

import itertools
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from every_schedule import Desk, Script, Worlds, run_alone
from memory_broker import Group, MemoryBroker
from memory_clients import Clock, connected

from airflow_kafka_offsets.checkpoint import apply_move, archive
from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry, parse_offset_log
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.model.offsets import Commit, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.operators import base, reset
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.spark.listener.committer import Committer
from airflow_kafka_offsets.spark.listener.queries import SourceState

if TYPE_CHECKING:
    Offsets = Mapping[int, int]

TOPIC, GROUP = "flights", "follows-flights"
PARTITIONS = tuple(TopicPartition(TOPIC, number) for number in (0, 1))
RECORDS = 100
QUERY_ID = "11111111-2222-3333-4444-555555555555"
LOCATION = "memory://lake/checkpoint"
ROOT = "lake/checkpoint"
BEFORE, GROUP_AT, CHECKPOINT_AT = 70, 50, 60
"""Where a pipeline was before its last reset, and where that reset has left its checkpoint; its group is
behind."""
NOW = 1_767_571_200.0
"""The time at which all movers run, in seconds since 1970."""


class Position(NamedTuple):
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


class Place(NamedTuple):
    """What two movers meet on: a group, and its checkpoint if it has one, which a reset has moved before."""

    worlds: Worlds
    receipt: Mapping[str, Any]
    """Of that reset."""
    location: str | None

    @property
    def names(self) -> dict[str, Any]:
        """The pipeline's names."""
        return {"group_id": GROUP, "checkpoint_location": self.location}

    @property
    def quiet(self) -> dict[str, Any]:
        return {"quiet_period": 0} if self.location else {}


def as_json(offset: int) -> dict[str, dict[str, int]]:
    """Return the offset in every partition, in Spark's form."""
    return {TOPIC: {str(tp.partition): offset for tp in PARTITIONS}}


def new_place(*, checkpoint: bool) -> Place:
    """Return a group, or a pipeline, that a reset has moved, and whose group was committed since."""
    broker = MemoryBroker()
    broker.create(TOPIC, len(PARTITIONS))
    for tp in PARTITIONS:
        broker.append(TOPIC, tp.partition, [int((NOW - 3600) * 1000)] * RECORDS)

    def commits(offset: int) -> Group:
        return Group(tuple((tp, Commit(offset)) for tp in PARTITIONS))

    broker.groups[GROUP] = commits(BEFORE)
    place = Place(Worlds(broker, _query() if checkpoint else {}), {}, LOCATION if checkpoint else None)
    to = CHECKPOINT_AT if checkpoint else GROUP_AT
    world, end = run_alone(place.worlds, _first_reset(place, to), place.worlds.first)
    assert end.error is None, end.error
    broker.groups = {GROUP: commits(GROUP_AT)}
    return place._replace(worlds=Worlds(broker, place.worlds.files(world)), receipt=end.result)


def _first_reset(place: Place, to: int) -> Script:
    def prepare(desk: Desk) -> Callable[[], Any]:
        operator = ResetOffsetsOperator(task_id="reset", to_offset=as_json(to), **place.quiet, **place.names)
        return run_operator(operator, desk, "first")

    return Script("first", prepare, place.worlds)


def _query() -> dict[str, bytes]:
    """The checkpoint of a query that was stopped after batch 1, as Spark writes it."""
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int((NOW - 60) * 1000), "conf": {}})
    files = {"metadata": json.dumps({"id": QUERY_ID})}
    for batch, offset in enumerate((0, BEFORE)):
        files[f"offsets/{batch}"] = "\n".join(["v1", head, json.dumps(as_json(offset))])
        files[f"commits/{batch}"] = 'v1\n{"nextBatchWatermarkMs":0}'
    return {f"{ROOT}/{path}": text.encode() for path, text in files.items()}


def run_operator(operator: Any, desk: Desk, run: str) -> Callable[[], Any]:
    """Return the task of an operator, which asks a desk for everything."""
    operator.open_client = desk.open_client
    if operator.checkpoint_location is not None:
        operator.open_checkpoint = lambda: SparkCheckpoint(operator.checkpoint_location, fs=desk.files)
    context: Any = {"ti": Task(operator.task_id, f"run-{run}")}
    return lambda: operator.execute(context)


class _StoppedClock(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime.fromtimestamp(NOW, tz)


@contextmanager
def deterministic() -> Iterator[None]:
    """Stop the clock, number what is random: then a mover depends on its answers only."""
    calls = connected(Clock(lambda: 0.0), lambda _: Script.desk.wait())
    with calls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: NOW)
        patch.setattr(time, "sleep", lambda seconds: None)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=Script.random.getrandbits(128)))
        patch.setattr(base.OffsetsOperator, "log", logging.getLogger("silent"), raising=False)
        for module in (apply_move, archive, reset):
            patch.setattr(module, "datetime", _StoppedClock)
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


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
    moves_checkpoint = False

    def __init__(self, name: str, number: int = 0) -> None:
        self.name, self.number = name, number

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        """Return the move."""
        raise NotImplementedError

    def model(self, at: Position) -> Position | None:
        """Return where it moves a pipeline alone; ``None`` where it refuses."""
        raise NotImplementedError

    def in_gap(self, asked: Sequence[str]) -> bool:
        """
        Return whether these steps are all that it may make from its last look at the group to its write.

        Where it moves a checkpoint it looks right before that; what then comes is found after its write.
        """
        return not asked or (self.moves_checkpoint and asked[0] == "move")

    def _task(self, operator: Any, desk: Desk) -> Callable[[], Any]:
        """Two of one kind are the same task of two runs."""
        return run_operator(operator, desk, f"{self.name}-{self.number}")


class CommitMover(Mover):
    """Commits a checkpoint's position, or given offsets where there is none."""

    forward_only = True

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        given: dict[str, Any] = {} if place.location else {"offsets": as_json(self._given)}
        return self._task(CommitOffsetsOperator(task_id="commit", **given, **place.names), desk)

    @property
    def _given(self) -> int:
        return (60, 66)[self.number]

    def model(self, at: Position) -> Position | None:
        to = self._given if at.checkpoint is None else at.checkpoint
        return None if at.group is None or to < at.group else at._replace(group=to)


class ResetMover(Mover):
    """Resets to given offsets."""

    moves_checkpoint = True

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        to = as_json(self._to)
        return self._task(
            ResetOffsetsOperator(task_id="reset", to_offset=to, **place.quiet, **place.names), desk
        )

    @property
    def _to(self) -> int:
        return (20, 30)[self.number]

    def model(self, at: Position) -> Position | None:
        return Position(self._to, None if at.checkpoint is None else self._to)


class SameResetMover(ResetMover):
    """Resets to the same offsets as the first reset, in another run."""

    def __init__(self) -> None:
        super().__init__("same reset", 0)


class RestoreMover(Mover):
    """Takes the last reset back."""

    moves_checkpoint = True

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        operator = RestoreOffsetsOperator(
            task_id="restore",
            receipt=place.receipt,
            restore_when="always",
            allow_stale=True,
            **place.quiet,
            **place.names,
        )
        return self._task(operator, desk)

    def model(self, at: Position) -> Position | None:
        return Position(BEFORE, None if at.checkpoint is None else BEFORE)


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

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        ranges = dict.fromkeys(PARTITIONS, OffsetRange(GROUP_AT, self._end))
        operator = CommitOffsetWindowOperator(
            task_id="window", window=OffsetWindow(ranges).as_json(), fenced=self.fenced, group_id=GROUP
        )
        return self._task(operator, desk)

    def model(self, at: Position) -> Position | None:
        return at._replace(group=self._end) if at.group in (GROUP_AT, self._end) else None


class ListenerMover(Mover):
    """Commits what a query has finished, as the listener in the Spark driver does."""

    on_checkpoint = False
    forward_only = True

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        to = dict.fromkeys(PARTITIONS, self._to)

        class Query:
            query_id, name = QUERY_ID, "flights"

            def is_active(self) -> bool:
                return True

            def sources(self) -> list[SourceState]:
                options = {"kafka.bootstrap.servers": "memory", "consumer.commit.groupid": GROUP}
                return [SourceState("KafkaV2[Subscribe]", options, to)]

            def newest_batch(self) -> int:
                return 1

            def planned(self, batch: int) -> OffsetLogEntry:
                """Return the newest batch; no earlier one is kept."""
                text = "\n".join(["v1", "{}", json.dumps(as_json(to[PARTITIONS[0]]))])
                return parse_offset_log(text, f"offsets/{batch}")

            def since_moves(self, batch: int, topics: object) -> None:
                """No earlier batch is known."""

            def moved_to(self, topics: object) -> None:
                """No move is known."""

            def newest_move(self) -> int:
                return 0

            def forget(self) -> None:
                """Nothing is kept."""

        def commit() -> int:
            committer = Committer(lambda _: desk.open_client())
            query: Any = Query()
            refusals: list[KafkaOffsetsError] = []

            def not_committed(query: Any, error: KafkaOffsetsError, target: Any = "") -> None:
                refusals.append(error)

            committer.outcomes.record_error = not_committed  # type: ignore[method-assign]
            committer.follow("run", query)
            committer.record_finished("run", 1)
            try:
                committer.commit_due()
            finally:
                committer.close()
            if refusals:
                raise refusals[0]
            return self._to

        return commit

    _to = CHECKPOINT_AT

    def model(self, at: Position) -> Position | None:
        return None if at.group is None or at.group > self._to else at._replace(group=self._to)


class ToolError(Exception):
    """Kafka's own tool or a consumer was refused."""


class ToolMover(Mover):
    """Looks whether the group is inactive, and resets it, as Kafka's own tool does."""

    on_checkpoint = ours = False
    _to = 40

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        def move() -> int:
            with desk.open_client() as client:
                group = client.describe_groups([GROUP])[GROUP]
            if group.is_active:
                raise ToolError("the group is not inactive")
            refused = desk.ask(("send", GROUP, tuple((tp, Commit(self._to)) for tp in PARTITIONS)))
            if refused:
                raise ToolError(f"the group is active: {refused}")
            return self._to

        return move

    def model(self, at: Position) -> Position | None:
        return at._replace(group=self._to)


class ConsumerMover(Mover):
    """Joins the group, reads on from its commits, commits, and leaves."""

    on_checkpoint = ours = False
    fenced = True
    reads = 5

    def prepare(self, place: Place, desk: Desk) -> Callable[[], Any]:
        member = f"{desk.name}-reader"

        def consume() -> dict[int, int]:
            joining = ("join", GROUP, member, "a-reader", (TOPIC,))
            desk.ask(joining)
            desk.ask(("alone", GROUP, member))
            generation, _ = desk.ask(joining)
            found = desk.ask(("fetch", GROUP, PARTITIONS))
            to = [each.offset + self.reads for each in found]
            commits = tuple((tp, Commit(offset)) for tp, offset in zip(PARTITIONS, to, strict=True))
            refused = desk.ask(("send", GROUP, commits, member, generation))
            desk.ask(("leave", GROUP, member))
            if refused:
                raise ToolError(f"UNKNOWN_MEMBER or an older generation: {refused}")
            return dict(enumerate(to))

        return consume

    def model(self, at: Position) -> Position | None:
        return None if at.group is None else at._replace(group=at.group + self.reads)


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
