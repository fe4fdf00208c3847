"""Reads MirrorMaker's syncs, the records before positions and their copies; detects a running mirror."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from airflow_kafka_offsets.annotation_types import OffsetsClient, Record
from airflow_kafka_offsets.errors import BrokerError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.headroom import CLEANUP
from airflow_kafka_offsets.model.mirror import SYNCS_TOPIC, Mirror, source_aliases
from airflow_kafka_offsets.model.offset_syncs import OffsetSync, Syncs, parse_sync, syncs_of_this_log
from airflow_kafka_offsets.model.offsets import IsolationLevel, Logs, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.translation import LastRead, RecordIdentity, Search, record_digest
from airflow_kafka_offsets.model.wording import dag_text, parameter_text

log = logging.getLogger(__name__)

MOST_RECORDS = 50_000


def find_syncs_topic(client: OffsetsClient, mirror: Mirror) -> str:
    """
    Return the name of MirrorMaker's syncs topic.

    :raises PlanRefusedError: if there is no such topic, or if there are several and the mirror names no
        topic.
    """
    where = f"the {mirror.syncs_on}"
    if mirror.syncs_topic:
        if mirror.syncs_topic in client.partitions([mirror.syncs_topic]):
            return mirror.syncs_topic
        raise PlanRefusedError(
            f"{where} has no topic {mirror.syncs_topic!r}: correct {mirror_key('syncs_topic')}, or "
            f"{mirror_key('syncs_on')}; MirrorMaker writes it to the source unless "
            "offset-syncs.topic.location=target"
        )
    found = [topic for topic in client.partitions() if SYNCS_TOPIC.fullmatch(topic)]
    if len(found) == 1:
        return found[0]
    if found:
        raise PlanRefusedError(
            f"{where} has several topics of offset syncs, {', '.join(found)}: name the mirror's with "
            f"{mirror_key('syncs_topic')}"
        )
    raise PlanRefusedError(
        f"{where} has no topic of offset syncs (mm2-offset-syncs...internal): name the cluster that has it "
        f"with {mirror_key('syncs_on')}, name the topic with {mirror_key('syncs_topic')}, grant the user "
        "Describe on it, or let MirrorMaker write it to the mirror with offset-syncs.topic.location=target"
    )


def mirror_key(name: str) -> str:
    """Return the name of a mirror's key for texts; on the command line, its option."""
    return f"{parameter_text(name)}{dag_text(' of mirror')}"


def mirrored_ids(target: OffsetsClient, mirror: Mirror, topics: Collection[str]) -> dict[str, str]:
    """Return topic -> id of its copy on the mirror; empty for one that the mirror does not have."""
    ids = target.log_ids({mirror.topic(topic) for topic in topics}).topics
    return {topic: ids.get(mirror.topic(topic), "") for topic in topics}


def read_syncs(
    client: OffsetsClient,
    topic: str,
    partitions: Collection[TopicPartition],
    *,
    since: int = 0,
    most: int = 500_000,
    within: float = 20.0,
) -> Syncs:
    """Read the syncs of partitions of the source from an offset of the topic on, only the newest ``most``."""
    where = TopicPartition(topic, 0)  # MirrorMaker creates the topic with one partition
    found: dict[TopicPartition, list[OffsetSync]] = {}

    def take(_: TopicPartition, record: Record) -> None:
        parsed = parse_sync(record.key, record.value)
        if parsed is not None and parsed[0] in partitions:
            found.setdefault(parsed[0], []).append(parsed[1])

    log_range = client.log_ranges([where])[where]
    start = max(log_range.start, since if since <= log_range.end else 0, log_range.end - most)
    reached = client.read_records({where: OffsetRange(start, log_range.end)}, take, within=within)[where]
    whole = reached >= log_range.end and start <= max(log_range.start, since)
    return Syncs({tp: syncs_of_this_log(each) for tp, each in found.items()}, topic, reached, whole)


def last_reads(
    client: OffsetsClient, positions: Mapping[TopicPartition, int], logs: Logs, *, within: float = 20.0
) -> dict[TopicPartition, LastRead]:
    """Return the last committed record before each position, if one is nearby and is read within the time."""
    end = time.monotonic() + within
    found: dict[TopicPartition, list[RecordIdentity]] = {}
    # Markers and compaction leave gaps.
    for back in (16, 256, 4_096):
        ranges = {
            tp: OffsetRange(max(logs[tp].start, position - back), min(position, logs[tp].end))
            for tp, position in positions.items()
            if tp not in found and logs[tp].start < position
        }
        if not ranges or (left := end - time.monotonic()) <= 0:
            break
        read = record_identities(client, ranges, left, "read_committed")
        found |= {tp: records for tp, records in read.items() if records}
    # Between the last committed record and the position there may be records of aborted transactions. Some
    # mirrors copy them too. A source that has lost its newest records ends before the position.
    gaps = {
        tp: OffsetRange(records[-1].offset + 1, positions[tp])
        for tp, records in found.items()
        if records[-1].offset + 1 < positions[tp]
    }
    others = dict.fromkeys(found, 0)
    if gaps:
        there = {tp: gap for tp, gap in gaps.items() if gap.end <= logs[tp].end}
        uncommitted = record_identities(client, there, max(0.1, end - time.monotonic()), "read_uncommitted")
        compacted = _compacted(client, {tp.topic for tp in gaps})
        for tp, gap in gaps.items():
            known = tp in uncommitted and tp.topic not in compacted
            others[tp] = len(uncommitted[tp]) if known else gap.size
    return {
        tp: LastRead(
            positions[tp], records[-1], others[tp], all(each[1:] != records[-1][1:] for each in records[:-1])
        )
        for tp, records in found.items()
    }


def record_identities(
    client: OffsetsClient,
    ranges: Mapping[TopicPartition, OffsetRange],
    within: float,
    isolation_level: IsolationLevel,
) -> dict[TopicPartition, list[RecordIdentity]]:
    """Return the identities of the records in ranges; omit ranges that were not read to their ends."""
    found: dict[TopicPartition, list[RecordIdentity]] = {tp: [] for tp in ranges}

    def take(tp: TopicPartition, record: Record) -> None:
        found[tp].append(_identity(record))

    reached = client.read_records(ranges, take, within=within, isolation_level=isolation_level)
    return {tp: each for tp, each in found.items() if reached[tp] >= ranges[tp].end}


def _identity(record: Record) -> RecordIdentity:
    return RecordIdentity(record.offset, record.timestamp, record_digest(record.key, record.value))


def _compacted(client: OffsetsClient, topics: Collection[str]) -> set[str]:
    """Return the compacted topics, and the topics whose settings are unknown."""
    try:
        settings = client.topic_settings(topics)
    except BrokerError as error:
        log.info("It is unknown whether topics are compacted: %s", error)
        return set(topics)
    return {
        topic
        for topic in topics
        if isinstance(found := settings.get(topic), BrokerError)
        or "compact" in ((found or {}).get(CLEANUP) or "")
    }


def find_copies(
    client: OffsetsClient, searches: Mapping[TopicPartition, Search], *, within: float = 60.0
) -> dict[TopicPartition, Search]:
    """
    Search for copies of records: partition of the mirror -> the record.

    If a range has too many records to read all of them, the search begins at the first record that is as new
    as the wanted one. The ranges of the results are shorter than requested if the time was up.
    """
    ranges: dict[TopicPartition, OffsetRange] = {}
    end = time.monotonic() + within
    for tp, search in searches.items():
        start = search.start
        if search.end - start > MOST_RECORDS and search.read.identity.timestamp >= 0:
            first = client.offsets_for_time([tp], search.read.identity.timestamp)[tp]
            if first is not None:
                start = min(max(start, first), search.end)
        ranges[tp] = OffsetRange(start, min(search.end, start + MOST_RECORDS))
    found: dict[TopicPartition, list[RecordIdentity]] = {tp: [] for tp in searches}
    alike: dict[TopicPartition, list[int]] = {tp: [] for tp in searches}

    def take(tp: TopicPartition, record: Record) -> None:
        identity, wanted = _identity(record), searches[tp].read.identity
        found[tp].append(identity)
        if record.appended and identity.digest == wanted.digest and identity.timestamp != wanted.timestamp:
            alike[tp].append(record.offset)

    reached = client.read_records(ranges, take, within=max(0.1, end - time.monotonic()))
    return {
        tp: Search(
            search.read,
            ranges[tp].start,
            reached[tp],
            [each.offset for each in found[tp] if each[1:] == search.read.identity[1:]],
            alike[tp],
            records=len(found[tp]),
            repeats=len(found[tp]) - len({each[1:] for each in found[tp]}),
            by_time=search.start < ranges[tp].start,
        )
        for tp, search in searches.items()
    }


def _is_copied(client: OffsetsClient, group: str, old: str, mirror: str) -> bool:
    """Whether a group has commits that were made on the old cluster and copied to the mirror."""
    made = map(CommitMetadata.of, client.committed_everywhere(group).values())
    clusters = {each.cluster for each in made if each.cluster}
    return bool(clusters - {mirror}) and (not old or old in clusters)


def _running_workers(client: OffsetsClient) -> list[str]:
    """
    Return the groups of MirrorMaker's workers that are running now.

    This finds a dedicated MirrorMaker, whose group is ``<alias>-mm2``. In other Connect clusters the user
    chooses the group's name.
    """
    names = [f"{alias}-mm2" for alias in source_aliases(client.partitions())]
    if not names:
        return []
    try:
        return [name for name, group in client.describe_groups(names).items() if group.members]
    except BrokerError as error:
        log.info("It is unknown whether a mirror is running: %s", error)
        return []


def running_mirror(client: OffsetsClient, groups: Collection[str], old: str, mirror: str) -> str | None:
    """
    Return why groups must not be moved: a running mirror would overwrite their offsets. ``None`` otherwise.

    :param old: id of the old cluster; empty if unknown. ``mirror`` is that of the mirror.
    """
    copied = [group for group in groups if _is_copied(client, group, old, mirror)]
    running = _running_workers(client) if copied else []
    if not running:
        return None
    return (
        f"a mirror is still running ({', '.join(map(shorten, running))}) and copies the offsets of group "
        f"{', '.join(map(shorten, copied))} (sync.group.offsets.enabled): it would move "
        "these groups forward again; stop the mirror, or set "
        f"{parameter_text('allow_running_mirror', True)} if it no longer copies these groups"
    )
