"""
A wait: the base class, which compares a position with a target.

A position is a group's commits, or the newest committed batch of a checkpoint. The parameters of a wait are
plain JSON, so that the same wait runs on a worker and, after it was deferred, in a triggerer. A poll reads
the positions, then the logs: in this order, the lag of an active group is never too low. Many waits share
each step, see :class:`~airflow_kafka_offsets.kafka.cached_reader.CachedReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import CheckpointError, CheckpointNotFoundError, DriftError, UsageError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    furthest_behind,
    summarize,
)
from airflow_kafka_offsets.model.parameters import choice_parser, parse_interval
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import plural, shorten
from airflow_kafka_offsets.model.topics import TopicScope, plain_names
from airflow_kafka_offsets.model.wording import dag_text, parameter_text
from airflow_kafka_offsets.pipeline import NAME_PARSERS
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids, recreated_partitions
from airflow_kafka_offsets.readings.positions import group_commits, partitions_in_scope

PositionSource = Literal["group", "checkpoint"]

SHOWN = 20
"""Largest number of partitions in the table of a reading; the ones that are furthest behind are shown."""


@dataclass(frozen=True)
class Reading:
    """
    The result of one poll.

    :param text: the reading as lines for the log.
    :param positions: the positions of each group or source.
    :param news: the text without constantly changing parts, such as an age; by default the text.
    :param checkpoint: URI of the checkpoint with the positions; ``None`` if they are a group's.
    :param remaining: amounts that must all become 0 before the wait is over; empty if unknown.
    :param moving: whether the target moves.
    :param unknown: why the wait is not over although no record remains: the broker does not know a group.
    """

    done: bool
    as_json: Callable[[], dict[str, Any]]
    text: str
    positions: Mapping[str, Positions] = field(default_factory=dict)
    news: str = ""
    lags: tuple[Lag, ...] = ()
    checkpoint: str | None = None
    remaining: tuple[int, ...] = ()
    moving: bool = False
    unknown: str = ""

    @property
    def position(self) -> str:
        """A short text that changes with a position, but not for a new partition without a position."""
        plain = {
            name: offsets_json({tp: at for tp, at in found.items() if at is not None})
            for name, found in self.positions.items()
        }
        return digest(plain)

    @property
    def digest(self) -> str:
        """A short text that changes with the content of the reading."""
        return digest(self.news or self.text)


class KnownCheckpoint(NamedTuple):
    """A checkpoint as a poll has read it."""

    state: CheckpointState
    moves: ArchivedMoves
    moved: ArchivedMove | None
    """The newest move that names its cluster, which a checkpoint itself does not."""


@dataclass(frozen=True)
class Wait:
    """
    The names of a position, as in :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline`, and how to read it.

    :param position: ``group`` or ``checkpoint``; by default ``group`` if a group is named.
    :param isolation_level: ``read_committed`` measures up to the last stable offset.
    :param stalled_after: seconds without any movement after which the wait fails; ``None`` for never.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any, str], Any]]] = {
        **NAME_PARSERS,
        "position": choice_parser(PositionSource),
        "isolation_level": choice_parser(IsolationLevel),
        "stalled_after": parse_interval,
    }
    """Parameter -> its parser, which takes value and name. ``None`` is not parsed; it means the default."""

    group_id: str | Mapping[str, str] | None = None
    topics: Any = None
    checkpoint_location: str | None = None
    checkpoint_conn_id: str | None = None
    kafka_config_id: str = "kafka_default"
    position: str | None = None
    isolation_level: IsolationLevel = "read_uncommitted"
    stalled_after: float | None = None

    def __post_init__(self) -> None:
        # Checked before the values are parsed: an error for a missing parameter is more useful.
        self.check_parameters(self)
        for name, read in self.parsers.items():
            value = getattr(self, name)
            # A template that renders to None counts as not given.
            value = getattr(type(self), name) if value is None else value
            object.__setattr__(self, name, None if value is None else read(value, name))

    @classmethod
    def check_parameters(cls, parameters: Any) -> None:
        """
        Refuse parameters that are missing or contradict each other; unrendered templates are not checked.

        :param parameters: a wait, or a sensor before its templates are rendered.
        """
        group, location = parameter_text("group_id"), parameter_text("checkpoint_location")
        of_checkpoint = parameter_text("position", "checkpoint")
        if parameters.group_id is None and parameters.checkpoint_location is None:
            raise UsageError(f"no position to read: give {group} or {location}{dag_text(', or **pipeline')}")
        if parameters.position == "checkpoint" and parameters.checkpoint_location is None:
            raise UsageError(f"{of_checkpoint} without {location}: name the checkpoint")
        if parameters.position == "group" and parameters.group_id is None:
            of_group = parameter_text("position", "group")
            raise UsageError(f"{of_group} without {group}: name the group, or use {of_checkpoint}")

    @property
    def position_is_checkpoint(self) -> bool:
        """Whether the position is the checkpoint's."""
        return self.position == "checkpoint" or not (self.position or self.group_id)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the wait reads its checkpoint, which may have no batch yet."""
        return self.checkpoint_location is not None

    @cached_property
    def selection(self) -> GroupSelection:
        """The named groups and topics."""
        return GroupSelection.parse(self.group_id, self.topics, required=False)

    @property
    def group_ids(self) -> frozenset[str]:
        """The groups whose commits are read."""
        return frozenset() if self.position_is_checkpoint else frozenset(self.selection.group_ids)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as plain JSON, to create the same wait in another process."""
        return {each.name: plain_names(getattr(self, each.name)) for each in fields(self)}

    def read_checkpoint(self, checkpoint: SparkCheckpoint | None) -> KnownCheckpoint | None:
        """
        Read the wait's checkpoint; return ``None`` if the wait has none, or does not need it.

        If the position is a group's, the checkpoint only provides the topics, and may be missing.
        """
        if checkpoint is None or not self.needs_checkpoint:
            return None
        try:
            state = checkpoint.read()
        # A query that was never started has no checkpoint yet, but a wait for its group is valid.
        except CheckpointNotFoundError:
            if self.position_is_checkpoint:
                raise
            return None
        moves = ArchivedMoves(checkpoint)
        return KnownCheckpoint(state, moves, moves.newest_with_cluster())

    def find_positions(
        self, client: OffsetsReader, checkpoint: KnownCheckpoint | None
    ) -> Mapping[str, Positions]:
        """Return the positions of each group or source; empty before a checkpoint's first finished batch."""
        return self.positions_in(client, checkpoint, self.selection.scope)

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Decide whether the wait is over. The logs are read now, after the positions."""
        raise NotImplementedError

    def freeze(self, client: OffsetsReader, checkpoint: SparkCheckpoint | None) -> Wait:  # noqa: ARG002
        """Return the wait with a fixed target; most waits have no target that moves."""
        return self

    def poll(self, client: OffsetsReader, checkpoint: SparkCheckpoint | None) -> Reading:
        """Read the positions and the logs, and decide whether the wait is over."""
        known = self.read_checkpoint(checkpoint)
        positions = self.find_positions(client, known)
        reading = self.judge(client, positions)
        if reading.done:
            self.check_topics(client, known, positions)
        return reading

    def check_topics(
        self, client: OffsetsReader, checkpoint: KnownCheckpoint | None, positions: Mapping[str, Positions]
    ) -> None:
        """
        Refuse a checkpoint's positions in topics that were created again; asked only when a wait is over.

        A group has no such positions, because Kafka deletes its commits with the topic.
        """
        if checkpoint is None or not self.position_is_checkpoint:
            return
        offsets = {tp: at for tp, at in furthest_behind(positions.values()).items() if at is not None}
        groups = [client.committed(group, offsets) for group in self.selection.group_ids]
        commits = {tp: commit for found in groups for tp, commit in found.items() if commit is not None}
        now = known_log_ids(client, {tp.topic for tp in offsets})
        known = (checkpoint.moves, checkpoint.state, offsets, commits, now)
        if again := recreated_partitions(client, *known, whole_logs_only=True):
            raise DriftError(
                f"the checkpoint has not read the first records of {summarize(again)}: the topic was deleted "
                "and created again, or the connection leads to another cluster; correct the connection, or "
                "reset the pipeline to 'earliest' or to a time. If the records have been read, or producers "
                "set other times than the time of writing, commit the checkpoint once with "
                f"{parameter_text('allow_new_cluster', True)}, and wait with this "
                f"{parameter_text('group_id')} and {parameter_text('position', 'checkpoint')}"
            )

    def positions_in(
        self, client: OffsetsReader, checkpoint: KnownCheckpoint | None, scope: TopicScope
    ) -> dict[str, Positions]:
        """Return the positions of each group or source in a scope."""
        sources = moves = None
        if checkpoint is not None:
            state, moves, moved = checkpoint
            sources = state.kafka_offsets
            if state.without_kafka:
                raise CheckpointError(state.without_kafka)
            if self.position_is_checkpoint and moved is not None:
                check = LogCheck(
                    False, f"the newest move of {state.location}", moved.log_ids, remedy=_if_moved()
                )
                DriftError.raise_if(check.refusals(self.logs_now(client, moved.log_ids.topics)))
        if self.position_is_checkpoint:
            return _checkpoint_positions(client, sources, scope) if sources else {}
        selection = self.selection.with_scope(scope)
        # The topics of a source are known only after its first batch.
        if not sources and self.checkpoint_location and selection.names_sources:
            return {}
        # The query may have moved to another cluster. Then nothing moves its group here any more.
        check = LogCheck(moves=moves, remedy=_if_moved())
        positions = {}
        for group, partitions in selection.scopes(sources or None).items():
            commits = group_commits(client, group, partitions)
            now = self.logs_now(client, {tp.topic for tp in commits})
            DriftError.raise_if(check.refusals(now, group, commits))
            positions[group] = committed_offsets(commits)
        return positions

    def logs_now(self, client: OffsetsReader, topics: Iterable[str]) -> LogIds:  # noqa: ARG002
        """Return the ids to compare with recorded ones: only that of the cluster, which needs no request."""
        return LogIds(client.cluster_id())

    def groups_without_commits(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> list[str]:
        """Return the groups without a commit in any topic that this user may see."""
        return [
            group
            for group, found in positions.items()
            if not self.position_is_checkpoint
            and all(at is None for at in found.values())
            # Requested only for a group without any commit in its topics, because the request is expensive.
            and not client.committed_everywhere(group)
        ]

    def base_json(self, **values: Any) -> dict[str, Any]:
        """Return the JSON of a reading, with the keys of all readings."""
        group_id = None if self.position_is_checkpoint else self.group_id
        position = "checkpoint" if self.position_is_checkpoint else "group"
        # Readings go to XCom, where a later version of the package may read them.
        return {"version": 1, "group_id": group_id, "position": position, **values, "progress": None}

    def reading_without_batch(self, **values: Any) -> Reading:
        """Return the reading of a checkpoint that has not finished its first batch."""
        return Reading(
            False, lambda: self.base_json(**values), "the checkpoint has not finished its first batch"
        )


def partition_table(
    lead: str,
    header: Sequence[str],
    rows: Mapping[TopicPartition, Sequence[str]],
    order: Callable[[TopicPartition], Any],
) -> str:
    """Return a table for the log, with a row for each partition; of many, the first ones in ``order``."""
    shown = sorted(sorted(rows, key=lambda tp: (order(tp), tp))[:SHOWN])
    cells = [(tp.topic, str(tp.partition), *rows[tp]) for tp in shown]
    more = [f"... and {plural(len(rows) - len(shown), 'more partition')}"] if len(shown) < len(rows) else []
    return "\n".join([lead, *align_rows([("TOPIC", "PARTITION", *header), *cells]), *more])


def unknown_groups_text(groups: Sequence[str]) -> str:
    """Return that the wait continues until the first commit of groups; ``""`` without groups."""
    if not groups:
        return ""
    several = len(groups) > 1
    names = ", ".join(shorten(repr(group)) for group in groups)
    return (
        f"{'groups' if several else 'group'} {names} {'have' if several else 'has'} committed nothing on "
        "this broker: the wait continues until the first commit; if the group should have one, correct "
        f"{parameter_text('group_id')} or the connection"
    )


def _if_moved() -> str:
    """Return the remedy for a position on another cluster."""
    return f"reset the pipeline with {parameter_text('allow_new_cluster', True)} if it was moved there"


def _checkpoint_positions(
    client: OffsetsReader, sources: Mapping[str, Offsets], scope: TopicScope
) -> dict[str, Positions]:
    """Return the position of each Kafka source; a partition that was added later has none."""
    UsageError.raise_if(GroupSelection(None, scope).unmatched_names(sources))
    result: dict[str, Positions] = {}
    for source, offsets in sources.items():
        topics = scope.restricted_to(tp.topic for tp in offsets)
        if topics.topics:
            # The name is for texts; most queries have one source, which needs no number.
            name = "the checkpoint" if len(sources) == 1 else f"source {source} of the checkpoint"
            result[name] = {tp: offsets.get(tp) for tp in partitions_in_scope(client, topics)}
    return result
