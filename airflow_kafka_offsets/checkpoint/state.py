"""State of a Spark checkpoint: its batches, and its sources' offsets at the newest committed one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.text import join_first
from airflow_kafka_offsets.model.wording import parameter_text

INDEX = re.compile(r"0|[1-9][0-9]{0,999}")
"""Names of sources and of batch files. The directories also contain ``.7.crc`` and users' files."""


@dataclass(frozen=True)
class CheckpointSource:
    """
    One source of the query.

    :param source: its index in the query's plan, or its name (Spark 4.2).
    :param offsets: the next offset of each partition; ``None`` if it is not Kafka or had no offset yet.
    :param begun: whether the source has an offset; a Kafka source has none while its pattern matches no
        topic.
    """

    source: str
    offsets: Offsets | None
    begun: bool = True

    @property
    def kafka(self) -> bool:
        """Whether the offsets have Kafka's form; a source without an offset may still be Kafka."""
        return self.offsets is not None


@dataclass(frozen=True)
class CheckpointState:
    """
    The content of a checkpoint at one moment.

    :param location: the checkpoint's location, as given by the caller.
    :param query_id: the query's id, which stays the same over restarts.
    :param batch_id: the newest committed batch: the highest number in both ``offsets/`` and ``commits/``;
        ``None`` if no batch has finished yet.
    :param planned: the batches in ``offsets/``.
    :param committed: the batches in ``commits/``.
    :param entry: the file of the committed batch in ``offsets/``; ``None`` without a committed batch.
    """

    location: str
    query_id: str
    batch_id: int | None
    planned: frozenset[int]
    committed: frozenset[int]
    entry: OffsetLogEntry | None

    @property
    def pending(self) -> tuple[int, ...]:
        """The batches that were begun after the newest committed one."""
        # Spark writes offsets/N before the batch and commits/N after it.
        newest = -1 if self.batch_id is None else self.batch_id
        return tuple(sorted(number for number in self.planned if number > newest))

    @property
    def pending_batch_id(self) -> int | None:
        """The batch that is running or was interrupted; Spark replays exactly its range."""
        return max(self.pending, default=None)

    @property
    def skipped_batch_ids(self) -> tuple[int, ...]:
        """Earlier batches that were planned and never committed."""
        first = min(self.planned & self.committed, default=None)
        if first is None or self.batch_id is None:
            return ()
        return tuple(sorted(n for n in self.planned - self.committed if first < n < self.batch_id))

    @property
    def sources(self) -> tuple[CheckpointSource, ...]:
        """The sources of the committed batch, by index, then by name; empty without a committed batch."""
        if self.entry is None:
            return ()
        known = self.entry.kafka_offsets
        sources = [
            CheckpointSource(name, known.get(name), text not in (None, "{}"))
            for name, text in self.entry.sources.items()
        ]
        # Version 2 has its lines in any order, which may differ between files.
        return tuple(sorted(sources, key=_plan_order))

    @property
    def batch_timestamp_ms(self) -> int | None:
        """When the committed batch was planned, in ms since 1970; ``None`` in continuous mode."""
        return None if self.entry is None else self.entry.batch_timestamp_ms

    @property
    def kafka_offsets(self) -> dict[str, Offsets]:
        """The offsets of each Kafka source, by index or name."""
        return {source.source: source.offsets for source in self.sources if source.offsets is not None}

    @property
    def warnings(self) -> list[str]:
        """Sentences about batches that Spark may have skipped, or with which it fails."""
        found = self.orphans
        if skipped := self.skipped_batch_ids:
            found.append(
                f"{self.location}: commits/ lacks batch {join_first(skipped)}, before batch "
                f"{self.batch_id}: a copy was incomplete, or files were removed. Spark runs only the newest "
                "batch again, so it may have skipped their records; to read them, move the checkpoint back"
            )
        return found

    @property
    def orphans(self) -> list[str]:
        """A sentence about the newest batch that has a file in ``commits/`` only, if there is one."""
        # A job that was in a batch while a restore discarded it writes such a file at the batch's end.
        newest = max(self.committed - self.planned, default=-1)
        if self.batch_id is None or newest < self.batch_id:
            return []
        return [
            f"{self.location}: found commits/{newest} without offsets/{newest}: each start of the query "
            "runs its last batch again, then fails: if a job ran during a move, stop it and remove "
            f"commits/{newest} and its .{newest}.crc; if files were removed by hand, put them back"
        ]

    @property
    def without_kafka(self) -> str | None:
        """
        Why the checkpoint will never have Kafka offsets; ``None`` if it has some, or a later batch may.

        A source without an offset yet may be a Kafka source.
        """
        never = all(source.begun and not source.kafka for source in self.sources)
        return self.no_kafka_offsets if never and self.batch_id is not None else None

    @property
    def no_kafka_offsets(self) -> str:
        """The error text for a batch without Kafka offsets."""
        return (
            f"{self.location}: batch {self.batch_id} has no Kafka offsets; it has {len(self.sources)} "
            f"sources of other kinds: check {parameter_text('checkpoint_location')}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, offsets in Spark's form."""
        return {
            "location": self.location,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "pending_batch_id": self.pending_batch_id,
            "sources": [
                {
                    "source": source.source,
                    "kafka": source.kafka,
                    "offsets": None if source.offsets is None else offsets_json(source.offsets),
                }
                for source in self.sources
            ],
        }


@dataclass(frozen=True)
class FinishedState(CheckpointState):
    """The content of a checkpoint in which a batch has finished, so that it can be moved."""

    batch_id: int
    entry: OffsetLogEntry

    @property
    def finish_text(self) -> str:
        """How to finish the pending batches."""
        if len(self.pending) > 1:
            return (
                f"put the missing files of commits/ back (Spark would run only batch {self.pending[-1]}, and "
                "never read the records of the others)"
            )
        return (
            "run the query once, which finishes the batch (with failOnDataLoss=false for that run if Kafka "
            "has deleted records of the batch)"
        )


def _plan_order(source: CheckpointSource) -> tuple[bool, int, str]:
    index = INDEX.fullmatch(source.source)
    return (index is None, int(source.source) if index else 0, source.source)
