"""
What is a wait for, and is it over?

A wait compares a position (a group's commits, or the newest committed batch of a checkpoint) with what is
wanted of it. Its parameters are plain JSON, so that the same wait runs on a worker and, once it is
deferred, on a triggerer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.positions import IsolationLevel, group_positions, lag_of, partitions_in
from airflow_kafka_offsets.model.lag import Lag, NoCommitPolicy, past_log_start, remaining
from airflow_kafka_offsets.model.offsets import Offsets, Positions, offsets_json, parse_offsets
from airflow_kafka_offsets.model.plan import align, one_of
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.scenarios import offsets_at_time, parse_time, timestamp_ms
from airflow_kafka_offsets.model.scope import TopicScope, group_scopes, parse_group_id

PositionSource = Literal["group", "checkpoint"]


@dataclass(frozen=True)
class Reading:
    """
    What one look at the broker saw.

    :param done: whether the wait is over.
    :param value: the reading as plain JSON.
    :param text: the reading as lines for the log.
    """

    done: bool
    value: dict[str, Any]
    text: str


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
    """

    group_id: str | Mapping[str, str] | None = None
    topics: Any = None
    checkpoint_location: str | None = None
    checkpoint_conn_id: str | None = None
    kafka_config_id: str = "kafka_default"
    position: str | None = None
    isolation_level: IsolationLevel = "read_uncommitted"

    def __post_init__(self) -> None:
        one_of(self.isolation_level, IsolationLevel, "isolation_level")
        if self.position:
            one_of(self.position, PositionSource, "position")
        if self.from_checkpoint and not self.checkpoint_location:
            raise UsageError("no position to look at: give group_id, or checkpoint_location")
        if self.position == "group" and not self.group_id:
            raise UsageError("position='group' and no group_id: name the group, or use position='checkpoint'")

    @property
    def from_checkpoint(self) -> bool:
        """Whether the position is the checkpoint's."""
        return self.position == "checkpoint" or not (self.position or self.group_id)

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
        _ = self.checkpoint
        return KafkaOffsetsHook(self.kafka_config_id).get_offsets_client()

    def positions(self, client: OffsetsClient, scope: TopicScope) -> dict[str, Positions]:
        """
        Return where each group, or each source of the checkpoint, stands in the scope.

        Empty while a checkpoint has not finished its first batch.
        """
        state = self.checkpoint.read() if self.checkpoint is not None else None
        if self.from_checkpoint:
            return {} if state is None else _checkpoint_positions(client, state, scope)
        group_id = parse_group_id(self.group_id)
        sources = None if state is None or state.batch_id is None else state.kafka_offsets
        scopes = group_scopes(group_id, scope, sources)
        return {group: group_positions(client, group, partitions) for group, partitions in scopes.items()}

    def look(self, client: OffsetsClient) -> Reading:
        """Read the position and say whether the wait is over."""
        raise NotImplementedError

    def _reading(self, **values: Any) -> dict[str, Any]:
        group_id = None if self.from_checkpoint else self.group_id
        position = "checkpoint" if self.from_checkpoint else "group"
        return {"version": 1, "group_id": group_id, "position": position, **values}


@dataclass(frozen=True)
class LagWait(Wait):
    """
    Wait until lag is at or below thresholds, the log's end moving on meanwhile.

    :param max_lag: records in all partitions together.
    :param max_partition_lag: records in each partition.
    :param on_no_commit: what a partition without a commit counts as.
    """

    max_lag: int | None = None
    max_partition_lag: int | None = None
    on_no_commit: NoCommitPolicy = "fail"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.on_no_commit, NoCommitPolicy, "on_no_commit")

    def look(self, client: OffsetsClient) -> Reading:
        """Measure the lag of every group or source; all of them count together."""
        lags = [
            lag_of(
                client, name, positions, on_no_commit=self.on_no_commit, isolation_level=self.isolation_level
            )
            for name, positions in self.positions(client, TopicScope.parse(self.topics)).items()
        ]
        if not lags:
            return Reading(False, self._reading(total_lag=None, max_lag=None, partitions=[]), NO_BATCH_YET)
        together = Lag("all", tuple(partition for lag in lags for partition in lag.partitions))
        if len(lags) == 1:
            value = self._reading(**together.as_json())
        else:
            each = [{"name": lag.name, **lag.as_json()} for lag in lags]
            value = self._reading(total_lag=together.total, max_lag=together.max, groups=each)
        done = together.within(self.max_lag, self.max_partition_lag)
        return Reading(done, value, "\n".join(lag.table() for lag in lags))


@dataclass(frozen=True)
class ReachedWait(Wait):
    """
    Wait until the position is at or past a frozen target in every partition.

    :param target: offsets in Spark's form, see :meth:`freeze`.
    """

    target: Mapping[str, Any] = field(default_factory=dict)

    def look(self, client: OffsetsClient) -> Reading:
        """Compare every group or source with the target."""
        target = parse_offsets(self.target, "target") if self.target else {}
        positions = self.positions(client, TopicScope().narrowed(tp.topic for tp in target)) if target else {}
        if target and not positions:
            return Reading(
                False, self._reading(reached=False, target=dict(self.target), remaining=None), NO_BATCH_YET
            )
        # Of several positions of one partition the one that is furthest behind decides.
        lowest: Positions = {}
        for each in positions.values():
            for tp, position in each.items():
                known = lowest.get(tp, position)
                lowest[tp] = None if known is None or position is None else min(known, position)
        lowest = {tp: lowest.get(tp) for tp in target}
        without = [tp for tp, position in lowest.items() if position is None]
        if without:
            target = past_log_start(lowest, target, client.log_ranges(target))
        short = remaining(lowest, target)
        value = self._reading(
            reached=not short,
            target=dict(self.target),
            current=offsets_json(lowest),
            remaining=sum(short.values()),
        )
        rows = [("TOPIC", "PARTITION", "CURRENT-OFFSET", "TARGET", "REMAINING")]
        for tp, end in sorted(target.items()):
            current = "-" if lowest[tp] is None else str(lowest[tp])
            rows.append((tp.topic, str(tp.partition), current, str(end), str(short.get(tp, 0))))
        done = f"{sum(short.values())} records before the target" if short else "the target is reached"
        return Reading(not short, value, "\n".join([done, *align(rows)]))

    def freeze(self, client: OffsetsClient, target: object) -> Offsets:
        """
        Turn what the user asked for into offsets that no longer move.

        :param target: ``latest`` (the log end now); a time (the first record at or after it, else the log
            end now); offsets in Spark's form; or a receipt (the offsets it moved to).
        :raises UsageError: if it is none of these.
        """
        if isinstance(target, Mapping) and "version" in target:
            reached: Offsets = {}
            for receipt in read_receipt(target):
                if receipt.plan_only:
                    raise UsageError(
                        f"target is the receipt of a plan that was not carried out (plan_only, group {receipt.group_id!r}): "
                        "nobody committed its offsets; give the receipt of a task that moved the group"
                    )
                for tp, offset in receipt.after.items():
                    reached[tp] = max(offset, reached.get(tp, 0))
            return reached
        if isinstance(target, Mapping) or (isinstance(target, str) and target.lstrip().startswith("{")):
            return parse_offsets(target, "target")
        moment = None if target == "latest" else parse_time(target, "target")
        scope = TopicScope.parse(self.topics)
        if scope.topics is not None:
            partitions = partitions_in(client, scope)
        else:
            partitions = sorted({tp for each in self.positions(client, scope).values() for tp in each})
            if not partitions:
                raise UsageError(
                    "the checkpoint has finished no batch, so its topics are unknown and there is no target to freeze: "
                    "name topics="
                )
        logs = client.log_ranges(partitions, isolation_level=self.isolation_level)
        if moment is None:
            return {tp: log.end for tp, log in logs.items()}
        return offsets_at_time(client.offsets_for_time(partitions, timestamp_ms(moment)), logs)


NO_BATCH_YET = "the checkpoint has not finished its first batch"


def _checkpoint_positions(
    client: OffsetsClient, state: CheckpointState, scope: TopicScope
) -> dict[str, Positions]:
    """Return the position of each Kafka source; a partition that was added since has none."""
    sources = state.kafka_offsets
    result: dict[str, Positions] = {}
    for source, offsets in sources.items():
        topics = scope.narrowed(tp.topic for tp in offsets)
        if topics.topics:
            name = "the checkpoint" if len(sources) == 1 else f"source {source} of the checkpoint"
            result[name] = {tp: offsets.get(tp) for tp in partitions_in(client, topics)}
    return result
