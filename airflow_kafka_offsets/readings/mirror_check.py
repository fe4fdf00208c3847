"""Checks whether a pipeline could fail over to its mirror now, and how exactly. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import newest_archived_move_with_cluster
from airflow_kafka_offsets.checkpoint.readiness_file import read_readiness
from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import MirrorCheck
from airflow_kafka_offsets.model.offsets import Logs, OffsetRange, Offsets, TopicPartition
from airflow_kafka_offsets.model.readiness import Readiness
from airflow_kafka_offsets.model.translation import LastRead, RecordIdentity, Scan, bracket_of
from airflow_kafka_offsets.readings.failover import (
    Evidence,
    gather_evidence,
    left_out_refusals,
    translate_sources,
)
from airflow_kafka_offsets.readings.mirror import Search, look_for, record_identities

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

_SAMPLE = 20
"""Most partitions to search for aborted records."""
_BACK = 256
"""Offsets before the log end to search for aborted records."""


def check_mirror(
    source: OffsetsClient,
    target: OffsetsClient,
    checkpoint: SparkCheckpoint,
    selection: GroupSelection,
    mirror: Mirror,
) -> MirrorCheck:
    """
    Check how a pipeline could fail over.

    :raises CheckpointError: if the checkpoint cannot be read.
    :raises PlanRefusedError: if the names do not match the checkpoint, or no batch with Kafka offsets has
        finished.
    """
    state = checkpoint.read()
    if state.batch_id is None or not state.kafka_offsets:
        raise PlanRefusedError(f"{checkpoint.location}: no batch with Kafka offsets has finished")
    if source.cluster_id() == target.cluster_id():
        raise PlanRefusedError(
            f"both connections lead to cluster {source.cluster_id()}, so there is no mirror to check: "
            "correct the connection; the plan of a failover shows a move to another topic of the cluster"
        )
    if (moved := newest_archived_move_with_cluster(checkpoint)) is not None and (
        refusals := other_logs_refusals(
            f"the newest move of {checkpoint.location}",
            LogIds(moved.log_ids.cluster),
            LogIds(source.cluster_id()),
            remedy="name the cluster that the pipeline is on, and its mirror",
        )
    ):
        raise PlanRefusedError(refusals)
    selection.assign_offsets(state.kafka_offsets)
    sources = {
        name: {tp: at for tp, at in offsets.items() if tp in selection.scope}
        for name, offsets in state.kafka_offsets.items()
    }
    notes: list[str] = []
    try:
        kept = read_readiness(checkpoint).on(source.cluster_id())
    except OffsetsFormatError as error:
        kept, notes = Readiness(), [str(error)]
    if kept.error:
        notes.append(f"the data kept beside the checkpoint is incomplete: {kept.error}")
    evidence = gather_evidence(source, target, mirror, sources, kept)
    now = translate_sources(target, mirror, sources, evidence)
    alone = translate_sources(target, mirror, sources, gather_evidence(None, target, mirror, sources, kept))
    logs = source.log_ranges({tp for offsets in sources.values() for tp in offsets})
    there = target.log_ranges([each.mirrored for each in now if each.log is not None])
    return MirrorCheck(
        location=checkpoint.location,
        batch_id=state.batch_id,
        now=now,
        alone=alone,
        kept_batch=kept.batch_id,
        syncs_on_mirror=mirror.syncs_on == "target",
        copies_aborted=_copies_aborted(source, target, mirror, logs, there),
        keeps_times=_keeps_times(target, mirror, sources, evidence, there),
        notes=(*evidence.notes, *notes),
        group_ids=selection.group_ids,
        refusals=left_out_refusals(target, state.kafka_offsets, sources),
    )


def _keeps_times(
    target: OffsetsClient, mirror: Mirror, sources: Mapping[str, Offsets], evidence: Evidence, there: Logs
) -> bool | None:
    """Return whether copies have the timestamps of the source; ``None`` if no copy was found."""
    searches: dict[TopicPartition, Search] = {}
    for offsets in sources.values():
        for tp, position in offsets.items():
            last = next((each for each in evidence.read.get(tp, ()) if each.position == position), None)
            copy = mirror.partition(tp)
            if last is not None and copy in there and len(searches) < _SAMPLE:
                syncs = evidence.syncs.get(tp, ())
                searches[copy] = Search(last, *bracket_of(position, there[copy], syncs, last).search)
    scans = look_for(target, searches)
    if any(any(map(len, scan.copies.values())) for scan in scans.values()):
        return True
    return False if any(any(map(len, scan.alike.values())) for scan in scans.values()) else None


def _copies_aborted(
    source: OffsetsClient, target: OffsetsClient, mirror: Mirror, logs: Logs, there: Logs
) -> bool | None:
    """
    Return whether the mirror has records of aborted transactions.

    :return: ``None`` if the source has no such records near its log ends.
    """
    sample = [tp for tp in sorted(logs) if mirror.partition(tp) in there][:_SAMPLE]
    ranges = {tp: OffsetRange(max(logs[tp].start, logs[tp].end - _BACK), logs[tp].end) for tp in sample}
    every = record_identities(source, ranges, 10.0, committed=False)
    committed = record_identities(source, ranges, 10.0, committed=True)
    found: bool | None = None
    for tp in sample:
        real = {each[1:] for each in committed.get(tp, ())}
        aborted = [each for each in every.get(tp, ()) if each[1:] not in real]
        # The mirror may not have copied the last records yet.
        if aborted and committed.get(tp) and aborted[0].offset < committed[tp][-1].offset:
            log = there[mirror.partition(tp)]
            start = max(log.start, log.end - 2 * _BACK)
            copies = _copies(target, mirror.partition(tp), aborted[0], start, log.end)
            found = bool(found or copies)
    return found


def _copies(
    target: OffsetsClient, copy: TopicPartition, record: RecordIdentity, start: int, end: int
) -> bool:
    scan: Scan = look_for(target, {copy: Search(LastRead(record.offset + 1, record), start, end)})[copy]
    return bool(scan.copies_of(LastRead(record.offset + 1, record), start, end))
