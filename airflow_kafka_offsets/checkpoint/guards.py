"""Guards of checkpoint moves: each returns the reasons to refuse a move, an empty list to allow it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.sinks import newest_recorded_batch
from airflow_kafka_offsets.checkpoint.state import FinishedState
from airflow_kafka_offsets.checkpoint.state_store import StateFiles, is_stateful, loadable_versions
from airflow_kafka_offsets.errors import CheckpointFormatError, StorageError
from airflow_kafka_offsets.model.checkpoint_policy import RECORDING_SINKS, CheckpointPolicy, sink_choices
from airflow_kafka_offsets.model.location import split_scheme
from airflow_kafka_offsets.model.offsets import Offsets, summarize
from airflow_kafka_offsets.model.wording import parameter_text

_INSTEAD = {
    "dbfs": "in the cloud's own storage, such as abfss:// or s3a://",
    "hdfs": "over HTTP, webhdfs://host:port/path",
}
"""fsspec's schemes of drivers that rename no file over another -> which location to give."""


def restart_refusals(state: FinishedState) -> list[str]:
    """Return why Spark would not start from the checkpoint, or would start from other offsets."""
    location, newest = state.location, state.batch_id
    refusals = state.orphans
    # At start Spark also reads the batch before the newest one, to find where the newest one began.
    if newest > 0 and newest - 1 not in state.planned:
        refusals.append(
            f"{location}: offsets/{newest - 1} does not exist, and Spark starts only if the two newest "
            "batches exist: with asynchronous progress tracking let the query run two batches with "
            "asyncProgressTrackingCheckpointIntervalMs at 0; if files were removed by hand, put them back"
        )
    if not state.entry.metadata:
        refusals.append(
            f"{location}: batch {newest} has no metadata, as in continuous mode, and checkpoints of "
            "continuous mode cannot be moved: start a new checkpoint with startingOffsets"
        )
    return refusals


def unknown_partition_refusals(state: FinishedState, targets: Mapping[str, Offsets]) -> list[str]:
    """Refuse partitions that the newest batch does not have."""
    before = state.kafka_offsets
    unknown = [
        tp for source, offsets in targets.items() for tp in offsets if tp not in before.get(source, {})
    ]
    if not unknown:
        return []
    return [
        f"{state.location}: batch {state.batch_id} has no offset for "
        f"{summarize(unknown)}, so the query cannot be moved there: leave it out with "
        f"{parameter_text('topics', ...)}, or run the query once so that the checkpoint has its offset"
    ]


def twin_refusals(
    checkpoint: SparkCheckpoint, state: FinishedState, after: Mapping[str, Offsets]
) -> list[str]:
    """Refuse two positions for a frame that the query uses twice: Spark reads only the second one."""
    before = state.kafka_offsets
    pairs = [pair for pair in combinations(after, 2) if before[pair[0]] == before[pair[1]]]
    apart = [(one, two) for one, two in pairs if after[one] != after[two]]
    # Spark makes one directory for such a frame, but writes a line for each use.
    if not apart or not 0 < len(checkpoint.list_names("sources")) < len(state.entry.sources):
        return []
    one, two = apart[0]
    return [
        f"{state.location}: source {one} and source {two} are at the same offsets, and sources/ has "
        "fewer sources than the query: if they are one frame that the query uses twice, both continue at the "
        f"offsets of source {two}: move both to the same offsets"
    ]


def file_refusals(checkpoint: SparkCheckpoint, paths: Collection[str]) -> list[str]:
    """Refuse to change files behind symbolic links, or on a storage that renames no file over another."""
    refusals = sorted({refusal for path in paths if (refusal := checkpoint.behind_link(path))})
    if paths and (scheme := split_scheme(checkpoint.location)[0]) in _INSTEAD:
        refusals.append(
            f"{checkpoint.location}: fsspec's driver of this storage cannot replace a file as a whole, which "
            f"a move needs: give the location {_INSTEAD[scheme]}"
        )
    return refusals


def state_refusals(checkpoint: SparkCheckpoint, policy: CheckpointPolicy) -> list[str]:
    """Return why a query with state must not continue from other offsets."""
    if policy.allow_stateful or not is_stateful(checkpoint):
        return []
    return [
        f"{checkpoint.location}: the query keeps state (state/), which the move does not change: records "
        "that are read again are counted twice, and the watermark does not go back, so append mode drops "
        "them as late. Truncate the checkpoint to a batch (checkpoint truncate), start a new one, or set "
        f"{parameter_text('allow_stateful', True)} if that is right for this query"
    ]


def pending_refusals(
    checkpoint: SparkCheckpoint, state: FinishedState, policy: CheckpointPolicy
) -> list[str]:
    """Return why unfinished batches prevent the move."""
    if not state.pending:
        return []
    begun = f"batch {', '.join(map(str, state.pending))}"
    if policy.on_pending_batch == "fail":
        return [
            f"{checkpoint.location}: {begun} was begun and not finished: {state.finish_text}; or set "
            f"{parameter_text('on_pending_batch', 'discard')} and name the sink, if the sink may receive the "
            "same batch id with other records"
        ]
    if is_stateful(checkpoint):
        return [
            f"{checkpoint.location}: {begun} was begun and not finished, and the query keeps state, which "
            f"may include the batch already: the batch cannot be discarded; {state.finish_text}, then "
            "move it"
        ]
    return _sink_refusals(checkpoint, state, state.batch_id + 1, f"discarding {begun}", policy)


def _sink_refusals(
    checkpoint: SparkCheckpoint, state: FinishedState, first: int, doing: str, policy: CheckpointPolicy
) -> list[str]:
    """
    Return why batch ids from ``first`` on must not be used again with other records.

    A sink that records the batches that it has written skips their ids. The sink must have recorded the
    newest finished batch of the checkpoint: this shows that the right directory was read.
    """
    sink, location = policy.sink, policy.sink_location
    if policy.idempotent_sink or (sink is not None and sink not in RECORDING_SINKS):
        return []
    if sink is None:
        return [
            f"{doing} lets the query use the batch id again with other records, and the checkpoint does not "
            f"name the sink: set {parameter_text('sink')} to {sink_choices()}"
        ]
    if location is None:
        return [
            f"{doing} lets the query use the batch id again, and a sink {sink!r} skips ids that it has "
            f"recorded: set {parameter_text('sink_location')} to the directory of the sink, so that its "
            f"{RECORDING_SINKS[sink]} can be checked"
        ]
    log = RECORDING_SINKS[sink]
    instead = f"{state.finish_text}, then move it" if state.pending else "seek, which uses no batch id again"
    try:
        recorded = newest_recorded_batch(checkpoint, state.query_id, sink, location, first)
    except (CheckpointFormatError, StorageError) as error:
        # An unreachable storage says nothing about the sink.
        if error.retriable:
            raise
        return [f"{doing}: cannot find out whether the sink has recorded batch {first}: {error}; {instead}"]
    if recorded is None:
        return [
            f"{parameter_text('sink_location', location)}: has no {log} with a batch of query "
            f"{state.query_id}: give the directory that the query writes to, or {instead}"
        ]
    if recorded >= first:
        return [
            f"{doing}: the sink has recorded batch {recorded} in {location}/{log} and would skip it, with "
            f"all new records: {instead}"
        ]
    # A directory that the query wrote to in the past would look harmless.
    if recorded < state.batch_id:
        return [
            f"{parameter_text('sink_location', location)}: {log} has recorded no batch after {recorded}, but "
            f"the checkpoint has finished batch {state.batch_id}: give the directory that the "
            f"query writes to, or {instead}"
        ]
    return []


def unfinished_refusals(state: FinishedState, batch_id: int) -> list[str]:
    """Return why nothing can move to the end of a batch: it is removed, unfinished or not planned yet."""
    both = state.planned & state.committed
    if batch_id in both:
        return []
    begun = f" ({', '.join(map(str, state.pending))} was begun and not finished)" if state.pending else ""
    return [
        f"{state.location}: batch {batch_id} is not a finished batch of the checkpoint; "
        f"finished batches: {'only ' if len(both) == 1 else ''}{_ranges(both)}{begun}: Spark keeps the last "
        "100 (spark.sql.streaming.minBatchesToRetain); give one of these, or seek to an offset or a time"
    ]


def _unloadable_refusals(state: FinishedState, batch_id: int, files: StateFiles) -> list[str]:
    """Return why Spark could not load the state after a batch; name the batches where it could."""
    startable = {
        number for number in state.planned & state.committed if not number or number - 1 in state.planned
    }
    loadable = {version - 1 for version in loadable_versions(files, (number + 1 for number in startable))}
    if batch_id in loadable:
        return []
    earlier = loadable - {max(state.planned)}
    todo = (
        f"batches that can be truncated to: {_ranges(earlier)}"
        if earlier
        else "Spark keeps the state of no earlier batch: start a new checkpoint"
    )
    return [
        f"{state.location}: the state after batch {batch_id} (version {batch_id + 1}) is "
        "no longer complete: for every partition, Spark needs the newest snapshot up to this version and all "
        f"changes since; {todo}"
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
    state: FinishedState,
    batch_id: int,
    policy: CheckpointPolicy,
    files: StateFiles,
) -> list[str]:
    """Return why the batches after one must not be removed; ``files`` is empty for a query without state."""
    location = checkpoint.location
    if refusals := unfinished_refusals(state, batch_id):
        return refusals
    # Nothing is removed, so nothing has to be checked.
    if batch_id == max(state.planned | state.committed):
        return []
    if batch_id > 0 and batch_id - 1 not in state.planned:
        refusals.append(
            f"{location}: offsets/{batch_id - 1} does not exist, and Spark needs it to start from batch "
            f"{batch_id}: choose a later batch than {batch_id}"
        )
    # A file source records the files that it has read in sources/, under its own numbers.
    others = [source.source for source in state.sources if not source.kafka]
    if others:
        refusals.append(
            f"{location}: source {', '.join(others)} is not Kafka and keeps its own log, which a truncate "
            "does not change: seek instead"
        )
    if not state.entry.metadata:
        refusals.append(f"{location}: is of continuous mode: checkpoints of continuous mode cannot be moved")
    if is_stateful(checkpoint):
        refusals += _unloadable_refusals(state, batch_id, files)
    return refusals + _sink_refusals(checkpoint, state, batch_id + 1, "truncating", policy)
