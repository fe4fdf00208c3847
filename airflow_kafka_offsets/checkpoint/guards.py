"""Guards of a Spark checkpoint's moves: each returns the reasons against a move, none if there are none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry
from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.sinks import newest_recorded_batch
from airflow_kafka_offsets.checkpoint.state_store import StateStores, is_stateful
from airflow_kafka_offsets.errors import CheckpointError, CheckpointFormatError, StorageError
from airflow_kafka_offsets.model.checkpoint_plan import RECORDING_SINKS, CheckpointPolicy, sink_choices
from airflow_kafka_offsets.model.offsets import Offsets, summarize
from airflow_kafka_offsets.model.wording import parameter_text

_IF_DELETED = "with failOnDataLoss=false for that run if records of it are deleted"
"""How a query finishes a batch that it cannot read as a whole any more."""
_FINISH = f"run the query once, which finishes it ({_IF_DELETED})"


class CheckpointBatches(NamedTuple):
    """What a move is planned on."""

    state: CheckpointState
    batch_id: int
    entry: OffsetLogEntry
    planned: set[int]
    committed: set[int]

    @property
    def pending(self) -> tuple[int, ...]:
        """Batches that were begun after the newest committed one."""
        return tuple(sorted(number for number in self.planned if number > self.batch_id))


def read_checkpoint_batches(checkpoint: SparkCheckpoint) -> CheckpointBatches:
    """Read what a move is planned on; an error if no batch has finished yet."""
    state, entry, planned, committed = checkpoint.read_batches()
    if state.batch_id is None or entry is None:
        raise CheckpointError(
            f"{checkpoint.location}: no batch has finished, so there is nothing to move: give the query "
            "startingOffsets, which it reads as long as no batch was planned, or let its first batch finish"
        )
    return CheckpointBatches(state, state.batch_id, entry, planned, committed)


def orphan_refusals(checkpoint_batches: CheckpointBatches) -> list[str]:
    """Return why the newest batch is not known: a commit without its offsets is newer."""
    newest = checkpoint_batches.batch_id
    orphans = sorted(number for number in checkpoint_batches.committed if number > newest)
    if not orphans:
        return []
    return [
        f"{checkpoint_batches.state.location}: found commits/{orphans[-1]} without offsets/{orphans[-1]}; "
        "expected both or the offsets alone: files were removed by hand; put them back first"
    ]


def restart_refusals(checkpoint_batches: CheckpointBatches) -> list[str]:
    """Return why Spark would not start from the checkpoint, or not as its files say."""
    location, newest = checkpoint_batches.state.location, checkpoint_batches.batch_id
    refusals = orphan_refusals(checkpoint_batches)
    # Spark reads the plan of the batch before as well when it starts, to know where the newest one began.
    if newest > 0 and newest - 1 not in checkpoint_batches.planned:
        refusals.append(
            f"{location}: offsets/{newest - 1} is not there, and Spark starts only if the two newest batches "
            "are: with asynchronous progress tracking let the query run two batches with "
            "asyncProgressTrackingCheckpointIntervalMs at 0; if files were removed by hand, put them back"
        )
    if not checkpoint_batches.entry.metadata:
        refusals.append(
            f"{location}: batch {newest} has no metadata, as in continuous mode, whose checkpoints are not "
            "moved: start a new checkpoint with startingOffsets"
        )
    return refusals


def unknown_partition_refusals(
    checkpoint_batches: CheckpointBatches, targets: Mapping[str, Offsets]
) -> list[str]:
    """Return why partitions cannot be moved: those that the newest batch does not have."""
    before = checkpoint_batches.state.kafka_offsets
    unknown = [
        tp for source, offsets in targets.items() for tp in offsets if tp not in before.get(source, {})
    ]
    if not unknown:
        return []
    return [
        f"{checkpoint_batches.state.location}: batch {checkpoint_batches.batch_id} has no offset for "
        f"{summarize(unknown)}, so the query cannot be moved there: leave it out with "
        f"{parameter_text('topics', ...)}, or let the query run once so that it knows it"
    ]


def link_refusals(checkpoint: SparkCheckpoint, paths: Iterable[str]) -> list[str]:
    """Return why files must not be changed: those behind symbolic links."""
    return sorted({refusal for path in paths if (refusal := checkpoint.behind_link(path))})


def state_refusals(checkpoint: SparkCheckpoint, policy: CheckpointPolicy) -> list[str]:
    """Return why a query that keeps state must not go on from other offsets."""
    if policy.allow_stateful or not is_stateful(checkpoint):
        return []
    return [
        f"{checkpoint.location}: the query keeps state (state/), which stays as it is: records that are read "
        "again are counted twice, and the watermark is not lowered, so that append mode drops them as late. "
        "Truncate the checkpoint to a batch (checkpoint truncate), start a new one, or set "
        f"{parameter_text('allow_stateful', True)} if that is right for this query"
    ]


def pending_refusals(
    checkpoint: SparkCheckpoint, checkpoint_batches: CheckpointBatches, policy: CheckpointPolicy
) -> list[str]:
    """Return why batches that were begun and not finished stand in the way."""
    if not checkpoint_batches.pending:
        return []
    batches = f"batch {', '.join(map(str, checkpoint_batches.pending))}"
    if policy.on_pending_batch == "fail":
        return [
            f"{checkpoint.location}: {batches} was begun and not finished: running the query once would "
            f"finish it ({_IF_DELETED}); or set {parameter_text('on_pending_batch', 'discard')} and name the "
            "sink, if that may get the batch's id again with other records"
        ]
    if is_stateful(checkpoint):
        return [
            f"{checkpoint.location}: {batches} was begun and not finished, and the query keeps state, which "
            f"may hold the batch already: it cannot be discarded; {_FINISH}"
        ]
    return _sink_refusals(
        checkpoint, checkpoint_batches, checkpoint_batches.pending[0], f"discarding {batches}", policy
    )


def _sink_refusals(
    checkpoint: SparkCheckpoint,
    checkpoint_batches: CheckpointBatches,
    first: int,
    doing: str,
    policy: CheckpointPolicy,
) -> list[str]:
    """
    Return why batch ids from ``first`` on must not occur again with other records.

    A sink that records the batches it has written skips their ids. That the right place was read is shown by
    the newest batch that the checkpoint has finished: the sink must have recorded that one.
    """
    sink, location = policy.sink, policy.sink_location
    if policy.idempotent_sink:
        return []
    if sink is None:
        return [
            f"{doing} lets the query use the batch id again with other records, and the checkpoint does not "
            f"say where it writes to: set {parameter_text('sink')} to {sink_choices()}"
        ]
    if sink not in RECORDING_SINKS:
        return []
    log = RECORDING_SINKS[sink]
    if location is None:
        return [
            f"{doing} lets the query use the batch id again, and a sink {sink!r} skips ids that it has "
            f"recorded: set {parameter_text('sink_location')}, the directory it writes to, so that its {log} "
            "can be checked"
        ]
    try:
        recorded = newest_recorded_batch(checkpoint, checkpoint_batches.state.query_id, sink, location, first)
    except (CheckpointFormatError, StorageError) as error:
        # A storage that is away says nothing about the sink.
        if error.retriable:
            raise
        return [f"{doing}: whether the sink has recorded batch {first} cannot be known: {error}; {_FINISH}"]
    if recorded is None:
        return [
            f"{parameter_text('sink_location', location)}: has no {log} with a batch of query "
            f"{checkpoint_batches.state.query_id}: give the directory that the query writes to, or {_FINISH}"
        ]
    if recorded >= first:
        return [
            f"{doing}: the sink has recorded batch {recorded} in {location}/{log} and would skip it, with "
            f"all new records: {_FINISH}, and seek"
        ]
    # A directory that the query wrote to earlier would look harmless.
    if recorded < checkpoint_batches.batch_id:
        return [
            f"{parameter_text('sink_location', location)}: {log} has recorded no batch after {recorded}, and "
            f"the checkpoint has finished batch {checkpoint_batches.batch_id}: give the directory that the "
            f"query writes to, or {_FINISH}"
        ]
    return []


def unfinished_refusals(checkpoint_batches: CheckpointBatches, batch_id: int) -> list[str]:
    """Return why nothing can be moved to the end of a batch: it is gone, was not finished, or is to come."""
    both = checkpoint_batches.planned & checkpoint_batches.committed
    if batch_id in both:
        return []
    begun = (
        f" ({', '.join(map(str, checkpoint_batches.pending))} was begun and not finished)"
        if checkpoint_batches.pending
        else ""
    )
    return [
        f"{checkpoint_batches.state.location}: batch {batch_id} is not there as a finished batch; "
        f"there are {_ranges(both)}{begun}: Spark keeps spark.sql.streaming.minBatchesToRetain of them "
        "(100); give one of these, or seek to an offset or a time"
    ]


def _unloadable(checkpoint_batches: CheckpointBatches, batch_id: int, stores: StateStores) -> list[str]:
    """Return why Spark could not load the state after a batch, with the batches after which it could."""
    startable = {
        number
        for number in checkpoint_batches.planned & checkpoint_batches.committed
        if not number or number - 1 in checkpoint_batches.planned
    }
    loadable = {version - 1 for version in stores.loadable_versions(number + 1 for number in startable)}
    if batch_id in loadable:
        return []
    earlier = loadable - {max(checkpoint_batches.planned)}
    todo = (
        f"batches that can be truncated to: {_ranges(earlier)}"
        if earlier
        else "there is no earlier batch of which that is kept: start a new checkpoint"
    )
    return [
        f"{checkpoint_batches.state.location}: the state after batch {batch_id} (version {batch_id + 1}) is "
        "not kept any more: Spark loads it from the newest snapshot up to it and all changes since, of "
        f"every partition; {todo}"
    ]


def _ranges(numbers: Collection[int]) -> str:
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    return ", ".join(
        str(first) if first == last else f"{first} to {last}"
        for first, last in zip(firsts, lasts, strict=True)
    )


def truncate_refusals(
    checkpoint: SparkCheckpoint,
    checkpoint_batches: CheckpointBatches,
    batch_id: int,
    policy: CheckpointPolicy,
    stores: StateStores,
) -> list[str]:
    """
    Return why the batches after one must not be removed.

    :param stores: the state of a query that keeps some.
    """
    location = checkpoint.location
    if refusals := unfinished_refusals(checkpoint_batches, batch_id):
        return refusals
    # Nothing to remove: then nothing that would have to be checked.
    if batch_id == max(checkpoint_batches.planned):
        return []
    if batch_id > 0 and batch_id - 1 not in checkpoint_batches.planned:
        refusals.append(
            f"{location}: offsets/{batch_id - 1} is not there, and Spark starts from batch {batch_id} only "
            f"with it: choose a later batch than {batch_id}"
        )
    # A file source keeps what it has read in sources/, by numbers of its own.
    others = [source.source for source in checkpoint_batches.state.sources if not source.kafka]
    if others:
        refusals.append(
            f"{location}: source {', '.join(others)} is not Kafka and keeps a log of its own, which would "
            "not go back: seek"
        )
    if not checkpoint_batches.entry.metadata:
        refusals.append(f"{location}: is of continuous mode, whose checkpoints are not moved")
    if is_stateful(checkpoint):
        refusals += _unloadable(checkpoint_batches, batch_id, stores)
    return refusals + _sink_refusals(checkpoint, checkpoint_batches, batch_id + 1, "truncating", policy)
