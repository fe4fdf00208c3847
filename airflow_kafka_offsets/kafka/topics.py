"""Ids of topics: a topic that is deleted and created again has another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_kafka_offsets.kafka.admin_process import AdminProcess
from airflow_kafka_offsets.kafka.config import SERVERS, scrubber
from airflow_kafka_offsets.kafka.failures import (
    RETRIABLE,
    UNKNOWN_PARTITION,
    Causes,
    Deadline,
    Failed,
    Failure,
    explain,
)
from airflow_kafka_offsets.kafka.retry import until


def topic_ids(config: Mapping[str, Any], topics: Sequence[str], deadline: Deadline) -> dict[str, str]:
    """
    Ask for the ids of topics, in a child process: AdminClient can abort the one that it is in.

    :param config: from :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    :return: a topic of a broker that gives none (before Kafka 2.8) is not in it.
    :raises BrokerError: if there is no answer for one of them.
    """
    if not topics:
        return {}
    admin, scrub = AdminProcess(config), scrubber(config)
    what = f"looking up the ids of topics {', '.join(topics[:5])}"
    found: dict[str, str | None] = {}

    def attempt(_: float) -> None:
        failed: Failure | None = None
        todo = [topic for topic in topics if topic not in found]
        for topic, (value, failure) in admin.call(what, "topic_ids", todo, deadline).items():
            if failure is None:
                found[topic] = value
            elif failed is None or failed.code in RETRIABLE | UNKNOWN_PARTITION:
                failed = Failure(failure[0], scrub(failure[1]))
        if failed is not None:
            raise Failed(failed)

    try:
        # Also where a broker that was just told of a topic does not know it for a moment.
        until(deadline, attempt, Causes)
    except Failed as error:
        servers = str(config.get(SERVERS))
        raise explain(what, error.failure, Causes(scrub), servers, deadline.timeout) from None
    return {topic: value for topic, value in sorted(found.items()) if value is not None}
