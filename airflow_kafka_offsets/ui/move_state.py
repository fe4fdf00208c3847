"""Compares a move with the current commits of its groups: in place, taken back, or moved on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.ui.provenance import as_provenance

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

MovedPartitions = Mapping[str, Sequence[Sequence[Any]]]
"""Group -> topic, partition, offset before and offset after of each partition that a receipt has changed."""


def moved_partitions(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[list[Any]]]:
    """
    Return the partitions that a receipt has changed, as plain JSON.

    :param rows: group, topic, partition, before, after and more.
    """
    moved: dict[str, list[list[Any]]] = {}
    for group, topic, partition, before, after, *_ in rows:
        if before != after and after is not None:
            moved.setdefault(group, []).append([topic, partition, before, after])
    return moved


def read_move_state(client: OffsetsClient, moved: MovedPartitions) -> dict[str, Any] | None:
    """
    Compare a move with the current commits.

    See :class:`~airflow_kafka_offsets.ui.responses.MoveStateResponse`.

    :return: ``None`` if the move has changed nothing, or the commits cannot be read.
    """
    places, newest = set(), None
    for group, changed in moved.items():
        targets = {TopicPartition(topic, number): (before, after) for topic, number, before, after in changed}
        try:
            commits = client.committed(group, targets)
        except BrokerError:
            return None
        for tp, commit in commits.items():
            before, after = targets[tp]
            at = None if commit is None else commit.offset
            places.add("in place" if at == after else "taken back" if at == before else "moved on")
            made = CommitMetadata.of(commit)
            if made is not None and (newest is None or (made.at or 0) > (newest.at or 0)):
                newest = made
    if not places:
        return None
    state = places.pop() if len(places) == 1 else "moved on"
    # The viewer may read this receipt, but perhaps not the run of the newest commit.
    by = {} if newest is None else {name: as_provenance(newest)[name] for name in ("kind", "tool", "at")}
    return {"state": state, **by}
