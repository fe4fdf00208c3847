"""Provider metadata for Airflow, as pure literals, because Airflow reads it before it is configured."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, see ``airflow/provider_info.schema.json``."""
    integration = "Kafka consumer offsets"
    return {
        "package-name": "airflow-kafka-offsets",
        "name": "Kafka Offsets",
        "description": "Commit Spark checkpoint offsets to Kafka consumer groups, reset them, wait for lag.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://kafka.apache.org/documentation/#basic_ops_consumer_group",
                "how-to-guide": [
                    "/docs/how-to/commit-after-spark.md",
                    "/docs/how-to/hours-from-a-stream.md",
                    "/docs/how-to/prove-completeness.md",
                    "/docs/operators/index.md",
                    "/docs/sensors.md",
                    "/docs/triggers.md",
                ],
                "logo": "/docs/images/logo.svg",
                "tags": ["apache"],
            }
        ],
        "config": {
            "kafka_offsets": {
                "description": "Settings of the Kafka offsets provider.",
                "options": {
                    "tab": {
                        "description": "Whether the API server shows the Offsets tab.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    }
                },
            }
        },
        "asset-uris": [
            {
                "schemes": ["kafka-group"],
                "handler": "airflow_kafka_offsets.assets.sanitize_uri",
                "factory": "airflow_kafka_offsets.assets.create_asset",
                # Without to_openlineage_converter: the datasets are topics, which the tasks report.
            }
        ],
        "plugins": [
            {"name": "kafka_offsets", "plugin-class": "airflow_kafka_offsets.ui.plugin.KafkaOffsetsPlugin"}
        ],
        "extra-links": [
            "airflow_kafka_offsets.operators.links.DagOffsetsLink",
            "airflow_kafka_offsets.operators.links.TaskOffsetsLink",
        ],
        "hooks": [
            {"integration-name": integration, "python-modules": ["airflow_kafka_offsets.hooks.offsets"]}
        ],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [
                    "airflow_kafka_offsets.operators.approve",
                    "airflow_kafka_offsets.operators.audit_window",
                    "airflow_kafka_offsets.operators.check_drift",
                    "airflow_kafka_offsets.operators.check_mirror",
                    "airflow_kafka_offsets.operators.commit",
                    "airflow_kafka_offsets.operators.commit_window",
                    "airflow_kafka_offsets.operators.completed_intervals",
                    "airflow_kafka_offsets.operators.fail_over",
                    "airflow_kafka_offsets.operators.plan_resets",
                    "airflow_kafka_offsets.operators.plan_window",
                    "airflow_kafka_offsets.operators.reset",
                    "airflow_kafka_offsets.operators.restore",
                    "airflow_kafka_offsets.operators.spark_submit",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": integration,
                "python-modules": [
                    "airflow_kafka_offsets.sensors.lag",
                    "airflow_kafka_offsets.sensors.reached",
                    "airflow_kafka_offsets.sensors.topic",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": integration,
                "python-modules": [
                    "airflow_kafka_offsets.triggers.event",
                    "airflow_kafka_offsets.triggers.wait",
                ],
            }
        ],
    }
