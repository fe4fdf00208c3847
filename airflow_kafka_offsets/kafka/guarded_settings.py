"""
Checks connection settings that run code or send a file away: the environment must allow them.

A user who may edit a connection must not be able to run code in the processes that use it: workers,
triggerer, API server. The official provider guards its callbacks in the same way (``[apache_kafka]
callback_allowlist``).
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from airflow_kafka_offsets.errors import UsageError

ALLOWED_SETTINGS = "AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS"
"""Environment variable: a JSON object of settings and the values that connections may have."""

_GUARDED = {
    "ssl.engine.location": "loads a library into this process",
    "ssl.engine.id": "loads a library into this process",
    "ssl.providers": "loads libraries into this process",
    "sasl.kerberos.kinit.cmd": "runs a command in a shell",
    "sasl.oauthbearer.assertion.file": "sends a file to the token endpoint",
    "sasl.oauthbearer.assertion.jwt.template.file": "sends a file to the token endpoint",
}
_IN_SHELL_COMMAND = frozenset(("sasl.kerberos.principal", "sasl.kerberos.keytab"))
"""librdkafka inserts these values into its ``kinit`` command without quoting."""
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./@:+][A-Za-z0-9_./@:+-]*")


def check_guarded(key: str, value: object) -> None:
    """Refuse a guarded setting, whose value is never named, that the environment does not allow."""
    if key in _IN_SHELL_COMMAND and not _PLAIN_WORD.fullmatch(str(value)):
        raise UsageError(
            f"{key} of the Kafka configuration has characters with a meaning in a shell, and the client "
            "runs kinit with it; expected letters, digits and _ . / @ : + -: correct the Kafka connection"
        )
    if key in _GUARDED and value not in _allowed(key):
        raise UsageError(
            f"{key} of the Kafka configuration {_GUARDED[key]}, and the environment does not allow this "
            f"value: remove it from the Kafka connection, or add it to {ALLOWED_SETTINGS} in the environment "
            f'of each process that uses the connection, as JSON: {{"{key}": "the value"}}'
        )


def _allowed(key: str) -> list[str]:
    text = os.environ.get(ALLOWED_SETTINGS, "").strip() or "{}"
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    values: Any = settings.get(key, []) if isinstance(settings, dict) else [None]
    values = [values] if isinstance(values, str) else values
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        return values
    raise UsageError(
        f"{ALLOWED_SETTINGS} in the environment cannot be read; expected a JSON object of settings and their "
        f'values, such as {{"{key}": "the value"}}: correct it where this process is started'
    )
