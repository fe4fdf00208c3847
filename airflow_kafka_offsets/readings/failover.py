"""Translates the position of a query to a mirror, and reads the data for it that commits keep."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.failover_data_file import read_failover_data
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    KafkaOffsetsError,
    MisnamedError,
    OffsetsFormatError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.failover_data import FailoverData
from airflow_kafka_offsets.model.failover_plan import TranslatedPartition
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror, source_aliases
from airflow_kafka_offsets.model.offset_syncs import Syncs, next_upstream
from airflow_kafka_offsets.model.offsets import LogRange, Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.text import shorten, size_error
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.translation import Evidence, LastRead, Translation
from airflow_kafka_offsets.model.wording import dag_text, parameter_text
from airflow_kafka_offsets.readings.mirror import (
    find_copies,
    find_syncs_topic,
    last_reads,
    mirror_key,
    mirrored_ids,
    read_syncs,
)
from airflow_kafka_offsets.readings.positions import existing_partitions

log = logging.getLogger(__name__)

_WITHIN = 5.0
"""Seconds for a commit to read the records of each cluster."""


def selected_sources(selection: GroupSelection, sources: Mapping[str, Offsets]) -> dict[str, Offsets]:
    """Return the selected offsets of each source."""
    return {
        name: {tp: at for tp, at in offsets.items() if tp in selection.scope}
        for name, offsets in sources.items()
    }


def kept_failover_data(checkpoint: SparkCheckpoint) -> tuple[FailoverData, list[str]]:
    """Return the data kept beside the checkpoint, and notes about missing data."""
    try:
        kept = read_failover_data(checkpoint)
    except OffsetsFormatError as error:
        return FailoverData(), [str(error)]
    what, query_id = "the data kept beside the checkpoint", checkpoint.query_id()
    if not kept.may_be_of(query_id):
        other = f"it is of query {shorten(kept.query_id)}, and the checkpoint is of query {query_id}"
        return FailoverData(), [f"{what} is ignored: {other}"]
    notes = [f"{what} is incomplete: {kept.error}"] if kept.error else []
    if kept.at and not kept.query_id:
        notes.append(f"{what} names no query: if the checkpoint was replaced, it may be of the old query")
    return kept, notes


def complete_failover_data(
    source: OffsetsClient | None,
    target: OffsetsClient,
    mirror: Mirror,
    sources: Mapping[str, Offsets],
    kept: FailoverData,
) -> tuple[FailoverData, Logs, list[str]]:
    """
    Read the syncs and the last records before positions; without the source, use the kept data.

    :param source: the old cluster; ``None`` if it does not answer.
    :param sources: the offsets of each source of the query.
    :param kept: data that commits have kept of the old cluster.
    :return: the kept data together with what was read, the logs of the source, and notes about missing data.
    """
    partitions = {tp for offsets in sources.values() for tp in offsets}
    _refuse_names_without_prefix(target, mirror, {tp.topic for tp in partitions})
    kept = kept.without_old_syncs(mirrored_ids(target, mirror, {tp.topic for tp in partitions}))
    notes = _unread_names(source, mirror, partitions)
    syncs = dict(kept.syncs)
    on = target if mirror.syncs_on == "target" else source
    if on is None:
        notes.append(f"the syncs are on the source, which does not answer: {_fallback_note(kept)}")
    else:
        try:
            found = read_syncs(on, find_syncs_topic(on, mirror), partitions)
        except PlanRefusedError as error:
            notes.append(error.refusals[0])
        else:
            for tp, each in found.by_partition.items():
                syncs[tp] = [*syncs.get(tp, ()), *each]
            if not found.whole:
                notes.append(f"only the newest syncs of {found.topic} were read")
    if source is None:
        notes.append(f"the source does not answer: {_fallback_note(kept)}")
        return replace(kept, syncs=syncs), {}, notes
    # Data kept on this cluster shows that it had the topics; else the connection may lead to another one.
    logs, deleted = existing_logs(source, partitions) if kept.cluster else (source.log_ranges(partitions), [])
    notes += deleted
    ends = kept.ends | {tp: log.end for tp, log in logs.items()}
    read = read_last_records(source, sources, logs, kept.read)
    return replace(kept, syncs=syncs, ends=ends, read=read), logs, notes


def names_key() -> str:
    """Return what names the topics of a mirror."""
    return dag_text("topics of mirror", parameter_text("topic_map"))


def _refuse_names_without_prefix(target: OffsetsClient, mirror: Mirror, topics: Collection[str]) -> None:
    """Refuse a topic's own name if the mirror also has it with MirrorMaker's prefix, which marks the copy."""
    if mirror.prefix or mirror.without:
        return
    there = target.partitions()
    aliases = source_aliases(there)
    for topic in sorted((set(topics) & there.keys()) - mirror.topics.keys()):
        if copies := [copy for alias in aliases if (copy := f"{alias}.{topic}") in there]:
            prefixes = " or ".join(repr(copy.removesuffix(topic)) for copy in copies)
            raise MisnamedError(
                f"the mirror has {' and '.join(map(repr, [topic, *copies]))}: name the copy with "
                f"{mirror_key('prefix')} ({prefixes}), or each topic with {names_key()}"
            )


def _unread_names(
    source: OffsetsClient | None, mirror: Mirror, partitions: Collection[TopicPartition]
) -> list[str]:
    """Refuse names of topics that are nowhere; return a note about names that cannot be looked up."""
    others = sorted(mirror.topics.keys() - {tp.topic for tp in partitions})
    if source is None or not others:
        names = f"{names_key()} names {', '.join(map(repr, others))}, which the query does not read"
        return [f"{names}: whether the old cluster has it is unknown"] if others else []
    try:
        unknown = sorted(set(others) - source.partitions(others).keys())
    except BrokerAuthenticationError:  # a topic of another pipeline
        unknown = []
    if unknown:
        raise MisnamedError(
            f"{names_key()} names {', '.join(map(repr, unknown))}, which neither the query nor the "
            "cluster to leave has: correct the name"
        )
    return []


def read_last_records(
    source: OffsetsClient,
    sources: Mapping[str, Offsets],
    logs: Logs,
    kept: Mapping[TopicPartition, Sequence[LastRead]],
    *,
    within: float = 20.0,
) -> dict[TopicPartition, Sequence[LastRead]]:
    """Return the last records before positions in logs, and those that were kept."""
    read = dict(kept)
    for offsets in sources.values():
        there = {tp: at for tp, at in offsets.items() if tp in logs}
        for tp, last in last_reads(source, there, logs, within=within).items():
            # The kept entry may count records that compaction has removed since.
            known = [each for each in read.get(tp, ()) if each.position == last.position]
            read[tp] = known + [each for each in (last, *read.get(tp, ())) if each not in known]
    return read


def existing_logs(client: OffsetsClient, partitions: Collection[TopicPartition]) -> tuple[Logs, list[str]]:
    """Return the logs that still exist, and a note about those that do not."""
    there = existing_partitions(client, partitions)
    gone = set(partitions) - there
    notes = [f"{summarize(gone)}: deleted, so only what commits have kept is known"] if gone else []
    return client.log_ranges(there), notes


def _fallback_note(kept: FailoverData) -> str:
    if not kept.at:
        return "no commit has kept data beside the checkpoint"
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(kept.at))
    return f"the data kept with batch {kept.batch_id} at {moment} is used"


def translate_sources(
    target: OffsetsClient,
    mirror: Mirror,
    sources: Mapping[str, Offsets],
    kept: FailoverData,
    logs: Logs | None = None,
    *,
    copies: bool = True,
) -> list[TranslatedPartition]:
    """
    Translate the positions of a query's sources; those that are not exact after 120 seconds stay safe.

    :param logs: the logs of the source that are known.
    :param copies: whether the mirror may still be copying them.
    """
    end = time.monotonic() + 120.0
    partitions = {tp for offsets in sources.values() for tp in offsets}
    topics: dict[str, set[str]] = {}
    for tp in partitions:
        topics.setdefault(mirror.topic(tp.topic), set()).add(tp.topic)
    if shared := {new: old for new, old in topics.items() if len(old) > 1}:
        raise MisnamedError(
            [
                f"{names_key()} gives {', '.join(sorted(old))} the same "
                f"name {new!r}; expected another name for each topic"
                for new, old in shared.items()
            ]
        )
    mirrored_logs = target.log_ranges(
        existing_partitions(target, {mirror.partition(tp) for tp in partitions})
    )
    found: list[TranslatedPartition] = []

    def evidence_of(tp: TopicPartition, position: int, log: LogRange) -> Evidence:
        source = (logs or {}).get(tp)
        # Not if none was read: they may not have been read in time.
        no_record = source is not None and source.start >= position
        syncs, read = kept.syncs.get(tp, ()), kept.read.get(tp, ())
        return Evidence(position, log, syncs, read, source if copies else None, no_record)

    for name, offsets in sources.items():
        known = {
            tp: evidence_of(tp, position, mirrored_logs[copy])
            for tp, position in offsets.items()
            if (copy := mirror.partition(tp)) in mirrored_logs
        }
        known = _search(target, mirror, known, end)
        for tp, position in sorted(offsets.items()):
            mirrored, evidence = mirror.partition(tp), known.get(tp)
            if evidence is None:
                missing = Translation(None, why=f"{mirrored} is not on the mirror")
                found.append(TranslatedPartition(name, tp, position, mirrored, missing))
                continue
            translation, log, searches = evidence.translate(), evidence.log, evidence.searches
            reached = next_upstream(kept.syncs.get(tp, ()), log.end)
            if log.end == 0:
                reached = position if evidence.no_record else 0
            unmirrored = None if reached is None or tp not in kept.ends else max(0, kept.ends[tp] - reached)
            found.append(
                TranslatedPartition(name, tp, position, mirrored, translation, log, unmirrored, searches)
            )
    return found


def left_out_refusals(target: OffsetsClient, sources: Mapping[str, Offsets], scope: TopicScope) -> list[str]:
    """Return why partitions must not stay: their offsets of the old cluster would count on the mirror."""
    out = {tp for offsets in sources.values() for tp in offsets if tp not in scope}
    found = existing_partitions(target, out)
    if not found:
        return []
    return [
        f"{parameter_text('topics', ...)} leaves out {summarize(found)}, which the mirror has under the same "
        "name: the checkpoint would keep the old cluster's offset there, which is another record; move all "
        "topics at once"
    ]


def _search(
    target: OffsetsClient, mirror: Mirror, known: Mapping[TopicPartition, Evidence], end: float
) -> dict[TopicPartition, Evidence]:
    """Return the evidence with the results of its searches."""
    found = dict(known)
    searches = {tp: each.next_search() for tp, each in found.items()}
    while wanted := {tp: each for tp, each in searches.items() if each is not None}:
        left = end - time.monotonic()
        if left <= 0:
            break
        results = find_copies(
            target, {mirror.partition(tp): each for tp, each in wanted.items()}, within=left
        )
        found |= {tp: found[tp].with_search(results[mirror.partition(tp)]) for tp in wanted}
        searches = {tp: found[tp].next_search() for tp in wanted}
    return found


def gather_failover_data(
    source: OffsetsClient, target: OffsetsClient, checkpoint: SparkCheckpoint, mirror: Mirror
) -> FailoverData:
    """
    Read the last records before a checkpoint's position, and the syncs around it.

    :return: the data to keep; its ``error``, which is kept too, names the parts that could not be read.
    """
    try:
        known = read_failover_data(checkpoint)
    except OffsetsFormatError as error:
        log.warning("The file is replaced: %s", error)
        known = FailoverData()
    state = checkpoint.read()
    sources, cluster = state.kafka_offsets, source.cluster_id()
    known = known.on(cluster) if known.may_be_of(state.query_id) else FailoverData()
    partitions = {tp for offsets in sources.values() for tp in offsets}
    read: Mapping[TopicPartition, Sequence[LastRead]] = {}
    errors: list[str] = []
    logs = source.log_ranges(partitions)
    try:
        read = read_last_records(source, sources, logs, {}, within=_WITHIN)
    except KafkaOffsetsError as error:
        errors.append(f"the last records could not be read: {error}")
    ends = {tp: log.end for tp, log in logs.items()}
    kept = known.with_position(int(state.batch_id or 0), int(time.time()), cluster, read, ends)
    try:
        kept = kept.with_syncs(*_read_syncs(source, target, mirror, known, partitions))
    except KafkaOffsetsError as error:
        errors.append(f"the syncs could not be read: {error}")
        # The syncs that are known may be around the new position.
        kept = kept.with_syncs(Syncs({}, known.syncs_topic, known.syncs_next), {})
    if size_error("the file", kept.as_text()):
        errors.append(f"{len(kept.ends)} partitions are too many for their offset syncs to be kept too")
        kept = replace(kept, syncs={})
    return replace(kept, query_id=state.query_id, error="; ".join(errors))


def _read_syncs(
    source: OffsetsClient,
    target: OffsetsClient,
    mirror: Mirror,
    known: FailoverData,
    partitions: set[TopicPartition],
) -> tuple[Syncs, Mapping[str, str]]:
    """Return the new syncs, and the ids of the mirror's topics."""
    client = target if mirror.syncs_on == "target" else source
    topic = mirror.syncs_topic
    if not topic and known.syncs_topic and known.syncs_topic in client.partitions([known.syncs_topic]):
        topic = known.syncs_topic
    topic = topic or find_syncs_topic(client, mirror)
    since = known.syncs_next if topic == known.syncs_topic else 0
    # Before the syncs: those of a topic that is created again in between must not pass for the new one's.
    mirrored = mirrored_ids(target, mirror, {tp.topic for tp in partitions})
    # At most the newest 20,000; the next commit continues after them.
    return read_syncs(client, topic, partitions, since=since, most=20_000, within=_WITHIN), mirrored
