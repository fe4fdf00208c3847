"""Reads the data that a failover without the source needs, for a file beside the checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.readiness_file import read_readiness
from airflow_kafka_offsets.errors import KafkaOffsetsError, OffsetsFormatError
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offset_syncs import Syncs
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.readiness import Readiness
from airflow_kafka_offsets.model.text import size_error
from airflow_kafka_offsets.model.translation import LastRead
from airflow_kafka_offsets.readings.failover import read_last
from airflow_kafka_offsets.readings.mirror import find_syncs_topic, mirrored_ids, read_syncs

log = logging.getLogger(__name__)

WITHIN = 5.0
"""Seconds to read the records of each cluster."""


def read_newest(
    source: OffsetsClient, target: OffsetsClient, checkpoint: SparkCheckpoint, mirror: Mirror
) -> Readiness:
    """
    Read the last records before a checkpoint's position, and the syncs around it, from both clusters at once.

    :return: the data to keep; its ``error``, which is kept too, names the parts that could not be read.
    """
    try:
        known = read_readiness(checkpoint)
    except OffsetsFormatError as error:
        log.warning("The file is replaced: %s", error)
        known = Readiness()
    state = checkpoint.read()
    sources, cluster = state.kafka_offsets, source.cluster_id()
    known = known.on(cluster) if known.may_be_of(state.query_id) else Readiness()
    partitions = {tp for offsets in sources.values() for tp in offsets}
    read: Mapping[TopicPartition, Sequence[LastRead]] = {}
    errors: list[str] = []
    with ThreadPoolExecutor(1, "readiness") as threads:
        syncs = threads.submit(_read_syncs, source, target, mirror, known, partitions)
        logs = source.log_ranges(partitions)
        try:
            read = read_last(source, sources, logs, {}, within=WITHIN)
        except KafkaOffsetsError as error:
            errors.append(f"the last records could not be read: {error}")
    ends = {tp: log.end for tp, log in logs.items()}
    kept = known.with_position(int(state.batch_id or 0), int(time.time()), cluster, read, ends)
    try:
        kept = kept.with_syncs(*syncs.result())
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
    known: Readiness,
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
    return read_syncs(client, topic, partitions, since=since, most=20_000, within=WITHIN), mirrored
