"""Provider metadata for Airflow, without imports of Airflow, which reads it before it is configured."""

from __future__ import annotations

from typing import Any

from airflow_kafka_offsets import MODULES

_INTEGRATION = "Kafka consumer offsets"

_DOCUMENTATION = {
    "integration-name": _INTEGRATION,
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

_SETTINGS = {
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


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, see ``airflow/provider_info.schema.json``."""
    return {
        "package-name": "airflow-kafka-offsets",
        "name": "Kafka Offsets",
        "description": "Commit Spark checkpoint offsets to Kafka consumer groups, reset them, wait for lag.",
        "integrations": [_DOCUMENTATION],
        "config": {"kafka_offsets": _SETTINGS},
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
        "hooks": _modules("hooks"),
        "operators": _modules("operators"),
        "sensors": _modules("sensors"),
        # Users do not name the triggers of the sensors.
        "triggers": _modules("triggers", "triggers.wait"),
    }


def _modules(room: str, *more: str) -> list[dict[str, Any]]:
    """List the modules of a room that define public names."""
    public = {module for module in MODULES.values() if module.startswith(f"{room}.")}
    names = [f"airflow_kafka_offsets.{module}" for module in sorted(public.union(more))]
    return [{"integration-name": _INTEGRATION, "python-modules": names}]
