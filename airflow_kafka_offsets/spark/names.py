"""Reads in a Spark job the names that its DAG has given to the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.names import SPARK_CONF_KEY
from airflow_kafka_offsets.model.text import describe_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline_names(spark: SparkSession) -> Mapping[str, Any]:
    """
    Return the names of the pipeline that the DAG gave to this job: ``group_id``, ``checkpoint_location``, ...

    It reads what ``KafkaPipeline.spark_conf()`` and ``KafkaPipeline.spark_submit_parameters()`` return.

    :raises UsageError: if the session's configuration has no names, or something else in their place.
    """
    text = spark.conf.get(SPARK_CONF_KEY, None)
    if not text:
        raise UsageError(
            f"the session's configuration has no {SPARK_CONF_KEY}: expected what the pipeline's spark_conf() "
            "or spark_submit_parameters() returns"
        )
    names = load_json(text if text.startswith("{") else unquote(text), SPARK_CONF_KEY, "names")
    if not isinstance(names, Mapping):
        raise UsageError(f"{SPARK_CONF_KEY}: found {describe_type(names)}, expected a JSON object of names")
    return names
