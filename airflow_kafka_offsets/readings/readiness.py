"""Keeps beside a checkpoint what a failover needs when the source is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.readiness_file import read_readiness, write_readiness
from airflow_kafka_offsets.errors import KafkaOffsetsError, OffsetsFormatError
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition
from airflow_kafka_offsets.model.readiness import Readiness
from airflow_kafka_offsets.model.translation import LastRead
from airflow_kafka_offsets.readings.mirror import Syncs, find_syncs_topic, last_reads, read_syncs

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)

MOST_SYNCS = 20_000
"""Syncs that one commit reads at most, the newest ones; the next commit goes on from there."""
WITHIN = 5.0
"""Seconds for the records that are read, of each cluster."""


def keep_readiness(
    source: OffsetsClient,
    open_target: Callable[[], OffsetsClient],
    checkpoint: SparkCheckpoint,
    state: CheckpointState,
    mirror: Mirror,
    *,
    within: float = WITHIN,
) -> Readiness:
    """
    Keep the last records before a checkpoint's position, and the syncs around it.

    :param source: the cluster that the checkpoint counts on.
    :param open_target: returns a client of the mirror; it is asked for only if the syncs are there.
    :param state: the checkpoint's newest committed batch.
    :param within: seconds for the records that are read, of each cluster.
    :return: what was kept; its ``error`` says what could not be read, and is kept too.
    :raises StorageError: if the storage fails.
    """
    try:
        known = read_readiness(checkpoint)
    except OffsetsFormatError as error:
        log.warning("Written anew: %s", error)
        known = Readiness()
    sources = state.kafka_offsets
    cluster = source.cluster_id()
    known = known.on(cluster)
    partitions = {tp for offsets in sources.values() for tp in offsets}

    def read_them() -> Syncs:
        client = open_target() if mirror.syncs_on == "target" else source
        topic = mirror.syncs_topic or known.syncs_topic or find_syncs_topic(client, mirror)
        since = known.syncs_next if topic == known.syncs_topic else 0
        return read_syncs(client, topic, partitions, since=since, most=MOST_SYNCS, within=within)

    # Both clusters at the same time: a commit waits for the slower one.
    with ThreadPoolExecutor(1, "syncs") as thread:
        syncs = thread.submit(read_them)
        read, ends, errors = _last_reads(source, sources, within)
        kept = known.with_position(int(state.batch_id or 0), int(time.time()), cluster, read, ends)
        try:
            found = syncs.result()
        except KafkaOffsetsError as error:
            errors.append(f"the syncs could not be read: {error}")
            # The position counts without them, and those that are known may be around it.
            kept = kept.with_syncs({}, known.syncs_topic, known.syncs_next)
        else:
            kept = kept.with_syncs(found.of, found.topic, found.next)
    kept = replace(kept, error="; ".join(errors))
    write_readiness(checkpoint, kept)
    return kept


def _last_reads(
    source: OffsetsClient, sources: Mapping[str, Offsets], within: float
) -> tuple[dict[TopicPartition, list[LastRead]], dict[TopicPartition, int], list[str]]:
    read: dict[TopicPartition, list[LastRead]] = {}
    errors: list[str] = []
    logs = source.log_ranges({tp for offsets in sources.values() for tp in offsets})
    try:
        for offsets in sources.values():
            for tp, last in last_reads(source, offsets, logs, within=within).items():
                read.setdefault(tp, []).append(last)
    except KafkaOffsetsError as error:
        errors.append(f"the last records could not be read: {error}")
    return read, {tp: log.end for tp, log in logs.items()}, errors
