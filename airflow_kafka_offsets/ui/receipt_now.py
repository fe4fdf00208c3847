"""Reads what became of a receipt: the times of its records, and whether its move is still in place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.table import DELETED, furthest_moves, time_text
from airflow_kafka_offsets.model.text import join_first
from airflow_kafka_offsets.readings.topic_times import read_times_at
from airflow_kafka_offsets.ui.provenance import as_provenance


class ReceiptRow(NamedTuple):
    """A partition in a receipt's table; the times of the records are from when the move was planned."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int | None
    moved_by: int | None
    log_start: int | None
    log_end: int | None
    note: str | None = None
    """Why the partition was not moved to the requested offset."""
    time_before: str | None = None
    time_after: str | None = None


def _moved_by(row: ReceiptRow) -> int:
    return (row.after or 0) - (row.before if row.before is not None else row.log_start or 0)


def other_topics(client: OffsetsClient, recorded: Mapping[str, str | None]) -> set[str]:
    """Return the topics that may not be those of a receipt: offsets there may be of other records."""
    now = client.log_ids(recorded).topics
    return {topic for topic, topic_id in recorded.items() if topic_id is None or now.get(topic) != topic_id}


def read_move_state(client: OffsetsClient, rows: Iterable[ReceiptRow]) -> dict[str, Any] | None:
    """
    Compare a move with the current commits of its groups.

    :return: the ``state`` (``in place``, ``in part``, ``taken back`` or ``moved on``), with ``tool`` and
        ``at`` of the newest commit; ``None`` if the move has changed nothing, or the commits cannot be read.
    """
    moved: dict[str, dict[TopicPartition, ReceiptRow]] = {}
    for row in rows:
        if row.before != row.after and row.after is not None:
            moved.setdefault(row.group, {})[TopicPartition(row.topic, row.partition)] = row
    places, newest = set(), CommitMetadata()
    for group, changed in moved.items():
        try:
            commits = client.committed(group, changed)
        except BrokerError:
            return None
        for tp, commit in commits.items():
            row, at = changed[tp], None if commit is None else commit.offset
            places.add("in place" if at == row.after else "taken back" if at == row.before else "moved on")
            newest = max(newest, CommitMetadata.of(commit) or newest, key=lambda made: made.at or 0)
    if not places:
        return None
    state = places.pop() if len(places) == 1 else "moved on" if "moved on" in places else "in part"
    # The viewer may read this receipt, but perhaps not the run of the newest commit.
    by = as_provenance(newest)
    return {"state": state, "tool": by["tool"], "at": by["at"]}


def read_times(
    client: OffsetsClient, rows: Sequence[ReceiptRow], others: Collection[str], within: float
) -> dict[str, Any]:
    """
    Read the times of the records at offsets of a receipt; of many rows only for those that moved furthest.

    :return: ``times``, the columns ``before`` and ``after`` with a value for each row of the receipt: a time,
        ``deleted`` if retention has deleted the record, ``end`` if no record follows, or ``None`` if unknown;
        and ``problems``.
    """
    shown, left_out = furthest_moves(list(enumerate(rows)), lambda each: _moved_by(each[1]))
    wanted = [
        (number, column, TopicPartition(row.topic, row.partition), offset)
        for number, row in shown
        for column, offset in (("before", row.before), ("after", row.after))
        if offset is not None
    ]
    logs = client.log_ranges({tp for _, _, tp, _ in wanted if tp.topic not in others})
    there = {(tp, offset) for *_, tp, offset in wanted if tp in logs and offset in logs[tp]}
    times = read_times_at(client, there, within)
    found: dict[str, list[str | None]] = {name: [None] * len(rows) for name in ("before", "after")}
    for number, column, tp, offset in wanted:
        if tp in logs:
            found[column][number] = DELETED if offset < logs[tp].start else time_text(times, tp, offset)
    problems = []
    if left_out:
        problems.append("record times are shown only for the partitions that moved furthest")
    if others:
        problems.append(
            f"not known to be the topic of this receipt: {join_first(sorted(others))}. It was created again, "
            "the connection leads to another cluster, or the receipt does not have its id. Its record times "
            "are not shown, nor where the groups are now"
        )
    return {"times": found, "problems": problems}
