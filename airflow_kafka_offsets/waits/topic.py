"""Do topics hold all records up to a time?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.positions import partitions_in
from airflow_kafka_offsets.kafka.reader import OffsetsReader
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, Positions, TopicPartition, offsets_json
from airflow_kafka_offsets.model.parameters import check_seconds, iso_time, one_of, parse_time, timestamp_ms
from airflow_kafka_offsets.model.table import align
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.waits.wait import NO_BATCH_YET, SHOWN, Reading, Wait

IdlePartitionPolicy = Literal["wait", "ignore"]

IDLE_AFTER = 600.0

_TIMES_WITHIN = 5.0

_FURTHEST_BACK = 1024
"""Offsets before the log end where the last record is looked for: behind it may be markers of transactions."""


@dataclass(frozen=True)
class TopicWait(Wait):
    """
    Wait until every partition holds a record at or after a time: then whatever is older is there as well.

    That takes records whose times do not go back within a partition by more than the reader can bear, as a
    producer writes them.

    :param target: the time, as ISO 8601 text.
    :param on_idle_partition: ``wait`` for every partition, or ``ignore`` the idle ones, as long as a partition of
        the same topic holds a record at or after the time.
    :param idle_after: seconds: a partition whose newest record is older than that is idle.
    """

    needs_position: ClassVar[bool] = False

    target: str = ""
    on_idle_partition: IdlePartitionPolicy = "wait"
    idle_after: float = IDLE_AFTER

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.on_idle_partition, IdlePartitionPolicy, "on_idle_partition")
        parse_time(self.target, "target")
        if not (self.topics or self.group_id or self.checkpoint_location):
            raise UsageError("no topic to look at: topics, group_id and checkpoint_location are all empty")
        check_seconds(self.idle_after, "idle_after")

    def find(self, client: OffsetsReader, state: Any) -> Mapping[str, Positions]:
        """Return the partitions of the topics that are named, or that the checkpoint or the group reads."""
        scope = TopicScope.parse(self.topics)
        if scope.topics is not None:
            return {"": dict.fromkeys(partitions_in(client, scope))}
        found = self.positions_in(client, state, scope)
        return {"": dict.fromkeys(sorted({tp for each in found.values() for tp in each}))} if found else {}

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Look the time up in every partition."""
        moment = timestamp_ms(parse_time(self.target, "target"))
        partitions = sorted(positions.get("", {}))
        if not partitions:
            empty = self.base_value(target=iso_time(moment), reached=False, offsets={}, log_end={}, idle={})
            return Reading.of(False, lambda: empty, NO_BATCH_YET)
        logs = client.log_ranges(partitions, isolation_level=self.isolation_level)
        found = self._first(client, client.offsets_for_time(partitions, moment), moment, logs)
        first = {
            tp: offset if offset is not None and offset < logs[tp].end else None
            for tp, offset in found.items()
        }
        silent = [tp for tp, offset in first.items() if offset is None]
        idle = self._idle(client, silent, first) if silent and self.on_idle_partition == "ignore" else []
        missing = [tp for tp in silent if tp not in idle]
        ends: Positions = {tp: log.end for tp, log in logs.items()}
        value = self.base_value(
            target=iso_time(moment),
            reached=not missing,
            offsets=offsets_json(first),
            log_end=offsets_json(ends),
            idle=offsets_json({tp: ends[tp] for tp in idle}),
        )
        del value["group_id"], value["position"]
        text = self._table(iso_time(moment), first, ends, idle, missing)
        return Reading.of(not missing, lambda: value, text, positions={"": ends})

    def _first(
        self,
        client: OffsetsReader,
        found: Mapping[TopicPartition, int | None],
        moment: int,
        logs: Mapping[TopicPartition, LogRange],
    ) -> dict[TopicPartition, int | None]:
        """
        Return the first offset at or after the time, ``None`` where no record is that new.

        A lookup by time also finds the marker that ends a transaction, which carries the broker's clock. So the record
        that follows decides; and if that is an old one, the last of the log.
        """
        asked = {tp: offset for tp, offset in found.items() if offset is not None}
        times = self._times(client, asked)
        old = {tp: logs[tp] for tp in asked if (time := times.get(tp)) is not None and time < moment}
        times |= self._last_times(client, old)
        return {tp: offset if (times.get(tp) or -1) >= moment else None for tp, offset in found.items()}

    def _last_times(
        self, client: OffsetsReader, logs: Mapping[TopicPartition, LogRange]
    ) -> dict[TopicPartition, int | None]:
        """Return when the last record was written, or one of the last where many markers end a log."""
        times: dict[TopicPartition, int | None] = {}
        back = 1
        while logs and back <= _FURTHEST_BACK:
            asked = {tp: max(log.start, log.end - back) for tp, log in logs.items()}
            found = self._times(client, asked)
            times |= {tp: time for tp, time in found.items() if time is not None}
            logs = {tp: log for tp, log in logs.items() if times.get(tp) is None and asked[tp] > log.start}
            back *= 2
        return times

    def _times(self, client: OffsetsReader, offsets: Offsets) -> dict[TopicPartition, int | None]:
        if not offsets:
            return {}
        return client.record_times(offsets, within=_TIMES_WITHIN, isolation_level=self.isolation_level)

    def _idle(
        self, client: OffsetsReader, silent: list[TopicPartition], first: Mapping[TopicPartition, int | None]
    ) -> list[TopicPartition]:
        active = {tp.topic for tp, offset in first.items() if offset is not None}
        since = max(0, int((time.time() - self.idle_after) * 1000))
        newer = client.offsets_for_time(silent, since)
        return [tp for tp in silent if tp.topic in active and newer[tp] is None]

    def _table(
        self,
        moment: str,
        first: Mapping[TopicPartition, int | None],
        ends: Positions,
        idle: list[TopicPartition],
        missing: list[TopicPartition],
    ) -> str:
        rows = [("TOPIC", "PARTITION", "FIRST-OFFSET-SINCE", "LOG-END-OFFSET", "STATE")]
        shown = sorted(sorted(first, key=lambda tp: (tp not in missing, tp))[:SHOWN])
        for tp in shown:
            state = "idle" if tp in idle else "no record yet" if tp in missing else "reached"
            offset = "-" if first[tp] is None else str(first[tp])
            rows.append((tp.topic, str(tp.partition), offset, str(ends[tp]), state))
        done = (
            f"{len(missing)} of {len(first)} partitions hold no record since {moment}"
            if missing
            else f"all records before {moment} are there"
        )
        ignored = f"; {len(idle)} idle for {timedelta(seconds=self.idle_after)} are left out" if idle else ""
        more = [f"... and {len(first) - len(shown)} more partitions"] if len(shown) < len(first) else []
        return "\n".join([done + ignored, *align(rows), *more])
