"""Checks that a broker answers, and for how long it keeps a group's offsets."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.config import RETENTION
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.local.environment import Check

DAY = 24 * 60
"""Minutes."""


def check_broker(client_config: Mapping[str, object], timeout: float = 15.0) -> list[Check]:
    """Ask a broker for its ``offsets.retention.minutes``, within seconds for all of it."""
    address = client_config.get("bootstrap.servers", "(bootstrap.servers is not set)")
    try:
        call = Call("asking the broker", str(address), timeout)
        number, retention, error = Admin(client_config).brokers(call)
    except (BrokerError, SetupError) as failed:
        return [Check("broker", "fail", str(failed))]
    reached = Check("broker", "ok", f"{address} answers ({number} broker{'s' if number != 1 else ''})")
    return [reached, check_retention(retention, error)]


def check_retention(minutes: str | None, error: str | None = None) -> Check:
    """Judge how long Kafka keeps the offsets of a group without members; ``error``: why it is unknown."""
    if minutes is None or not minutes.isdecimal():
        rights = "let this user describe its configuration (DescribeConfigs on the cluster)"
        return Check(
            RETENTION, "warn", f"not known ({error or minutes})", f"ask who runs the broker, or {rights}"
        )
    kept = int(minutes)
    found = f"{kept}: a group that nobody joins forgets its offsets {_duration(kept)} after the last commit"
    often = "commit at least that often"
    if kept < DAY:
        raised = "or have it raised (Kafka's default is 10080, 7 days)"
        return Check(RETENTION, "warn", found, f"{often}, {raised}")
    return Check(RETENTION, "ok", f"{found}: {often}")


def _duration(minutes: int) -> str:
    for unit, size in (("day", DAY), ("hour", 60)):
        if minutes >= size:
            number = f"{minutes / size:.3g}"
            return f"{number} {unit}{'' if number == '1' else 's'}"
    return f"{minutes} minute{'' if minutes == 1 else 's'}"
