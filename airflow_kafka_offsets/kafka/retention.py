"""How long topics keep their records, and the headroom of positions in them."""

from __future__ import annotations

import time
from collections.abc import Collection

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError, SetupError
from airflow_kafka_offsets.kafka.reader import OffsetsReader
from airflow_kafka_offsets.model.headroom import Headroom, Retention, measure_headrooms, untimed
from airflow_kafka_offsets.model.offsets import Logs, Offsets, TopicPartition


def retentions(
    client: OffsetsReader, topics: Collection[str], *, strict: bool = True
) -> dict[str, Retention | str]:
    """
    Return how long topics keep their records, or why that is not known.

    :param strict: raise what the broker refuses, such as for a right that is missing, and do not return it
        as the reason.
    """
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
                raise settings
            result[topic] = str(settings)
        else:
            result[topic] = Retention.of(settings)
    return result


def headrooms(
    client: OffsetsReader,
    positions: Offsets,
    logs: Logs,
    *,
    strict: bool = True,
) -> dict[TopicPartition, Headroom]:
    """
    Return the headroom of positions; ``strict`` as in :func:`retentions`.

    :param logs: up to the log end: retention also deletes what is not committed.
    """
    known = retentions(client, {tp.topic for tp in positions}, strict=strict)
    wanted = untimed(positions, logs, known)
    try:
        times = client.record_times(wanted) if wanted else {}
    except BrokerAuthenticationError as error:
        if strict:
            raise
        known |= dict.fromkeys({tp.topic for tp in wanted}, str(error))
        times = {}
    return measure_headrooms(positions, logs, known, times, int(time.time() * 1000))
