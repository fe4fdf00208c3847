"""How long topics keep their records, and the headroom of positions in them."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError, SetupError
from airflow_kafka_offsets.kafka.reader import OffsetsReader
from airflow_kafka_offsets.model.headroom import (
    Headroom,
    Headrooms,
    Retention,
    measure_headrooms,
    partitions_without_verdict,
    positions_needing_time,
)
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Logs, Offsets, TopicPartition

_BY_TOPIC = 10.0
"""Seconds for reading records topic by topic; those that are left have an unknown time."""


def read_retentions(
    client: OffsetsReader, topics: Collection[str], *, strict: bool = True
) -> dict[str, Retention | str]:
    """
    Return how long topics keep their records, or why that is not known.

    :param strict: raise what the broker refuses, such as for a right that is missing, and do not return it
        as the reason.
    """
    # An empty list is no question to the broker: no right is needed where there is nothing to know.
    if not topics:
        return {}
    try:
        found = client.topic_settings(topics)
    except (BrokerError, SetupError) as error:
        if strict:
            raise
        return dict.fromkeys(topics, str(error))
    result: dict[str, Retention | str] = {}
    for topic, settings in found.items():
        if isinstance(settings, BrokerError):
            if strict:
                # The broker answers for each topic, so that a right may be missing on one of them alone.
                raise settings
            result[topic] = str(settings)
        else:
            result[topic] = Retention.from_settings(settings)
    return result


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
    Return the headroom of positions; ``strict`` as in :func:`read_retentions`.

    :param logs: up to the log end: retention also deletes what is not committed.
    :param retentions: how long the topics keep their records; default: it is asked for.
    :param min_headroom: see :func:`decide_by_time_lookup`.
    """
    if retentions is None:
        retentions = read_retentions(client, {tp.topic for tp in positions}, strict=strict)
    wanted = positions_needing_time(positions, logs, retentions)
    try:
        times = client.record_times(wanted) if wanted else {}
    # One topic without Read refuses the whole lookup, and the answer does not say for which topics it would
    # have been allowed.
    except BrokerAuthenticationError:
        if strict:
            raise
        times, refused = _times_by_topic(client, wanted)
        retentions = {**retentions, **refused}
    now_ms = int(time.time() * 1000)
    found = measure_headrooms(positions, logs, retentions, times, now_ms)
    return (
        found
        if min_headroom is None
        else found | decide_by_time_lookup(client, found, positions, retentions, min_headroom, now_ms)
    )


def decide_by_time_lookup(
    client: OffsetsReader,
    found: Headrooms,
    positions: Offsets,
    retentions: Mapping[str, Retention | str],
    min_headroom: float,
    now_ms: int,
) -> dict[TopicPartition, Headroom]:
    """
    Decide by a lookup of times whether a headroom is enough where the record's own time could not be read.

    That is one offset instead of one record for each partition, so that it works for any number of them.

    :param min_headroom: seconds that are enough.
    :return: the partitions of which that is now known.
    """
    decided: dict[TopicPartition, Headroom] = {}
    for kept, partitions in partitions_without_verdict(found, retentions).items():
        # Retention deletes a record kept.ms after it was written: one that lives for at least
        # min_headroom more was written after this. Rounded up, so that what is said to be enough is enough.
        oldest_ms = math.ceil(now_ms + min_headroom * 1000) - (kept.ms or 0)
        first = client.offsets_for_time(partitions, min(MAX_OFFSET, max(0, oldest_ms)))
        for tp in partitions:
            # A record that is young enough, at the position or before it, keeps all that follows it, see
            # model/headroom.py; if there is none, what the position reads next is too old.
            enough = (offset := first[tp]) is not None and offset <= positions[tp]
            decided[tp] = found[tp].with_verdict(min_headroom, kept, enough=enough)
    return decided


def _times_by_topic(
    client: OffsetsReader, offsets: Offsets
) -> tuple[dict[TopicPartition, int | None], dict[str, str]]:
    """Return when records were written, and of the topics whose records may not be read why."""
    times: dict[TopicPartition, int | None] = {}
    refused: dict[str, str] = {}
    end = time.monotonic() + _BY_TOPIC
    for topic in sorted({tp.topic for tp in offsets}):
        # Topics that were not asked in time have no entry, which counts as an unknown time and not as
        # enough headroom.
        if (left := end - time.monotonic()) <= 0:
            break
        wanted = {tp: at for tp, at in offsets.items() if tp.topic == topic}
        try:
            times |= client.record_times(wanted, within=left)
        except BrokerAuthenticationError as error:
            refused[topic] = str(error)
    return times, refused
