"""
Airflow operators, sensors and a hook for the Kafka offsets of Spark pipelines.

The public names can be imported from here too. Each is loaded when it is first used, so that the command line
and a Spark driver do not load Airflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

MODULES = {
    "ApprovePlanOperator": "operators.approve",
    "AuditWindowOperator": "operators.audit_window",
    "CheckMirrorOperator": "operators.check_mirror",
    "CheckOffsetDriftOperator": "operators.check_drift",
    "CommitOffsetWindowOperator": "operators.commit_window",
    "CommitOffsetsOperator": "operators.commit",
    "CompletedIntervalsOperator": "operators.completed_intervals",
    "ConsumerGroupLagSensor": "sensors.lag",
    "FailOverOperator": "operators.fail_over",
    "KafkaOffsetsError": "errors",
    "KafkaOffsetsHook": "hooks.offsets",
    "KafkaPipeline": "pipeline",
    "KafkaSparkSubmitOperator": "operators.spark_submit",
    "LagEventTrigger": "triggers.event",
    "OffsetsReachedSensor": "sensors.reached",
    "PlanOffsetWindowOperator": "operators.plan_window",
    "PlanResetsOperator": "operators.plan_resets",
    "ResetOffsetsOperator": "operators.reset",
    "RestoreOffsetsOperator": "operators.restore",
    "SparkCheckpoint": "checkpoint.reader",
    "TopicReachedSensor": "sensors.topic",
}
"""Public name -> the module that defines it."""

__all__ = sorted(MODULES)  # Type checkers read __init__.pyi.


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})
