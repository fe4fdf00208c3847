"""The ids of the cluster and its topics, as far as the broker gives them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.model.log_ids import LogIds

log = logging.getLogger(__name__)


class LogIdsReader(Protocol):
    """The questions about the identity of logs, which every client answers."""

    def cluster_id(self) -> str:
        """Return the id of the cluster; empty if the broker does not say."""

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics."""


def known_log_ids(client: LogIdsReader, topics: Iterable[str]) -> LogIds:
    """Return the ids of the cluster and of topics; without those of topics where they cannot be had."""
    try:
        return client.log_ids(topics)
    except (BrokerError, SetupError) as error:
        log.warning("A topic that is deleted and created again after this will not be noticed: %s", error)
        return LogIds(client.cluster_id())
