"""
What is kept beside a checkpoint, so that its position can be translated to a mirror when the source is gone.

For the last few committed positions: the last record that was read of each partition, and the offset syncs
around the position, which MirrorMaker's own topic loses to compaction.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.offset_syncs import OffsetSync
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Offsets, TopicPartition, is_topic_name
from airflow_kafka_offsets.model.text import describe_type
from airflow_kafka_offsets.model.translation import DIGEST_LENGTH, LastRead, RecordIdentity

VERSION = 1
POSITIONS = 5
"""Positions that are kept."""
MOST_PARTITIONS = 10_000
"""Of all kept positions together: of many partitions fewer positions are kept."""
_SYNCS_BESIDE = 2
"""Syncs that are kept on each side of a position."""
_RESTARTS = 3
"""Restarts of the mirror of which the syncs on both sides are kept."""


@dataclass(frozen=True)
class Readiness:
    """
    What is kept.

    :param batch_id: the newest batch of which it was kept.
    :param at: when, in seconds since 1970.
    :param cluster: id of the cluster that the positions count on.
    :param read: the last records before the last few positions of each partition, newest first.
    :param ends: the ends of the source's logs then.
    :param syncs: those around these positions.
    :param syncs_topic: where the syncs are from.
    :param syncs_next: the offset of that topic from which the next ones are read.
    :param error: why not all of it could be kept; empty if it was.
    """

    batch_id: int = -1
    at: int = 0
    cluster: str = ""
    read: Mapping[TopicPartition, Sequence[LastRead]] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    syncs: Mapping[TopicPartition, Sequence[OffsetSync]] = field(default_factory=dict)
    syncs_topic: str = ""
    syncs_next: int = 0
    error: str = ""

    def on(self, cluster: str) -> Readiness:
        """Return what counts on a cluster: all of it, or nothing."""
        return self if "" in (cluster, self.cluster) or cluster == self.cluster else Readiness()

    def with_position(
        self,
        batch_id: int,
        at: int,
        cluster: str,
        read: Mapping[TopicPartition, Iterable[LastRead]],
        ends: Offsets,
    ) -> Readiness:
        """Return it with another position, and without what is too old."""
        known = self.on(cluster)
        most = max(1, min(POSITIONS, MOST_PARTITIONS // max(1, len(ends))))
        kept = {
            tp: [*new, *(last for last in known.read.get(tp, ()) if last not in new)][: max(most, len(new))]
            for tp in ends
            if (new := list(read.get(tp, ()))) or tp in known.read
        }
        return replace(known, batch_id=batch_id, at=at, cluster=cluster, read=kept, ends=dict(ends), error="")

    def with_syncs(
        self, syncs: Mapping[TopicPartition, Iterable[OffsetSync]], topic: str, following: int
    ) -> Readiness:
        """Return it with the syncs that were read since, of which those around the positions are kept."""
        known = self.syncs if self.syncs_topic in ("", topic) else {}
        kept = {
            tp: around(
                [*known.get(tp, ()), *syncs.get(tp, ())], [last.position for last in self.read.get(tp, ())]
            )
            for tp in self.ends
        }
        found = {tp: each for tp, each in kept.items() if each}
        return replace(self, syncs=found, syncs_topic=topic, syncs_next=following)

    def as_text(self) -> str:
        """Return the text of the file."""
        value = {
            "version": VERSION,
            "batch_id": self.batch_id,
            "at": self.at,
            "cluster": self.cluster,
            "error": self.error,
            "ends": _nested(self.ends),
            "read": _nested({tp: [_last_read(last) for last in each] for tp, each in self.read.items()}),
            "syncs_topic": self.syncs_topic,
            "syncs_next": self.syncs_next,
            "syncs": _nested({tp: [list(sync) for sync in each] for tp, each in self.syncs.items()}),
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, what: str) -> Readiness:
        """
        Read what :meth:`as_text` returned.

        :raises OffsetsFormatError: if it is anything else.
        """
        value = load_json(text, what, describe=describe_type)
        try:
            if value["version"] != VERSION:
                raise ValueError
            return cls(
                batch_id=_number(value["batch_id"], -1),
                at=_number(value["at"]),
                cluster=_text(value["cluster"]),
                read={tp: [_parse_read(*last) for last in each] for tp, each in _flat(value["read"]).items()},
                ends={tp: _number(each) for tp, each in _flat(value["ends"]).items()},
                syncs={
                    tp: [OffsetSync(*map(_number, sync)) for sync in each]
                    for tp, each in _flat(value["syncs"]).items()
                },
                syncs_topic=_text(value["syncs_topic"]),
                syncs_next=_number(value["syncs_next"]),
                error=_text(value["error"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise OffsetsFormatError(
                f"{what}: found {describe_type(value)}; expected what this package keeps of the mirror, of "
                f"version {VERSION}: move the file away, and the next commit writes it again"
            ) from None


def around(syncs: Iterable[OffsetSync], positions: Iterable[int]) -> list[OffsetSync]:
    """Return the syncs next to positions, the last one, and those on both sides of the last restarts."""
    ordered = sorted(set(syncs), key=lambda sync: sync.downstream)
    kept: set[OffsetSync] = set(ordered[-1:])
    for position in positions:
        before = [sync for sync in ordered if sync.upstream <= position]
        kept.update(
            before[-_SYNCS_BESIDE:], [sync for sync in ordered if sync.upstream > position][:_SYNCS_BESIDE]
        )
    restarts = [
        pair
        for pair in itertools.pairwise(ordered)
        if pair[1].downstream - pair[0].downstream > pair[1].upstream - pair[0].upstream
    ]
    kept.update(sync for pair in restarts[-_RESTARTS:] for sync in pair)
    return sorted(kept, key=lambda sync: sync.downstream)


def _nested(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for tp, value in sorted(values.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = value
    return found


def _flat(value: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    if not all(map(is_topic_name, value)):
        raise ValueError
    return {
        TopicPartition(topic, _number(int(number))): each
        for topic, numbers in value.items()
        for number, each in numbers.items()
    }


def _last_read(last: LastRead) -> list[Any]:
    return [last.position, *last.identity, last.others, last.distinct]


def _parse_read(
    position: object, offset: object, timestamp: object, digest: object, others: object, distinct: object
) -> LastRead:
    if len(_text(digest)) != DIGEST_LENGTH or not isinstance(distinct, bool):
        raise ValueError
    identity = RecordIdentity(_number(offset), _number(timestamp, -1), _text(digest))
    return LastRead(_number(position), identity, _number(others), distinct)


def _number(value: object, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_OFFSET:
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
