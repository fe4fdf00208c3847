"""
Deletes single offsets of a group.

confluent-kafka has no call for this, so kafka-python makes the request. The extra ``delete-offsets`` installs
it. kafka-python gets the settings of the connection under its own names. A security setting that it does not
have is refused, so that it never connects in a less secure way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import UNANSWERED, Failure
from airflow_kafka_offsets.model.kafka_security import PROBE
from airflow_kafka_offsets.model.text import escape_controls

_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.password": "sasl_plain_password",
    "sasl.username": "sasl_plain_username",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""librdkafka's settings -> names of the same settings in kafka-python."""
_UPPER = ("sasl_mechanism", "security_protocol")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
_SECURITY_PREFIXES = ("sasl.", "ssl.", "enable.", "oauth_cb")
"""Of the settings for authentication and trust."""
_TOOL = "delete the offsets with kafka-consumer-groups --delete-offsets"


def check_deletion(config: Mapping[str, Any]) -> None:
    """Check that a connection with librdkafka's settings can delete single offsets."""
    translate_settings(config)
    if find_spec("kafka") is None or find_spec("kafka.admin") is None:
        raise SetupError(
            "kafka-python, which deletes single offsets, is missing: pip install "
            f"'airflow-kafka-offsets[delete-offsets]', or {_TOOL}"
        )


def delete_offsets(
    config: Mapping[str, Any], group_id: str, partitions: Collection[tuple[str, int]], seconds: float
) -> tuple[list[Failure | None] | None, Failure | None]:
    """
    Delete a group's commits in partitions.

    Only the admin process calls this: kafka-python leaves a thread and sockets behind when it cannot connect,
    and its debug log contains the password.

    :param config: librdkafka's settings.
    :return: for each partition ``None`` if its commit is gone, else the failure; or the failure of the
        request.
    """
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError
    from kafka.structs import TopicPartition

    limit = max(1, int(seconds * 1_000))
    wanted = [TopicPartition(*each) for each in partitions]
    try:
        with KafkaAdminClient(
            **translate_settings(config), bootstrap_timeout_ms=limit, request_timeout_ms=limit
        ) as admin:
            found = admin.delete_group_offsets(group_id, wanted)
    except (KafkaError, OSError) as error:
        return None, Failure(_code(error), escape_controls(str(error)))
    return [_failure(found.get(each)) for each in wanted], None


def deletion_refusal(failure: Failure | None, call: Call) -> str | None:
    """Return why a partition's commit was not deleted; ``None`` if it was deleted."""
    if failure is None:
        return None
    if failure.code == "GROUP_SUBSCRIBED_TO_TOPIC":
        return f"members of the group read the topic ({failure.code}): stop them first"
    return str(call.explain(failure, "Read" if failure.code.startswith("TOPIC_") else "Delete"))


def translate_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate librdkafka's settings into kafka-python's; a UsageError names one that it does not have."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in _NAMES:
            settings[_NAMES[key]] = value
        elif key == _HOST_CHECK:
            settings["ssl_check_hostname"] = value != "none"
        elif key.startswith(_SECURITY_PREFIXES):
            raise UsageError(
                f"kafka-python, which deletes single offsets, does not have the setting {key} of this "
                f"connection: {_TOOL}"
            )
    settings = {key: value.upper() if key in _UPPER else value for key, value in settings.items()}
    if settings.get("ssl_cafile") == PROBE:
        del settings["ssl_cafile"]
    mechanism = settings.get("sasl_mechanism", "PLAIN")
    if mechanism not in _MECHANISMS:
        raise UsageError(
            f"kafka-python, which deletes single offsets, cannot be used here with sasl.mechanisms "
            f"{mechanism}; expected one of {', '.join(_MECHANISMS)}: {_TOOL}"
        )
    return settings


def _code(error: BaseException) -> str:
    """Return Kafka's name of a broker's error, or librdkafka's name of a client's error."""
    name = getattr(error, "message", None)
    if getattr(error, "errno", None) is not None and isinstance(name, str) and name.isupper():
        return name
    return "_TRANSPORT" if isinstance(error, OSError) or getattr(error, "retriable", False) else "_FAIL"


def _failure(error: Any) -> Failure | None:
    if error is None:
        return UNANSWERED
    return None if error.errno == 0 else Failure(error.message, error.description)
