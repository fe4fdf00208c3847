"""
What does a broker say about itself? A child process, so that a client that aborts takes nobody along.

Reads a client's configuration as JSON from standard input and writes JSON: ``brokers`` (how many) and
``retention`` if they are known, ``error`` if something was not.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from airflow_kafka_offsets.kafka.config import missing_file, scrubber
from airflow_kafka_offsets.kafka.failures import Causes, Deadline, Failed, Failure
from airflow_kafka_offsets.kafka.listener_probe import look_at_listener
from airflow_kafka_offsets.kafka.retry import until

RETENTION = "offsets.retention.minutes"


def probe(config: dict[str, Any], timeout: float) -> dict[str, Any]:
    """
    Ask for the brokers, and one of them for its configuration.

    :param config: librdkafka's configuration.
    :param timeout: seconds for each of the two.
    """
    scrub = scrubber(config)
    causes = Causes(scrub, partial(look_at_listener, config))
    answer: dict[str, Any] = {}
    try:
        client = AdminClient({**config, "error_cb": causes.note, "log_level": 0})
        brokers = until(Deadline(timeout), lambda longest: _brokers(client, longest), lambda: causes)
        answer["brokers"] = len(brokers)
        resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
        described = client.describe_configs([resource], request_timeout=timeout)[resource].result(timeout)
        answer["retention"] = described[RETENTION].value if RETENTION in described else None
    except Failed as error:
        final = causes.final
        reasons = [final.text, final.remedy] if final else [error.failure.text, str(causes)]
        answer["error"] = scrub(": ".join(filter(None, reasons)))
    except (KafkaException, TimeoutError) as error:
        reason = Failure.of(error).text if isinstance(error, KafkaException) else str(error)
        answer["error"] = scrub(missing_file(config) or reason or type(error).__name__)
    return answer


def _brokers(client: AdminClient, timeout: float) -> dict[int, Any]:
    try:
        return dict(client.list_topics(timeout=timeout).brokers)
    except KafkaException as error:
        # The cause of a failed connection arrives here, the call says only that it failed.
        client.poll(0)
        raise Failed(Failure.of(error)) from None


if __name__ == "__main__":
    print(json.dumps(probe(json.load(sys.stdin), float(sys.argv[1]))))
