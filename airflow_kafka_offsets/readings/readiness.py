"""Keeps the data beside a checkpoint that a failover without the source needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.readiness_file import read_readiness, write_readiness
from airflow_kafka_offsets.errors import KafkaOffsetsError, OffsetsFormatError
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition
from airflow_kafka_offsets.model.readiness import Readiness
from airflow_kafka_offsets.model.text import size_error
from airflow_kafka_offsets.model.translation import LastRead
from airflow_kafka_offsets.readings.mirror import (
    Syncs,
    find_syncs_topic,
    last_reads,
    mirrored_ids,
    read_syncs,
)

if TYPE_CHECKING:
    from typing import Self

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)

MOST_SYNCS = 20_000
"""Most syncs that one commit reads, the newest ones; the next commit continues after them."""
WITHIN = 5.0
"""Seconds to read the records of each cluster."""


class ReadinessKeeper:
    """
    Keeps the last records before a checkpoint's position, and the syncs around it.

    It reads both clusters at the same time, while the caller commits, so that the commit waits for neither.
    Use it as a context manager around the commit, and call :meth:`keep` after the commit.

    :param within: seconds to read the records of each cluster.
    """

    def __init__(
        self,
        source: OffsetsClient,
        target: OffsetsClient,
        checkpoint: SparkCheckpoint,
        mirror: Mirror,
        *,
        within: float = WITHIN,
    ) -> None:
        self._source = source
        self._target = target
        self._checkpoint = checkpoint
        self._mirror = mirror
        self._within = within
        self._threads = ThreadPoolExecutor(2, "readiness")
        self._read = self._threads.submit(self._read_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def keep(self) -> Readiness:
        """
        Write the data that was read.

        :return: the kept data; its ``error``, which is kept too, names the parts that could not be read.
        :raises KafkaOffsetsError: if the checkpoint or the source cannot be read, or the storage fails.
        """
        kept = self._read.result()
        write_readiness(self._checkpoint, kept)
        return kept

    def _read_all(self) -> Readiness:
        source = self._source
        try:
            known = read_readiness(self._checkpoint)
        except OffsetsFormatError as error:
            log.warning("The file is replaced: %s", error)
            known = Readiness()
        state = self._checkpoint.read()
        sources = state.kafka_offsets
        cluster = source.cluster_id()
        known = known.on(cluster)
        partitions = {tp for offsets in sources.values() for tp in offsets}
        syncs = self._threads.submit(self._read_syncs, known, partitions)
        read, ends, errors = _last_reads(source, sources, self._within)
        kept = known.with_position(int(state.batch_id or 0), int(time.time()), cluster, read, ends)
        try:
            found, mirrored = syncs.result()
            found = found._replace(by_partition=kept.present_syncs(found.by_partition, mirrored))
            kept = kept.without_old_syncs(mirrored)
        except KafkaOffsetsError as error:
            errors.append(f"the syncs could not be read: {error}")
            # Keep the position without new syncs: the known syncs may be around it.
            found = Syncs({}, known.syncs_topic, known.syncs_next)
        kept = kept.with_syncs(found.by_partition, found.topic, found.next)
        if size_error("the file", kept.as_text()):
            errors.append(f"{len(kept.ends)} partitions are too many for their offset syncs to be kept too")
            kept = replace(kept, syncs={})
        return replace(kept, error="; ".join(errors))

    def _read_syncs(
        self, known: Readiness, partitions: set[TopicPartition]
    ) -> tuple[Syncs, Mapping[str, str]]:
        """Return the new syncs, and the ids of the mirror's topics."""
        client = self._target if self._mirror.syncs_on == "target" else self._source
        topic = self._mirror.syncs_topic
        if not topic and known.syncs_topic and known.syncs_topic in client.partitions([known.syncs_topic]):
            topic = known.syncs_topic
        topic = topic or find_syncs_topic(client, self._mirror)
        since = known.syncs_next if topic == known.syncs_topic else 0
        # Before the syncs: those of a topic that is created again in between must not pass for the new one's.
        mirrored = mirrored_ids(self._target, self._mirror, {tp.topic for tp in partitions})
        found = read_syncs(client, topic, partitions, since=since, most=MOST_SYNCS, within=self._within)
        return found, mirrored


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
