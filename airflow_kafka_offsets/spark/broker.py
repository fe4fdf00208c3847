"""
Checks the options of Spark's Kafka source, and opens a Kafka client for a Spark job with them.

The job uses the Kafka client in the driver's JVM if there is one: Spark's connector includes it, and it
accepts the source's options unchanged. Otherwise (Spark Connect) it uses confluent-kafka, with the options
translated to librdkafka's names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from airflow_kafka_offsets.annotation_types import SparkSession
from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.kafka_security import librdkafka_settings
from airflow_kafka_offsets.model.offsets import IsolationLevel

# Seconds of a call; the default of KafkaOffsetsHook too.
TIMEOUT = 30.0

SERVERS_OPTION = "kafka.bootstrap.servers"

_PREFIX = "kafka."
_SELECTING = frozenset({"assign", "subscribe", "subscribepattern"})
_BOUNDING = ("starting", "ending")
_FAIL = "failondataloss"


def refuse_other_ranges(options: Mapping[str, Any]) -> None:
    """Refuse options that select records, because the offsets select them; Spark ignores case in options."""
    clash = sorted(key for key in options if key.lower() in _SELECTING or key.lower().startswith(_BOUNDING))
    if clash:
        raise UsageError(
            f"options has {', '.join(clash)}, but the offsets alone select the records: leave it out; "
            f"expected {SERVERS_OPTION}, the other kafka.* settings, and options such as minPartitions and "
            "includeHeaders"
        )
    if not fails_on_data_loss(options):
        raise UsageError(
            "options has failOnDataLoss=false: Spark would then skip records that retention has deleted "
            "without an error, and the records would not be those of the offsets; leave it out"
        )
    if not any(key.lower() == SERVERS_OPTION and str(value).strip() for key, value in options.items()):
        raise UsageError(
            f"options has no {SERVERS_OPTION}: expected the options of Spark's Kafka source, such as "
            f'{{"{SERVERS_OPTION}": "host:9092"}}'
        )


def fails_on_data_loss(options: Mapping[str, Any]) -> bool:
    """Return whether the source fails if records are missing, which is its default."""
    return not any(key.lower() == _FAIL and str(value).lower() == "false" for key, value in options.items())


def isolation_level(options: Mapping[str, Any]) -> IsolationLevel:
    """Return the isolation level of the source: the consumer's default unless an option changes it."""
    level = kafka_settings(options).get("isolation.level", "").lower()
    return "read_committed" if level == "read_committed" else "read_uncommitted"


def kafka_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the source's Kafka clients: its ``kafka.*`` options without that prefix."""
    # Spark ignores the case of options.
    given = {key.lower(): str(value) for key, value in options.items()}
    return {key[len(_PREFIX) :]: value for key, value in given.items() if key.startswith(_PREFIX)}


def librdkafka_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source's settings under librdkafka's names; the client leaves out those of consumers."""
    return librdkafka_settings(kafka_settings(options), _only_in_java)


def _only_in_java(key: str) -> UsageError:
    return UsageError(
        f"{_PREFIX}{key} has no counterpart in librdkafka, which is used because this driver's JVM has "
        "no Kafka client: give client_config=, librdkafka's own settings, such as "
        '{"bootstrap.servers": ..., '
        '"sasl.username": ..., "sasl.password": ..., "ssl.ca.location": ...}'
    )


@contextmanager
def open_broker_client(
    options: Mapping[str, Any],
    *,
    spark: SparkSession | None = None,
    client_config: Mapping[str, Any] | None = None,
) -> Iterator[PositionsReader]:
    """
    Open a client, and close it at the end of the block.

    :param options: the Kafka source's options.
    :param spark: the session, to use the client in its JVM.
    :param client_config: librdkafka's settings; if given, confluent-kafka is always used.
    """
    if client_config is None and spark is not None:
        from airflow_kafka_offsets.spark.jvm_client import JvmOffsetsClient

        if (jvm := _jvm_with_kafka(spark)) is not None:
            with closing(JvmOffsetsClient(jvm, kafka_settings(options), TIMEOUT)) as in_jvm:
                yield in_jvm
            return
    if importlib.util.find_spec("confluent_kafka") is None:
        raise SetupError(
            "no Kafka client is available: this session has no JVM with Spark's Kafka connector in it "
            "(Spark Connect has none here), and confluent-kafka is not installed: pip install confluent-kafka"
        )
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    config = librdkafka_config(options) if client_config is None else client_config
    with OffsetsClient(config, timeout=TIMEOUT) as client:
        yield client


def _jvm_with_kafka(spark: SparkSession) -> Any | None:
    """Return the session's JVM if it has Kafka's client; a Spark Connect session has no JVM here."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    from py4j.java_gateway import JavaClass

    return jvm if isinstance(jvm.org.apache.kafka.clients.admin.AdminClient, JavaClass) else None
