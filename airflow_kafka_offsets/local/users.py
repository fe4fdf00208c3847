"""How do users with passwords come into the embedded Kafka?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_ITERATIONS = 4096
"""The least that Kafka accepts: these passwords protect nothing beyond this machine."""

_TIMEOUT = 30.0


def create_users(bootstrap_servers: str, users: Mapping[str, str]) -> None:
    """
    Give users a password for SCRAM-SHA-512, replacing one that they have.

    :param bootstrap_servers: ``host:port`` of a listener whose clients may do this.
    :param users: name -> password.
    :raises confluent_kafka.KafkaException: if the broker refuses or does not answer.
    """
    method = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    answers = client.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(name, method, password.encode()) for name, password in users.items()],
        request_timeout=_TIMEOUT,
    )
    for answer in answers.values():
        answer.result(_TIMEOUT)
