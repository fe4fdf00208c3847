"""What does Airflow read about this provider? Pure literals: it is asked before Airflow is configured."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, see ``airflow/provider_info.schema.json``."""
    integration = "Kafka consumer offsets"
    return {
        "package-name": "airflow-kafka-offsets",
        "name": "Kafka Offsets",
        "description": "Commit Spark checkpoint offsets to Kafka consumer groups, reset them, and wait for lag.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://kafka.apache.org/documentation/#basic_ops_consumer_group",
                "tags": ["apache"],
            }
        ],
        "hooks": [
            {"integration-name": integration, "python-modules": ["airflow_kafka_offsets.hooks.offsets"]}
        ],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [
                    "airflow_kafka_offsets.operators.commit",
                    "airflow_kafka_offsets.operators.commit_window",
                    "airflow_kafka_offsets.operators.drift",
                    "airflow_kafka_offsets.operators.reset",
                    "airflow_kafka_offsets.operators.restore",
                    "airflow_kafka_offsets.operators.window",
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
