"""
The data that commits keep beside a checkpoint for a failover without the source.

For the last few committed positions, the data has the last record that the query read of each partition, and
the offset syncs around the position. MirrorMaker's own topic loses these syncs to compaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.offset_syncs import OffsetSync, Syncs, find_restarts
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, by_partition, by_topic
from airflow_kafka_offsets.model.text import describe_type, is_int
from airflow_kafka_offsets.model.translation import DIGEST_LENGTH, LastRead, RecordIdentity

VERSION = 1
POSITIONS = 5
MOST_PARTITIONS = 5_000
"""Most positions that are kept in total: with many partitions, each has fewer positions."""
_SYNCS_BESIDE = 2
"""Syncs that are kept on each side of a position."""
_RESTARTS = 3
"""Latest restarts of the mirror for which the syncs on both sides are kept."""


@dataclass(frozen=True)
class FailoverData:
    """
    The data that is kept beside a checkpoint.

    :param batch_id: newest batch when the data was kept; -1 if there is no data.
    :param at: time when the data was kept, in seconds since 1970.
    :param cluster: id of the source; ``ends`` are the ends of its logs at that time.
    :param read: the last records before the last few positions of each partition, newest first.
    :param syncs: the offset syncs around these positions.
    :param syncs_next: offset in the syncs topic where the next commit continues to read.
    :param error: reason why data is missing; empty if the data is complete.
    :param mirrored: topic -> id of its copy on the mirror, to which the syncs belong.
    :param query_id: the query whose commit has kept the data; empty if an earlier version wrote the file.
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
    mirrored: Mapping[str, str] = field(default_factory=dict)
    query_id: str = ""

    def may_be_of(self, query_id: str) -> bool:
        """Whether the data is of this query, or names no query."""
        return self.query_id in ("", query_id)

    def on(self, cluster: str) -> FailoverData:
        """Return the data if it is of this cluster, or if an id is unknown; else return empty data."""
        return self if "" in (cluster, self.cluster) or cluster == self.cluster else FailoverData()

    def with_position(
        self,
        batch_id: int,
        at: int,
        cluster: str,
        read: Mapping[TopicPartition, Iterable[LastRead]],
        ends: Offsets,
    ) -> FailoverData:
        """Return the data with a new position, without positions that are too old."""
        known = self.on(cluster)
        most = max(1, min(POSITIONS, MOST_PARTITIONS // max(1, len(ends))))
        kept = {
            tp: [*new, *(last for last in known.read.get(tp, ()) if last not in new)][: max(most, len(new))]
            for tp in ends
            if (new := list(read.get(tp, ()))) or tp in known.read
        }
        return replace(known, batch_id=batch_id, at=at, cluster=cluster, read=kept, ends=dict(ends), error="")

    def without_old_syncs(self, mirrored: Mapping[str, str]) -> FailoverData:
        """Return the data without syncs of topics that the mirror has created again; ids may be unknown."""
        old = self._created_again(mirrored)
        kept = {tp: each for tp, each in self.syncs.items() if tp.topic not in old}
        return replace(self, syncs=kept, mirrored={**self.mirrored, **mirrored})

    def with_syncs(self, read: Syncs, mirrored: Mapping[str, str]) -> FailoverData:
        """
        Return the data with newly read syncs; it keeps only the syncs around the positions.

        Of a topic that the mirror has created again, the new syncs may be from before that. Another record at
        or below a known offset of the mirror shows that they are of the present topic.

        :param read: syncs since the last commit.
        """
        old, known = self._created_again(mirrored), self.without_old_syncs(mirrored)
        before = known.syncs if self.syncs_topic in ("", read.topic) else {}

        def is_present(tp: TopicPartition, first: OffsetSync) -> bool:
            seen = self.syncs.get(tp, ())
            newer = first not in seen and any(first.downstream <= sync.downstream for sync in seen)
            return newer or tp.topic not in old

        new = {tp: each for tp, each in read.by_partition.items() if is_present(tp, each[0])}
        kept = {
            tp: around(
                [*before.get(tp, ()), *new.get(tp, ())], [last.position for last in self.read.get(tp, ())]
            )
            for tp in self.ends
        }
        found = {tp: each for tp, each in kept.items() if each}
        return replace(known, syncs=found, syncs_topic=read.topic, syncs_next=read.next)

    def _created_again(self, mirrored: Mapping[str, str]) -> set[str]:
        return {
            topic for topic, each in mirrored.items() if each and self.mirrored.get(topic) not in (None, each)
        }

    def as_text(self) -> str:
        """Return the content of the file."""
        read = {
            tp: [[last.position, *last.identity, last.others, last.distinct] for last in each]
            for tp, each in self.read.items()
        }
        value = {
            "version": VERSION,
            **vars(self),
            "read": by_topic(read),
            "ends": by_topic(self.ends),
            "syncs": by_topic(self.syncs),
            "mirrored": dict(self.mirrored),
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, what: str) -> FailoverData:
        """Read the output of :meth:`as_text`; raise an OffsetsFormatError for any other text."""
        value = load_json(text, what, describe=describe_type)
        try:
            if value["version"] != VERSION:
                raise ValueError
            return cls(
                batch_id=_number(value["batch_id"], -1),
                at=_number(value["at"]),
                cluster=_text(value["cluster"]),
                read={
                    tp: [_parse_read(*last) for last in each]
                    for tp, each in by_partition(value["read"]).items()
                },
                ends={tp: _number(each) for tp, each in by_partition(value["ends"]).items()},
                syncs={
                    tp: [OffsetSync(*map(_number, sync)) for sync in each]
                    for tp, each in by_partition(value["syncs"]).items()
                },
                syncs_topic=_text(value["syncs_topic"]),
                syncs_next=_number(value["syncs_next"]),
                error=_text(value["error"]),
                mirrored={_text(topic): _text(each) for topic, each in value.get("mirrored", {}).items()},
                query_id=_text(value.get("query_id", "")),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise OffsetsFormatError(
                f"{what}: found {describe_type(value)}; expected the failover data of a commit, "
                f"version {VERSION}: move the file away, and the next commit writes a new one"
            ) from None


def around(syncs: Iterable[OffsetSync], positions: Iterable[int]) -> list[OffsetSync]:
    """Return the syncs next to positions, the last sync, and the syncs on both sides of the last restarts."""
    ordered = sorted(set(syncs), key=lambda sync: sync.downstream)
    kept: set[OffsetSync] = set(ordered[-1:])
    for position in positions:
        before = [sync for sync in ordered if sync.upstream <= position]
        kept.update(
            before[-_SYNCS_BESIDE:], [sync for sync in ordered if sync.upstream > position][:_SYNCS_BESIDE]
        )
    for restart in find_restarts(ordered)[-_RESTARTS:]:
        kept.update(ordered[restart - 1 : restart + 1])
    return sorted(kept, key=lambda sync: sync.downstream)


def _parse_read(
    position: object, offset: object, timestamp: object, digest: object, others: object, distinct: object
) -> LastRead:
    if len(_text(digest)) != DIGEST_LENGTH or not isinstance(distinct, bool):
        raise ValueError
    identity = RecordIdentity(_number(offset), _number(timestamp, -1), _text(digest))
    return LastRead(_number(position), identity, _number(others), distinct)


def _number(value: object, least: int = 0) -> int:
    if not is_int(value, least):
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
