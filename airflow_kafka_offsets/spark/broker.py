"""
Opens a Kafka client for a Spark job.

It uses the Kafka client in the driver's JVM if there is one: Spark's connector includes it, and it accepts
the source's options unchanged. Otherwise (Spark Connect) it uses confluent-kafka, with the options translated
to librdkafka's names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.kafka.reader import PositionsReader
from airflow_kafka_offsets.spark.source_options import kafka_settings, librdkafka_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seconds of a call; the default of KafkaOffsetsHook too.
TIMEOUT = 30.0


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
