"""A wait until topics have all records up to a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.offsets import Positions, TopicPartition
from airflow_kafka_offsets.model.parameters import (
    choice_parser,
    duration_text,
    iso_time,
    parse_interval,
    parse_time,
    time_example,
    timestamp_ms,
)
from airflow_kafka_offsets.model.table import offset_cell
from airflow_kafka_offsets.model.wording import dag_text, parameter_error, parameter_text
from airflow_kafka_offsets.readings.positions import partitions_in_scope
from airflow_kafka_offsets.readings.topic_times import IDLE_AFTER, first_records, idle_partitions
from airflow_kafka_offsets.waits.wait import KnownCheckpoint, Reading, Wait, partition_table

IdlePartitionPolicy = Literal["wait", "ignore"]


@dataclass(frozen=True)
class TopicWait(Wait):
    """
    Wait until every partition has a record at or after a time, so that all older records are in the log too.

    This assumes that timestamps within a partition go back at most as far as the reader tolerates. The
    parameters are those of ``TopicReachedSensor``, with ``idle_after`` in seconds.
    """

    parsers: ClassVar = {
        **{name: read for name, read in Wait.parsers.items() if name != "position"},
        "target": lambda value, name: iso_time(timestamp_ms(parse_time(value, name))),
        "on_idle_partition": choice_parser(IdlePartitionPolicy),
        "idle_after": parse_interval,
    }

    target: str | None = None
    on_idle_partition: IdlePartitionPolicy = "wait"
    idle_after: float | None = None

    @classmethod
    def check_parameters(cls, parameters: Any) -> None:
        """Refuse parameters that are missing or contradict each other."""
        if all(getattr(parameters, name) is None for name in ("topics", "group_id", "checkpoint_location")):
            raise UsageError(
                f"no topic to read: give {parameter_text('topics')}{dag_text(', or **pipeline')}"
            )
        if parameters.target is None:
            raise parameter_error("target", f" is missing: give {time_example('data_interval_end')}")
        if parameters.idle_after is not None and parameters.on_idle_partition in (None, "wait"):
            raise UsageError(
                f"{parameter_text('idle_after')} is given, but idle partitions are not ignored: set "
                f"{parameter_text('on_idle_partition', 'ignore')}"
            )

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the topics come from the checkpoint; not needed if topics are named."""
        return super().needs_checkpoint and self.selection.scope.topics is None

    def find_positions(
        self, client: OffsetsReader, checkpoint: KnownCheckpoint | None
    ) -> Mapping[str, Positions]:
        """Return the partitions of the named topics, or of the checkpoint's or the group's topics."""
        scope = self.selection.scope
        if scope.topics is not None:
            return {"": dict.fromkeys(partitions_in_scope(client, scope))}
        found = self.positions_in(client, checkpoint, scope)
        return {"": dict.fromkeys(sorted({tp for each in found.values() for tp in each}))} if found else {}

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Look up the time in every partition."""
        moment = timestamp_ms(parse_time(self.target, "target"))
        partitions = sorted(positions.get("", {}))
        if not partitions:
            return self.reading_without_batch(reached=False, offsets={}, log_end={}, idle={})
        logs = client.log_ranges(partitions, isolation_level=self.isolation_level)
        found, ahead = first_records(client, partitions, moment, logs, self.isolation_level)
        first = {tp: at if at is not None and at < logs[tp].end else None for tp, at in found.items()}
        silent = [tp for tp, offset in first.items() if offset is None]
        idle = []
        if silent and self.on_idle_partition == "ignore":
            active = {tp.topic for tp, offset in first.items() if offset is not None}
            idle = idle_partitions(client, silent, active, self.idle_after or IDLE_AFTER)
            if self.isolation_level == "read_committed" and idle:
                # An open transaction may add records before the time when it is committed.
                whole = client.log_ranges(idle)
                idle = [tp for tp in idle if whole[tp].end <= logs[tp].end]
        missing = [tp for tp in silent if tp not in idle]
        ends: Positions = {tp: log.end for tp, log in logs.items()}
        value = self.base_json(
            reached=not missing,
            offsets=offsets_json(first),
            log_end=offsets_json(ends),
            idle=offsets_json({tp: ends[tp] for tp in idle}),
        )
        text = self._table(first, ends, idle, missing, ahead)
        return Reading(not missing, lambda: value, text, positions={"": ends})

    def base_json(self, **values: Any) -> dict[str, Any]:
        """Return the JSON of a reading, with the keys of all topic readings."""
        return {"version": 1, "target": self.target, **values}

    def _table(
        self,
        first: Positions,
        ends: Positions,
        idle: list[TopicPartition],
        missing: list[TopicPartition],
        ahead: set[TopicPartition],
    ) -> str:
        state = dict.fromkeys(first, "reached")
        state |= {tp: "ahead of the clock" if tp in ahead else "no record yet" for tp in missing}
        state |= dict.fromkeys(idle, "idle")
        rows = {tp: (offset_cell(first[tp]), offset_cell(ends[tp]), state[tp]) for tp in first}
        lead = f"all records before {self.target} are in the topics"
        if missing:
            lead = f"{len(missing)} of {len(first)} partitions have no record since {self.target}"
        if idle:
            lead += f"; {len(idle)} idle for {duration_text(self.idle_after or IDLE_AFTER)} are left out"
        header = ("FIRST-OFFSET-SINCE", "LOG-END-OFFSET", "STATE")
        return partition_table(lead, header, rows, lambda tp: tp not in missing)
