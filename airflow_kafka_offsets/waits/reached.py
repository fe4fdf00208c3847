"""Is a position at or past a target that no longer moves?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.positions import partitions_in
from airflow_kafka_offsets.kafka.reader import OffsetsReader
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.lag import in_log, past_log_start, remaining
from airflow_kafka_offsets.model.offsets import (
    LogRange,
    Offsets,
    Positions,
    TopicPartition,
    load_json,
    offsets_json,
    parse_offsets,
)
from airflow_kafka_offsets.model.parameters import check_number, parse_time, timestamp_ms
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.reset_scenarios import offsets_at_time
from airflow_kafka_offsets.model.table import align
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.waits.wait import NO_BATCH_YET, SHOWN, Reading, Wait, check_in_log


@dataclass(frozen=True)
class ReachedWait(Wait):
    """
    Wait until the position is at or past a frozen target in every partition.

    :param target: offsets in Spark's form, see :meth:`freeze`.
    :param tolerance: offsets that a partition may be short of its target, see
        :class:`~airflow_kafka_offsets.model.lag.Lag`.
    """

    target: Mapping[str, Any] = field(default_factory=dict)
    tolerance: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.tolerance, "tolerance")

    @property
    def _wanted(self) -> Offsets:
        return parse_offsets(self.target, "target") if self.target else {}

    def find(self, client: OffsetsReader, state: Any) -> Mapping[str, Positions]:
        """Return the positions in the topics that the target names."""
        wanted = self._wanted
        if not wanted:
            return {}
        named = TopicScope(dict.fromkeys(sorted({tp.topic for tp in wanted})), named_by="target")
        return self.positions_in(client, state, named)

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Compare every group or source with the target."""
        target = self._wanted
        if target and not positions:
            value = self.base_value(
                reached=False, target=dict(self.target), current={}, remaining=None, lost=None
            )
            return Reading.of(False, lambda: value, NO_BATCH_YET)
        lowest = _furthest_behind(positions, target)
        # The log end of the broker, whatever is read: only beyond that a position means nothing.
        logs = client.log_ranges(target) if target else {}
        for name, found in positions.items():
            check_in_log(name, found, logs)
        short = remaining(in_log(lowest, logs), past_log_start(lowest, target, logs), self.tolerance)
        lost = {
            tp: min(end, logs[tp].start) - position
            for tp, end in target.items()
            if (position := lowest[tp]) is not None and position < min(end, logs[tp].start)
        }
        value = self.base_value(
            reached=not short,
            target=dict(self.target),
            current=offsets_json(lowest),
            remaining=sum(short.values()),
            lost=sum(lost.values()),
        )
        return Reading.of(
            not short, lambda: value, _table(target, lowest, logs, short, lost), positions=positions
        )

    def freeze(self, client: OffsetsReader, target: object) -> Offsets:
        """
        Turn what the user asked for into offsets that no longer move.

        :param target: ``latest`` (the log end now); a time (the first record at or after it, else the log
            end now); offsets in Spark's form; or a receipt (the offsets it moved to). The last two also as JSON text,
            and without what ``topics`` leaves out.
        :raises UsageError: if it is none of these, or has nothing of what ``topics`` names.
        """
        if isinstance(target, str) and target.lstrip().startswith("{"):
            target = load_json(target, "target")
        scope = TopicScope.parse(self.topics)
        if isinstance(target, Mapping):
            offsets = _moved_to(target) if "version" in target else parse_offsets(target, "target")
            if refusals := Groups(None, scope).misnamed({"target": offsets}, "the target", partitions=True):
                raise UsageError("; ".join(refusals))
            return {tp: offset for tp, offset in offsets.items() if tp in scope}
        moment = None if target == "latest" else parse_time(target, "target")
        if self.group_id is not None and not self.checkpoint_location:
            self.named.scopes()
        if scope.topics is not None:
            partitions = partitions_in(client, scope)
        else:
            found = self.positions_in(client, self.read_checkpoint(), scope)
            partitions = sorted({tp for each in found.values() for tp in each})
            if not partitions:
                raise UsageError(
                    "the checkpoint has finished no batch, so its topics are unknown and there is no target to freeze: "
                    "name topics="
                )
        logs = client.log_ranges(partitions, isolation_level=self.isolation_level)
        if moment is None:
            return {tp: log.end for tp, log in logs.items()}
        return offsets_at_time(client.offsets_for_time(partitions, timestamp_ms(moment)), logs)


def _moved_to(receipt: Mapping[str, Any]) -> Offsets:
    reached: Offsets = {}
    for each in read_receipt(receipt):
        if each.plan_only:
            raise UsageError(
                f"target is the receipt of a plan that was not carried out (plan_only, group {each.group_id!r}): "
                "nobody committed its offsets; give the receipt of a task that moved the group"
            )
        for tp, offset in each.after.items():
            reached[tp] = max(offset, reached.get(tp, 0))
    return reached


def _furthest_behind(positions: Mapping[str, Positions], target: Offsets) -> Positions:
    """Return, of several positions of one partition, the one that is furthest behind."""
    lowest: Positions = {}
    for each in positions.values():
        for tp, position in each.items():
            known = lowest.get(tp, position)
            lowest[tp] = None if known is None or position is None else min(known, position)
    return {tp: lowest.get(tp) for tp in target}


def _table(
    target: Offsets,
    current: Positions,
    logs: Mapping[TopicPartition, LogRange],
    short: Offsets,
    lost: Offsets,
) -> str:
    shown = sorted(sorted(target, key=lambda tp: (-short.get(tp, 0), tp))[:SHOWN])
    rows = [("TOPIC", "PARTITION", "CURRENT-OFFSET", "TARGET", "REMAINING")]
    for tp in shown:
        position = "-" if current[tp] is None else str(current[tp])
        note = f"  ({lost[tp]} records lost to retention)" if tp in lost else ""
        note += f"  (the log ends at {logs[tp].end})" if target[tp] > logs[tp].end else ""
        rows.append((tp.topic, str(tp.partition), position, str(target[tp]), str(short.get(tp, 0)) + note))
    done = f"{sum(short.values())} records before the target" if short else "the target is reached"
    more = [f"... and {len(target) - len(shown)} more partitions"] if len(shown) < len(target) else []
    return "\n".join([done, *align(rows), *more])
