"""
Checks a move of a query to other topics of the same cluster.

A tool has copied the old topic, or the producers write to the new topic now. No offset syncs exist, so only
records show a position in the new topic. Records of the old topic that the query has not read must be in the
new topic, or they would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import MisnamedError, PlanRefusedError
from airflow_kafka_offsets.model.failover_data import FailoverData
from airflow_kafka_offsets.model.failover_plan import TranslatedPartition
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.translation import Search, Translation
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.failover import existing_logs, names_key, read_last_records
from airflow_kafka_offsets.readings.mirror import find_copies, last_reads
from airflow_kafka_offsets.readings.positions import existing_partitions


def renamed_sources(
    mirror: Mirror, sources: Mapping[str, Offsets], scoped: Mapping[str, Offsets]
) -> dict[str, Offsets]:
    """Return the offsets, among the scoped ones, of the topics that get another name."""
    others = {
        "prefix": mirror.prefix,
        "without": mirror.without,
        "syncs_topic": mirror.syncs_topic,
        "syncs_on": "" if mirror.syncs_on == "target" else mirror.syncs_on,
    }
    if given := [parameter_text(name) for name, value in others.items() if value]:
        raise PlanRefusedError(
            f"{', '.join(given)}: found for a move on one cluster, which has no mirror; expected only the "
            f"names of topics ({names_key()})"
        )
    known = {tp.topic for offsets in scoped.values() for tp in offsets}
    if unknown := sorted(mirror.topics.keys() - known):
        raise MisnamedError(
            f"{names_key()} names {', '.join(map(repr, unknown))}; expected topics that the query "
            f"reads: {', '.join(map(repr, sorted(known)))}"
        )
    moved = {
        name: {tp: at for tp, at in offsets.items() if mirror.topic(tp.topic) != tp.topic}
        for name, offsets in scoped.items()
    }
    if not any(moved.values()):
        raise PlanRefusedError(f"{names_key()} names no other topic: expected another name for each topic")
    stays = {tp.topic for name, offsets in sources.items() for tp in offsets if tp not in moved.get(name, {})}
    taken = {mirror.topic(tp.topic) for offsets in moved.values() for tp in offsets} & stays
    if taken:
        raise PlanRefusedError(
            f"{names_key()} moves to {', '.join(map(repr, sorted(taken)))}, which the query reads already: "
            "expected topics that it does not read"
        )
    return moved


def gather_records(
    client: OffsetsClient, sources: Mapping[str, Offsets], kept: FailoverData
) -> tuple[FailoverData, Logs, list[str]]:
    """
    Read the last records before positions; of a topic that is deleted, only those that were kept are known.

    :param kept: the kept data of this cluster. Its syncs are of another cluster.
    :return: the data for a translation, the logs that still exist, and notes about missing data.
    """
    partitions = {tp for offsets in sources.values() for tp in offsets}
    logs, notes = existing_logs(client, partitions)
    read = read_last_records(client, sources, logs, kept.read)
    return FailoverData(read=read, ends={tp: log.end for tp, log in logs.items()}), logs, notes


def compare_partition_counts(
    client: OffsetsClient, translated: Sequence[TranslatedPartition]
) -> list[TranslatedPartition]:
    """Return no position for a topic whose number of partitions differs: records are in other partitions."""
    topics = {each.partition.topic: each.mirrored.topic for each in translated}
    counts = {topic: len(found) for topic, found in client.partitions({*topics, *topics.values()}).items()}
    read: dict[str, int] = {}
    for each in translated:
        read[each.partition.topic] = max(read.get(each.partition.topic, 0), each.partition.partition + 1)
    differing = {
        old: f"{old} has {was} partitions and {new} has {counts[new]}, so records are in other partitions"
        for old, new in topics.items()
        if new in counts and counts[new] != (was := counts.get(old, read[old]))
    }
    return [
        replace(each, translation=Translation(None, why=differing[each.partition.topic]))
        if each.partition.topic in differing and each.log is not None
        else each
        for each in translated
    ]


def unread_refusals(
    client: OffsetsClient, mirror: Mirror, before: Mapping[str, Offsets], after: Mapping[str, Offsets]
) -> list[str]:
    """
    Return why records would be lost: the query has not read them, and the new topic does not hold them.

    The last record of the old log is looked for behind the new position: a copy that has it has all. A topic
    may move to the name of another one that moves too.
    """
    positions: Offsets = {}
    targets: Offsets = {}
    for source, offsets in before.items():
        moved = after.get(source, {})
        for tp, position in offsets.items():
            copy = mirror.partition(tp)
            # The topic keeps its name, or this partition of it stays.
            if copy == tp or (tp in moved and copy not in moved):
                continue
            # Of several sources that read a partition, the one that has read least counts.
            if position <= positions.get(tp, position):
                positions[tp] = position
                targets[tp] = moved.get(copy, 0)
    old = client.partitions({tp.topic for tp in positions})
    # Also partitions that were added after the newest batch: the query has read nothing there.
    partitions = [TopicPartition(topic, number) for topic, numbers in old.items() for number in numbers]
    logs = client.log_ranges(partitions)
    unread = {tp: log for tp, log in logs.items() if max(positions.get(tp, 0), log.start) < log.end}
    newest = last_reads(client, {tp: log.end for tp, log in unread.items()}, unread)
    new_logs = client.log_ranges(existing_partitions(client, [mirror.partition(tp) for tp in unread]))
    searches: dict[TopicPartition, Search] = {}
    missing: list[TopicPartition] = []
    for tp in unread:
        last, log = newest.get(tp), new_logs.get(mirror.partition(tp))
        if last is not None and last.identity.offset < positions.get(tp, 0):
            continue  # only markers of transactions follow
        if last is None or log is None:
            missing.append(tp)
            continue
        start = max(log.start, targets.get(tp, 0))
        searches[mirror.partition(tp)] = Search(last, min(start, log.end), log.end)
    results = find_copies(client, searches)
    missing += [tp for tp in unread if (copy := mirror.partition(tp)) in results and not results[copy].found]
    if not missing:
        return []
    return [
        f"the query has not read {summarize(missing)} to the end, and the new topic does not "
        "hold the last record of the old one: let the query read the old topic to its end, or let the copy "
        f"finish; a reset to the end ({parameter_text('to_offset', 'latest')}) skips these records on purpose"
    ]
