"""Retention of topics, and headroom of positions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError, KafkaOffsetsError, SetupError
from airflow_kafka_offsets.model.headroom import (
    Headroom,
    Retention,
    measure_headrooms,
    partitions_without_verdict,
    positions_needing_time,
)
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Logs, Offsets, TopicPartition


def _raise(error: KafkaOffsetsError) -> str:
    raise error


def read_retentions(
    client: OffsetsReader, topics: Collection[str], explain: Callable[[KafkaOffsetsError], str] = _raise
) -> dict[str, Retention | str]:
    """
    Return the retention of topics, or the reason why it is unknown.

    :param explain: turns an error of the broker into the reason; by default the error is raised.
    """
    # Without topics, no request is sent, so no right is needed.
    if not topics:
        return {}
    try:
        found = client.topic_settings(topics)
    except (BrokerError, SetupError) as error:
        return dict.fromkeys(topics, explain(error))
    # The broker answers for each topic, so a right may be missing on a single topic.
    return {
        topic: explain(each) if isinstance(each, BrokerError) else Retention.from_settings(each)
        for topic, each in found.items()
    }


def read_headrooms(
    client: OffsetsReader,
    positions: Offsets,
    logs: Logs,
    retentions: Mapping[str, Retention | str] | None = None,
    *,
    min_headroom: float | None = None,
    strict: bool = True,
) -> dict[TopicPartition, Headroom]:
    """
    Return the headroom of positions; ``strict``: an error of the broker is raised.

    :param logs: logs up to the log end, because retention also deletes uncommitted records.
    :param min_headroom: required headroom in seconds.
    """
    if retentions is None:
        retentions = read_retentions(client, {tp.topic for tp in positions}, _raise if strict else str)
    wanted = positions_needing_time(positions, logs, retentions)
    try:
        times = client.record_times(wanted)
    # One topic without the right Read refuses the whole lookup, without naming the allowed topics.
    except BrokerAuthenticationError as error:
        if strict:
            raise
        times, retentions = {}, {**retentions, **dict.fromkeys({tp.topic for tp in wanted}, str(error))}
    now_ms = int(time.time() * 1000)
    found = measure_headrooms(positions, logs, retentions, times, now_ms)
    if min_headroom is None:
        return found
    # Without a timestamp, a lookup by time decides: it returns offsets, for any number of partitions.
    for kept, partitions in partitions_without_verdict(found, retentions).items():
        # Retention deletes a record kept.ms after it was written. A record with at least min_headroom left
        # was written at or after this time. Rounded up, so that the verdict "sufficient" is always right.
        oldest_ms = math.ceil(now_ms + min_headroom * 1000) - (kept.ms or 0)
        first = client.offsets_for_time(partitions, min(MAX_OFFSET, max(0, oldest_ms)))
        for tp in partitions:
            # Such a record protects all after it, see model/headroom.py. Without it, the next one is too old.
            enough = (offset := first[tp]) is not None and offset <= positions[tp]
            found[tp] = found[tp].with_verdict(min_headroom, kept, enough=enough)
    return found
