"""
What does a broker say about itself? A child process, so that a client that aborts takes nobody along.

Reads a client's configuration as JSON from standard input and writes JSON: ``brokers`` (how many) and
``retention`` if they are known, ``error`` if something was not.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

RETENTION = "offsets.retention.minutes"


def probe(config: dict[str, Any], timeout: float) -> dict[str, Any]:
    """
    Ask for the brokers, and one of them for its configuration.

    :param config: librdkafka's configuration.
    :param timeout: seconds for each of the two.
    """
    said: list[str] = []

    def note(error: KafkaError) -> None:
        said.append(error.str())

    answer: dict[str, Any] = {}
    try:
        client = AdminClient({**config, "error_cb": note, "log_level": 0})
        brokers = client.list_topics(timeout=timeout).brokers
        answer["brokers"] = len(brokers)
        resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
        described = client.describe_configs([resource], request_timeout=timeout)[resource].result(timeout)
        answer["retention"] = described[RETENTION].value if RETENTION in described else None
    except (KafkaException, TimeoutError) as error:
        if "brokers" not in answer and "client" in locals():
            # The cause of a failed connection arrives here, the call says only that it failed.
            client.poll(0)
        reason = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
        answer["error"] = "; ".join(dict.fromkeys([reason or type(error).__name__, *said]))
    return answer


if __name__ == "__main__":
    print(json.dumps(probe(json.load(sys.stdin), float(sys.argv[1]))))
