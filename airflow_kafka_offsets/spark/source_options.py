"""Options of Spark's Kafka source beside given offsets, and the settings of its Kafka clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.kafka_security import librdkafka_settings
from airflow_kafka_offsets.model.offsets import IsolationLevel

SERVERS = "kafka.bootstrap.servers"

_PREFIX = "kafka."
_SELECTING = frozenset({"assign", "subscribe", "subscribepattern"})
_BOUNDING = ("starting", "ending")
_FAIL = "failondataloss"


def refuse_other_ranges(options: Mapping[str, Any]) -> None:
    """Refuse options that select records, where offsets are given already; Spark ignores their case."""
    clash = sorted(key for key in options if key.lower() in _SELECTING or key.lower().startswith(_BOUNDING))
    if clash:
        raise UsageError(
            f"options has {', '.join(clash)}, but what is read is said by the offsets alone: leave it out; "
            f"expected {SERVERS}, the other kafka.* settings, and such as minPartitions and includeHeaders"
        )
    if not fails_on_data_loss(options):
        raise UsageError(
            "options has failOnDataLoss=false: Spark would then skip what retention has deleted without an "
            "error, and the records would not be those of the offsets; leave it out"
        )
    if not any(key.lower() == SERVERS and str(value).strip() for key, value in options.items()):
        raise UsageError(
            f"options has no {SERVERS}: expected the options of Spark's Kafka source, such as "
            f'{{"{SERVERS}": "host:9092"}}'
        )


def fails_on_data_loss(options: Mapping[str, Any]) -> bool:
    """Return whether the source fails where records are gone, which is its default."""
    return not any(key.lower() == _FAIL and str(value).lower() == "false" for key, value in options.items())


def isolation_level(options: Mapping[str, Any]) -> IsolationLevel:
    """Return which log end the source sees: the consumer's default unless an option changes it."""
    level = kafka_settings(options).get("isolation.level", "").lower()
    return "read_committed" if level == "read_committed" else "read_uncommitted"


def kafka_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the source's Kafka clients: its ``kafka.*`` options without that prefix."""
    return {
        key[len(_PREFIX) :]: str(value) for key, value in options.items() if key.lower().startswith(_PREFIX)
    }


def librdkafka_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the source's settings as librdkafka spells them, see
    :func:`~airflow_kafka_offsets.model.kafka_security.librdkafka_settings`.

    What only a consumer needs is left out by the client.
    """
    return librdkafka_settings(kafka_settings(options), _only_in_java)


def _only_in_java(key: str) -> UsageError:
    return UsageError(
        f"{_PREFIX}{key} has no counterpart in librdkafka, which is asked here since there is no Kafka "
        "client in this "
        "driver's JVM: give client_config=, librdkafka's own settings, such as {\"bootstrap.servers\": ..., "
        '"sasl.username": ..., "sasl.password": ..., "ssl.ca.location": ...}'
    )
