"""Reads, in a Spark job, the pipeline's names that its DAG has passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from airflow_kafka_offsets.annotation_types import SparkSession
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.names import SPARK_CONF_KEY
from airflow_kafka_offsets.model.text import describe_type


def pipeline_names(spark: SparkSession) -> Mapping[str, Any]:
    """
    Return the pipeline's names that the DAG has passed to this job, such as ``group_id``.

    They come from ``KafkaPipeline.spark_conf()`` or ``KafkaPipeline.spark_submit_parameters()``.

    :raises UsageError: if the session's configuration has no names, or an invalid value.
    """
    text = spark.conf.get(SPARK_CONF_KEY, None)
    if not text:
        raise UsageError(
            f"the session's configuration has no {SPARK_CONF_KEY}: expected the result of the pipeline's "
            "spark_conf() or spark_submit_parameters()"
        )
    names = load_json(text if text.startswith("{") else unquote(text), SPARK_CONF_KEY, "names")
    if not isinstance(names, Mapping):
        raise UsageError(f"{SPARK_CONF_KEY}: found {describe_type(names)}, expected a JSON object of names")
    return names
