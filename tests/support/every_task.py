"""Each operator and sensor that names a pipeline, with what it needs at least."""

from typing import Any

from airflow.sdk import Asset

from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.check_mirror import CheckMirrorOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

ORDERS: dict[str, Any] = {"group_id": "orders", "checkpoint_location": "/cp/orders"}
MIRROR = {"mirror": {"kafka_config_id": "mirror", "prefix": "a."}}
RECEIPT = {"version": 1, "group_id": "orders", "before": {"t": {"0": 1}}, "after": {"t": {"0": 0}}}
GIVEN: dict[Any, dict[str, Any]] = {
    CommitOffsetsOperator: ORDERS,
    CommitOffsetWindowOperator: {"group_id": "orders", "window": "/window.json"},
    ResetOffsetsOperator: ORDERS | {"to_offset": "earliest"},
    RestoreOffsetsOperator: ORDERS | {"receipt": RECEIPT},
    PlanOffsetWindowOperator: {"group_id": "orders"},
    CompletedIntervalsOperator: ORDERS | {"outlets": [Asset("hours")]},
    CheckOffsetDriftOperator: ORDERS,
    CheckMirrorOperator: ORDERS | MIRROR,
    FailOverOperator: ORDERS | MIRROR,
    AuditWindowOperator: {"topics": "orders", "window": "/window.json", "conn_id": "db", "table": "orders"},
    ConsumerGroupLagSensor: ORDERS | {"max_lag": 0},
    OffsetsReachedSensor: ORDERS | {"target": "latest"},
    TopicReachedSensor: ORDERS | {"target": "2026-03-01T00:00:00Z"},
}
