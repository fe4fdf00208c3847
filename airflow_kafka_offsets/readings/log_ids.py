"""The ids of the cluster and its topics, as far as the broker returns them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.kafka.reader import PositionsReader
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals

log = logging.getLogger(__name__)


def known_log_ids(client: PositionsReader, topics: Iterable[str], *, asks_again: bool = False) -> LogIds:
    """
    Return the ids of the cluster and of topics; without topic ids if the broker does not return them.

    :param asks_again: whether to raise a temporary error, after which the caller asks again.
    """
    try:
        return client.log_ids(topics)
    except (BrokerError, SetupError) as error:
        if asks_again and error.retriable:
            raise
        log.warning("A later deletion and re-creation of a topic will not be detected: %s", error)
        return LogIds(client.cluster_id())


def current_logs_refusals(
    client: PositionsReader, what: str, recorded: LogIds, *, remedy: str = ""
) -> list[str]:
    """
    Return why offsets of recorded logs are invalid on this broker, see :func:`other_logs_refusals`.

    Only recorded ids are requested, because topic ids take a request of the admin process.

    :raises BrokerError: if ids were recorded, but the broker does not return the current ones.
    """
    if not recorded:
        return []
    now = LogIds(client.cluster_id())
    if recorded.topics and not recorded.is_other_cluster(now):
        now = client.log_ids(recorded.topics)
    return other_logs_refusals(what, recorded, now, remedy=remedy)
