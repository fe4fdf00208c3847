"""
What is kept beside a checkpoint, so that its position can be translated to a mirror when the source is gone.

For the last few committed positions: the last record that was read of each partition, and the offset syncs around
the position, which MirrorMaker's own topic loses to compaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.offset_syncs import OffsetSync
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Offsets, TopicPartition, is_topic_name
from airflow_kafka_offsets.model.text import kind_of
from airflow_kafka_offsets.model.translation import DIGEST_LENGTH, Fingerprint, LastRead

VERSION = 1
POSITIONS = 5
"""Positions that are kept."""
MOST_PARTITIONS = 10_000
"""Of all kept positions together: of many partitions fewer positions are kept."""
_NEAR = 2
"""Syncs that are kept on each side of a position."""
_RESTARTS = 3
"""Restarts of the mirror of which the syncs on both sides are kept."""


@dataclass(frozen=True)
class KeptPosition:
    """
    A committed position.

    :param batch_id: of the checkpoint.
    :param at: when it was kept, in seconds since 1970.
    :param cluster: id of the cluster that the offsets count on.
    :param offsets: the next offset of each partition.
    :param ends: the ends of the logs then.
    :param read: the last record of each partition that has one.
    """

    batch_id: int
    at: int
    cluster: str
    offsets: Offsets
    ends: Offsets = field(default_factory=dict)
    read: Mapping[TopicPartition, LastRead] = field(default_factory=dict)


@dataclass(frozen=True)
class Readiness:
    """
    The last positions, newest first, and the syncs around them.

    :param syncs_topic: where the syncs are from.
    :param syncs_next: the offset of that topic from which the next ones are read.
    :param error: why the newest position could not be kept as a whole; empty if it was.
    """

    positions: tuple[KeptPosition, ...] = ()
    syncs: Mapping[TopicPartition, Sequence[OffsetSync]] = field(default_factory=dict)
    syncs_topic: str = ""
    syncs_next: int = 0
    error: str = ""

    def with_position(
        self,
        position: KeptPosition,
        syncs: Mapping[TopicPartition, Iterable[OffsetSync]],
        *,
        syncs_topic: str = "",
        syncs_next: int = 0,
        error: str = "",
    ) -> Readiness:
        """
        Return it with another position, and without what is too old.

        :param syncs: those that were read since.
        """
        most = max(1, min(POSITIONS, MOST_PARTITIONS // max(1, len(position.offsets))))
        same = [each for each in self.positions if each.cluster == position.cluster]
        positions = (position, *(each for each in same if each.batch_id != position.batch_id))[:most]
        known = self.syncs if len(same) == len(self.positions) and syncs_topic in ("", self.syncs_topic) else {}
        kept = {
            tp: around(
                [*known.get(tp, ()), *syncs.get(tp, ())],
                [each.offsets[tp] for each in positions if tp in each.offsets],
            )
            for tp in position.offsets
        }
        return replace(
            self,
            positions=positions,
            syncs={tp: each for tp, each in kept.items() if each},
            syncs_topic=syncs_topic or self.syncs_topic,
            syncs_next=syncs_next or self.syncs_next,
            error=error,
        )

    def of_cluster(self, cluster: str) -> list[KeptPosition]:
        """Return the positions that were kept of a cluster; of any, if its id is not known."""
        return [each for each in self.positions if not cluster or not each.cluster or each.cluster == cluster]

    def as_text(self) -> str:
        """Return the text of the file."""
        value = {
            "version": VERSION,
            "error": self.error,
            "syncs_topic": self.syncs_topic,
            "syncs_next": self.syncs_next,
            "syncs": _nested({tp: [list(sync) for sync in each] for tp, each in self.syncs.items()}),
            "positions": [
                {
                    "batch_id": each.batch_id,
                    "at": each.at,
                    "cluster": each.cluster,
                    "offsets": _nested(each.offsets),
                    "ends": _nested(each.ends),
                    "read": _nested({tp: _last_read(last) for tp, last in each.read.items()}),
                }
                for each in self.positions
            ],
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, what: str) -> Readiness:
        """
        Read what :meth:`as_text` returned.

        :raises OffsetsFormatError: if it is anything else.
        """
        value = load_json(text, what, show=kind_of)
        try:
            if value["version"] != VERSION:
                raise ValueError
            return cls(
                tuple(_position(each) for each in value["positions"]),
                {
                    tp: [OffsetSync(*map(_number, sync)) for sync in each]
                    for tp, each in _flat(value["syncs"]).items()
                },
                _text(value["syncs_topic"]),
                _number(value["syncs_next"]),
                _text(value["error"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise OffsetsFormatError(
                f"{what}: found {kind_of(value)}; expected what this package keeps of the mirror, of version "
                f"{VERSION}: move the file away, and the next commit writes it again"
            ) from None


def around(syncs: Iterable[OffsetSync], positions: Iterable[int]) -> list[OffsetSync]:
    """Return the syncs next to positions, the last one, and those on both sides of the last restarts."""
    ordered = sorted(set(syncs), key=lambda sync: sync.downstream)
    kept: set[OffsetSync] = set(ordered[-1:])
    for position in positions:
        before = [sync for sync in ordered if sync.upstream <= position]
        kept.update(before[-_NEAR:], [sync for sync in ordered if sync.upstream > position][:_NEAR])
    restarts = [
        pair
        for pair in zip(ordered, ordered[1:], strict=False)
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
    return [last.position, *last.fingerprint, last.others, last.distinct]


def _position(value: Mapping[str, Any]) -> KeptPosition:
    read: dict[TopicPartition, LastRead] = {}
    for tp, (position, offset, timestamp, digest, others, distinct) in _flat(value["read"]).items():
        if len(_text(digest)) != DIGEST_LENGTH or type(distinct) is not bool:
            raise ValueError
        fingerprint = Fingerprint(_number(offset), _number(timestamp, -1), digest)
        read[tp] = LastRead(_number(position), fingerprint, _number(others), distinct)
    return KeptPosition(
        _number(value["batch_id"]),
        _number(value["at"]),
        _text(value["cluster"]),
        {tp: _number(each) for tp, each in _flat(value["offsets"]).items()},
        {tp: _number(each) for tp, each in _flat(value["ends"]).items()},
        read,
    )


def _number(value: object, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_OFFSET:
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
