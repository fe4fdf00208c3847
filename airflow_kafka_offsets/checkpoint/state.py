"""State of a Spark checkpoint: its sources' offsets at the newest committed batch, and the pending batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.text import join_first
from airflow_kafka_offsets.model.wording import parameter_text


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
    :param pending_batch_id: the batch that is running or was interrupted; Spark replays exactly its range.
    :param sources: the sources of the committed batch, by index, then by name; empty without a committed
        batch.
    :param batch_timestamp_ms: when the committed batch was planned, in milliseconds since 1970; ``None`` in
        continuous mode, which does not record it.
    :param skipped_batch_ids: earlier batches that were planned and never committed.
    """

    location: str
    query_id: str
    batch_id: int | None
    pending_batch_id: int | None
    sources: tuple[CheckpointSource, ...] = ()
    batch_timestamp_ms: int | None = None
    skipped_batch_ids: tuple[int, ...] = ()

    @property
    def kafka_offsets(self) -> dict[str, Offsets]:
        """The offsets of each Kafka source, by index or name."""
        return {source.source: source.offsets for source in self.sources if source.offsets is not None}

    @property
    def skipped(self) -> str:
        """A warning that names the skipped batches; empty without them."""
        if not self.skipped_batch_ids:
            return ""
        return (
            f"{self.location}: commits/ lacks batch {join_first(self.skipped_batch_ids)}, before batch "
            f"{self.batch_id}: a copy was incomplete, or files were removed. Spark runs only the newest "
            "batch again, so it may have skipped their records; to read them, move the checkpoint back"
        )

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
