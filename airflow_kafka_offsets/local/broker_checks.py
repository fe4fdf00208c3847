"""Does a broker answer, and for how long does it keep a group's offsets?"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.local.checks import Check

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY = 24 * 60
"""Minutes."""


def check_broker(client_config: Mapping[str, object], timeout: float = 15.0) -> list[Check]:
    """
    Ask a broker for its name and its ``offsets.retention.minutes``.

    :param client_config: librdkafka's configuration; callbacks in it are left out.
    :param timeout: seconds for all of it.
    """
    plain = {
        key: value for key, value in client_config.items() if isinstance(value, str | int | float | bool)
    }
    address = plain.get("bootstrap.servers", "(bootstrap.servers is not set)")
    # In a child: librdkafka may abort a process whose admin call meets a broker that went silent. Through a
    # pipe: there may be a password in the configuration.
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "airflow_kafka_offsets.local.broker_probe", str(timeout)],
            input=json.dumps(plain),
            capture_output=True,
            text=True,
            timeout=timeout + 5,
            check=False,
        )
        probed: dict[str, Any] = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        probed = {"error": f"no answer within {timeout:g} s"}
    except ValueError:
        probed = {"error": f"the client ended with status {answer.returncode} before it had an answer"}
    if "brokers" not in probed:
        remedy = (
            "check bootstrap.servers and that the broker runs, then security.protocol, user and certificates"
        )
        return [Check("broker", "fail", f"{address}: {probed['error']}", remedy)]
    number = probed["brokers"]
    reached = Check("broker", "ok", f"{address} answers ({number} broker{'s' if number != 1 else ''})")
    return [reached, check_retention(probed.get("retention"), probed.get("error"))]


def check_retention(minutes: str | None, error: str | None = None) -> Check:
    """
    Judge how long Kafka keeps the offsets of a group without members, as a Spark query's group always is.

    :param minutes: ``offsets.retention.minutes`` as the broker tells it.
    :param error: why it does not tell.
    """
    name = "offsets.retention.minutes"
    if minutes is None or not minutes.isdecimal():
        return Check(
            name,
            "warn",
            f"not known ({error or minutes})",
            "ask who runs the broker, or let this user describe its configuration (DescribeConfigs on the cluster)",
        )
    kept = int(minutes)
    found = f"{kept}: a group that nobody joins forgets its offsets {_duration(kept)} after the last commit"
    often = "commit at least that often"
    if kept < DAY:
        return Check(name, "warn", found, f"{often}, or have it raised (Kafka's default is 10080, 7 days)")
    return Check(name, "ok", f"{found}: {often}")


def _duration(minutes: int) -> str:
    for unit, size in (("day", DAY), ("hour", 60)):
        if minutes >= size:
            number = f"{minutes / size:.3g}"
            return f"{number} {unit}{'' if number == '1' else 's'}"
    return f"{minutes} minute{'' if minutes == 1 else 's'}"
