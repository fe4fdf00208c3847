"""
Reads where a query with a new checkpoint continues the work of an old checkpoint.

Spark refuses a checkpoint after some changes of its query. The offsets of its newest committed batch are then
still right; its state and a pending batch are not passed on.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.guards import (
    CheckpointBatches,
    orphan_refusals,
    read_checkpoint_batches,
)
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import is_stateful
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text


class FinishedPosition(NamedTuple):
    """Where a query has finished reading one of its Kafka sources."""

    batch_id: int
    """The newest committed batch."""
    source: str
    """Index or name of the source."""
    offsets: Offsets
    """The next offset of each partition."""


def finished_position(
    checkpoint: SparkCheckpoint, source: str | None = None, *, allow_stateful: bool = False
) -> FinishedPosition:
    """
    Return the position of the newest committed batch, from which another query can continue.

    :param source: index or name of a Kafka source; only needed if the query has several.
    :param allow_stateful: whether the other query may start without the state of this query.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished.
    :raises MoveUnfinishedError: if a move of the checkpoint was started and not finished.
    :raises PlanRefusedError: if a batch is pending, or the query keeps state.
    :raises UsageError: if there is no such Kafka source, or if there are several and none is named.
    """
    batches = read_checkpoint_batches(checkpoint)
    ArchivedMoves(checkpoint).refuse_unfinished()
    refusals = [*orphan_refusals(batches), *_pending(batches)]
    if not allow_stateful and is_stateful(checkpoint):
        refusals.append(
            f"{checkpoint.location}: the query keeps state (state/), and a new checkpoint begins without "
            "it: windows, totals and joins lose the records that were read before; set "
            f"{parameter_text('allow_stateful', True)} if that is right for the new query, or let it read "
            "these records again"
        )
    if refusals:
        raise PlanRefusedError(refusals)
    name = _source(batches, source)
    return FinishedPosition(batches.batch_id, name, batches.state.kafka_offsets[name])


def _pending(batches: CheckpointBatches) -> list[str]:
    if not batches.pending:
        return []
    numbers, location = ", ".join(map(str, batches.pending)), batches.state.location
    return [
        f"{location}: batch {numbers} was begun and not finished: the sink may have its records already, and "
        "the new query would write them again in other batches. Run the query once as it was before the "
        "change, which finishes the batch; or discard the batch if the sink allows that: "
        f"'airflow-kafka-offsets checkpoint seek {location} --to-current --on-pending-batch discard --sink "
        "SINK --execute'"
    ]


def _source(batches: CheckpointBatches, wanted: str | None) -> str:
    location, known = batches.state.location, batches.state.kafka_offsets
    names = ", ".join(sorted(known)) or "none"
    if wanted is not None:
        if wanted in known:
            return wanted
        raise parameter_error(
            "query_source",
            f": batch {batches.batch_id} of {location} has no offsets of this Kafka source; its Kafka "
            f"sources: {names}",
            wanted,
        )
    if len(known) > 1:
        raise UsageError(
            f"{location}: the query has several Kafka sources ({names}), and each has its own position: "
            f"name one with {parameter_text('query_source', ...)}",
            parameter="query_source",
        )
    if not known:
        raise UsageError(batches.state.no_kafka_offsets)
    return next(iter(known))
