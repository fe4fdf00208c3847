"""
What is a wait for, and is it over?

A wait compares a position (a group's commits, or the newest committed batch of a checkpoint) with what is
wanted of it. Its parameters are plain JSON, so that the same wait runs on a worker and, once it is
deferred, on a triggerer. A look has two steps, so that many waits can share what they ask: all find their
positions first, then all are judged by the logs. In that order a live group can only look further behind
than it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, CheckpointNotFoundError, DriftError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.kafka.positions import group_positions, partitions_in
from airflow_kafka_offsets.kafka.reader import IsolationLevel, OffsetsReader
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import (
    LogRange,
    Offsets,
    Positions,
    TopicPartition,
    offsets_json,
    summarize,
)
from airflow_kafka_offsets.model.parameters import check_seconds, one_of
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.task.given import check_rendered

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

PositionSource = Literal["group", "checkpoint"]

NO_BATCH_YET = "the checkpoint has not finished its first batch"

SHOWN = 20
"""Partitions in the table of a look: those that are furthest behind."""


@dataclass(frozen=True)
class Reading:
    """
    What one look at the broker saw. A triggerer keeps hundreds of them, so they are small.

    :param done: whether the wait is over.
    :param as_json: returns the reading as plain JSON.
    :param text: the reading as lines for the log.
    :param standing: the positions as a short text that changes when one of them does, and not for a partition that was
        added and has none yet.
    :param digest: what it says as a short text that changes with it, but for what changes by itself, such as an age.
    :param lags: what was measured.
    :param checkpoint: where the positions come from, if not from a group.
    """

    done: bool
    as_json: Callable[[], dict[str, Any]]
    text: str
    standing: str
    digest: str
    lags: tuple[Lag, ...] = ()
    checkpoint: str | None = None

    @classmethod
    def of(
        cls,
        done: bool,
        as_json: Callable[[], dict[str, Any]],
        text: str,
        *,
        news: str = "",
        positions: Mapping[str, Positions] | None = None,
        **more: Any,
    ) -> Reading:
        """
        Make a reading.

        :param news: the text without what changes by itself; by default the text.
        :param positions: where each group or source stands.
        """
        plain = {
            name: offsets_json({tp: at for tp, at in found.items() if at is not None})
            for name, found in (positions or {}).items()
        }
        return cls(
            done, as_json, text, _digest(json.dumps(plain, sort_keys=True)), _digest(news or text), **more
        )

    @property
    def value(self) -> dict[str, Any]:
        """The reading as plain JSON."""
        return self.as_json()


@dataclass(frozen=True)
class Wait:
    """
    Whose position is looked at, and where.

    :param group_id: see :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline`; not needed with a checkpoint.
    :param topics: see there.
    :param checkpoint_location: see there.
    :param checkpoint_conn_id: see there.
    :param kafka_config_id: see there.
    :param position: ``group`` or ``checkpoint``; by default the group's where one is named.
    :param isolation_level: ``read_committed`` measures up to the last stable offset.
    :param stalled_after: seconds without any movement of the position after which the wait fails; ``None`` = never.
    """

    needs_position: ClassVar[bool] = True

    group_id: str | Mapping[str, str] | None = None
    topics: Any = None
    checkpoint_location: str | None = None
    checkpoint_conn_id: str | None = None
    kafka_config_id: str = "kafka_default"
    position: str | None = None
    isolation_level: IsolationLevel = "read_uncommitted"
    stalled_after: float | None = None

    def __post_init__(self) -> None:
        one_of(self.isolation_level, IsolationLevel, "isolation_level")
        _ = self.named
        for name in ("checkpoint_location", "checkpoint_conn_id", "kafka_config_id", "position"):
            check_rendered(name, getattr(self, name), getattr(self, name))
        if self.position is not None:
            one_of(self.position, PositionSource, "position")
        if self.needs_position and self.group_id is None and not self.checkpoint_location:
            raise UsageError("no position to look at: group_id and checkpoint_location are both missing")
        if self.position == "checkpoint" and not self.checkpoint_location:
            raise UsageError("position='checkpoint' and no checkpoint_location: name the checkpoint")
        if self.position == "group" and self.group_id is None:
            raise UsageError("position='group' and no group_id: name the group, or use position='checkpoint'")
        if self.stalled_after is not None:
            check_seconds(self.stalled_after, "stalled_after")

    @property
    def from_checkpoint(self) -> bool:
        """Whether the position is the checkpoint's."""
        return self.position == "checkpoint" or not (self.position or self.group_id)

    @cached_property
    def named(self) -> Groups:
        """The groups and topics that are named."""
        return Groups.parse(self.group_id, self.topics, required=False)

    @property
    def groups(self) -> frozenset[str]:
        """The groups whose commits are read."""
        return frozenset() if self.from_checkpoint else frozenset(self.named.ids)

    @property
    def parameters(self) -> dict[str, Any]:
        """The wait as plain JSON, to make it again elsewhere."""
        return asdict(self)

    @cached_property
    def checkpoint(self) -> SparkCheckpoint | None:
        """The checkpoint, if one is named. The connection of its storage is looked up here, once."""
        if not self.checkpoint_location:
            return None
        return spark_checkpoint(self.checkpoint_location, self.checkpoint_conn_id)

    def open(self) -> OffsetsClient:
        """Look up the connections and return a client, to be closed by the caller."""
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

        _ = self.checkpoint
        return KafkaOffsetsHook(self.kafka_config_id).get_offsets_client()

    def read_checkpoint(self) -> CheckpointState | None:
        """
        Return what the checkpoint says now; ``None`` if none is named.

        Where the position is the group's, the checkpoint only says which topics there are, and need not be there yet.
        """
        if self.checkpoint is None:
            return None
        try:
            return self.checkpoint.read()
        except CheckpointNotFoundError:
            if self.from_checkpoint:
                raise
            return None

    def find(self, client: OffsetsReader, state: CheckpointState | None) -> Mapping[str, Positions]:
        """
        Return where each group, or each source of the checkpoint, stands.

        Empty while a checkpoint has not finished its first batch.

        :param state: from :meth:`read_checkpoint`.
        """
        return self.positions_in(client, state, self.named.scope)

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Say whether the wait is over; the logs are read now, after the positions."""
        raise NotImplementedError

    def look(self, client: OffsetsReader) -> Reading:
        """Read the position and say whether the wait is over."""
        return self.judge(client, self.find(client, self.read_checkpoint()))

    def positions_in(
        self, client: OffsetsReader, state: CheckpointState | None, scope: TopicScope
    ) -> dict[str, Positions]:
        """
        Return where each group, or each source of the checkpoint, stands in a scope.

        :raises UsageError: if names select nothing, see :mod:`airflow_kafka_offsets.model.groups`.
        :raises CheckpointError: if the checkpoint's newest batch has no Kafka offsets.
        """
        sources = None
        if state is not None and state.batch_id is not None:
            sources = state.kafka_offsets
            if state.without_kafka:
                raise CheckpointError(state.without_kafka)
        if self.from_checkpoint:
            return _checkpoint_positions(client, sources, scope) if sources else {}
        named = self.named.within(scope)
        if not sources and self.checkpoint_location and named.names_sources:
            return {}
        scopes = named.scopes(sources or None)
        return {group: group_positions(client, group, partitions) for group, partitions in scopes.items()}

    def base_value(self, **values: Any) -> dict[str, Any]:
        """Return a reading's JSON, with what all readings have."""
        group_id = None if self.from_checkpoint else self.group_id
        position = "checkpoint" if self.from_checkpoint else "group"
        return {"version": 1, "group_id": group_id, "position": position, **values}


def check_in_log(
    name: str, positions: Mapping[TopicPartition, int | None], logs: Mapping[TopicPartition, LogRange]
) -> None:
    """
    Refuse positions beyond the log end, which mean nothing in this log.

    :raises DriftError: naming them.
    """
    beyond = {
        tp: position
        for tp, position in positions.items()
        if position is not None and tp in logs and position > logs[tp].end
    }
    if beyond:
        tp = min(beyond)
        raise DriftError(
            f"{name} stands beyond the log end in {summarize(beyond)} (at {beyond[tp]} in {tp}, which ends at "
            f"{logs[tp].end}): the topic was deleted and created again, or kafka_config_id leads to another cluster; "
            "correct the connection, or reset the pipeline"
        )


def _checkpoint_positions(
    client: OffsetsReader, sources: Mapping[str, Offsets], scope: TopicScope
) -> dict[str, Positions]:
    """Return the position of each Kafka source; a partition that was added since has none."""
    if refusals := Groups(None, scope).misnamed(sources):
        raise UsageError("; ".join(refusals))
    result: dict[str, Positions] = {}
    for source, offsets in sources.items():
        topics = scope.narrowed(tp.topic for tp in offsets)
        if topics.topics:
            name = "the checkpoint" if len(sources) == 1 else f"source {source} of the checkpoint"
            result[name] = {tp: offsets.get(tp) for tp in partitions_in(client, topics)}
    return result


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
