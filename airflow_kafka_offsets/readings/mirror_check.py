"""Checks whether a pipeline could fail over to its mirror now, and how exactly. Changes nothing."""

from __future__ import annotations

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import is_stateful
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.failover_plan import again_text
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import MirrorCheck
from airflow_kafka_offsets.model.offsets import Logs, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.translation import LastRead, Search
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.failover import (
    complete_failover_data,
    kept_failover_data,
    left_out_refusals,
    selected_sources,
    translate_sources,
)
from airflow_kafka_offsets.readings.mirror import find_copies, record_identities
from airflow_kafka_offsets.readings.recorded_cluster import recorded_cluster

_SAMPLE = 20
_BACK = 256
"""Offsets before the log end to search for aborted records."""


def check_mirror(
    source: OffsetsClient,
    target: OffsetsClient,
    checkpoint: SparkCheckpoint,
    selection: GroupSelection,
    mirror: Mirror,
) -> MirrorCheck:
    """Check how a pipeline could fail over."""
    state = checkpoint.read()
    if state.batch_id is None or not state.kafka_offsets:
        raise PlanRefusedError(f"{checkpoint.location}: no batch with Kafka offsets has finished")
    if source.cluster_id() == target.cluster_id():
        raise PlanRefusedError(
            f"both connections lead to cluster {source.cluster_id()}, so there is no mirror to check: "
            "correct the connection; the plan of a failover shows a move to another topic of the cluster"
        )
    by_group = selection.assign_offsets(state.kafka_offsets)
    sources = selected_sources(selection, state.kafka_offsets)
    kept, notes = kept_failover_data(checkpoint)
    known, record = recorded_cluster(checkpoint, kept, [target, source], by_group)
    PlanRefusedError.raise_if(
        other_logs_refusals(
            f"{checkpoint.location}, according to {record},",
            LogIds(known),
            LogIds(source.cluster_id()),
            remedy="name the cluster that the pipeline is on, and its mirror",
        )
    )
    kept = kept.on(source.cluster_id())
    data, logs, missing = complete_failover_data(source, target, mirror, sources, kept)
    without_source, _, _ = complete_failover_data(None, target, mirror, sources, kept)
    now = translate_sources(target, mirror, sources, data, logs)
    alone = translate_sources(target, mirror, sources, without_source)
    if (again := again_text(alone)) and is_stateful(checkpoint):
        notes.append(
            f"the query keeps state (state/): without the source a failover is refused, because {again}, "
            f"unless {parameter_text('allow_stateful', True)} is set for it"
        )
    there = {each.mirrored: each.log for each in now if each.log is not None}
    return MirrorCheck(
        location=checkpoint.location,
        batch_id=state.batch_id,
        now=now,
        alone=alone,
        kept_batch=kept.batch_id,
        syncs_on_mirror=mirror.syncs_on == "target",
        copies_aborted=copies_aborted_records(source, target, mirror, logs, there),
        notes=(*missing, *notes),
        group_ids=selection.group_ids,
        refusals=left_out_refusals(target, state.kafka_offsets, selection.scope),
    )


def copies_aborted_records(
    source: OffsetsClient, target: OffsetsClient, mirror: Mirror, logs: Logs, there: Logs
) -> bool | None:
    """
    Return whether the mirror has records of aborted transactions.

    :param logs: the logs of the source, and ``there`` those of the mirror.
    :return: ``None`` if the source has no such records near its log ends, or the mirror has not copied the
        records after them yet.
    """
    sample = [tp for tp in sorted(logs) if mirror.partition(tp) in there][:_SAMPLE]
    ranges = {tp: OffsetRange(max(logs[tp].start, logs[tp].end - _BACK), logs[tp].end) for tp in sample}
    every = record_identities(source, ranges, 10.0, "read_uncommitted")
    committed = record_identities(source, ranges, 10.0, "read_committed")
    aborted: dict[TopicPartition, Search] = {}
    after: dict[TopicPartition, Search] = {}
    for tp in sample:
        real = {each[1:] for each in committed.get(tp, ())}
        first = next((each for each in every.get(tp, ()) if each[1:] not in real), None)
        last = committed[tp][-1] if committed.get(tp) else None
        if first is not None and last is not None and first.offset < last.offset:
            copy = mirror.partition(tp)
            low, high = max(there[copy].start, there[copy].end - 2 * _BACK), there[copy].end
            aborted[copy] = Search(LastRead(first.offset + 1, first), low, high)
            after[copy] = Search(LastRead(last.offset + 1, last), low, high)
    copied = [copy for copy, each in find_copies(target, after).items() if each.found]
    searches = find_copies(target, {copy: aborted[copy] for copy in copied})
    return any(each.found for each in searches.values()) if searches else None
