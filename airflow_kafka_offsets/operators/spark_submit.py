"""Submits a Spark job that connects to Kafka with the settings of an Airflow connection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.task.outcome import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaSparkSubmitOperator(SparkSubmitOperator):
    """
    Submit a Spark job that gets the address and the security settings of a Kafka connection.

    The job reads these settings, as options of Spark's Kafka source, with
    :func:`~airflow_kafka_offsets.spark.kafka_options.spark_kafka_options`. They are in a file that only the
    user of this task can read, and that is removed when the job has ended. The job's arguments, its
    configuration and the rendered fields do not contain them. So the driver must run on the task's machine
    (client mode).

    All other parameters are those of ``SparkSubmitOperator``.

    :param kafka_config_id: Airflow connection of the Kafka cluster. (templated)
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "kafka_config_id")

    def __init__(self, *, kafka_config_id: str = "kafka_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_config_id = kafka_config_id

    def execute(self, context: Context) -> None:
        """Submit the job and wait until it ends; the file exists during this time."""
        from airflow_kafka_offsets.task.kafka_options_file import kafka_options_file

        with fail_without_retry():
            self._refuse_cluster_mode()
            with kafka_options_file(self.kafka_config_id):
                super().execute(context)

    def _refuse_cluster_mode(self) -> None:
        mode = self._deploy_mode
        if not mode:
            with suppress(AirflowNotFoundException):  # the operator ignores this error too
                mode = BaseHook.get_connection(self._conn_id).extra_dejson.get("deploy-mode")
        # spark-submit's own option, which the two above become, wins over its configuration.
        mode = mode or (self.conf or {}).get("spark.submit.deployMode")
        if mode == "cluster":
            raise UsageError(
                f"task {self.task_id}: found deploy mode cluster, where the driver is on another machine and "
                "cannot read this task's file; expected client: set deploy_mode='client', or use "
                "SparkSubmitOperator and mount the credentials where the driver runs"
            )
