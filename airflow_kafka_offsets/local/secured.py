"""The embedded Kafka with TLS, users and ACLs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from airflow_kafka_offsets.kafka.config import load_properties
from airflow_kafka_offsets.local.broker_config import CONTROLLER, properties_text, write_private
from airflow_kafka_offsets.local.certificates import Authority
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"
SASL_SSL, MTLS = "SASL_SSL", "MTLS"
TIMEOUT = 30.0
_BROKER = "broker"
_ITERATIONS = 4096
"""Kafka's minimum. The passwords are long and random."""

_LISTENERS = {SASL_SSL: "SASL_SSL", MTLS: "SSL", CONTROLLER: "SSL"}
_SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Grant(NamedTuple):
    """A right of a user, such as ``Grant("topic", "orders", "Read")``."""

    resource: str
    """``topic``, ``group``, ``cluster`` or ``transactional_id``."""
    name: str
    """The resource's name; ``*`` for all. Ignored for the cluster."""
    operation: str
    """The operation in Kafka's spelling, such as DescribeConfigs."""

    def binding(self, user: str, kind: type = AclBinding) -> Any:
        """Return the grant as an ACL of Kafka's client, or as a filter that finds it."""
        operations = {operation.name.replace("_", "").lower(): operation for operation in AclOperation}
        return kind(
            # Kafka's client calls the cluster's resource type BROKER.
            ResourceType["BROKER" if self.resource == "cluster" else self.resource.upper()],
            "kafka-cluster" if self.resource == "cluster" else self.name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operations[self.operation.lower()],
            AclPermissionType.ALLOW,
        )


USERS: Mapping[str, tuple[Grant, ...]] = {
    ADMIN: (),
    "airflow": (
        Grant("group", "*", "Read"),
        Grant("group", "*", "Delete"),
        Grant("topic", "*", "Read"),
        Grant("topic", "*", "DescribeConfigs"),
        Grant("cluster", "*", "DescribeConfigs"),
    ),
    "monitor": (Grant("group", "*", "Describe"), Grant("topic", "*", "Describe")),
    "spark": (Grant("topic", "*", "Read"), Grant("group", "*", "Read")),
    "producer": (Grant("topic", "*", "Write"), Grant("topic", "*", "Create")),
}
"""The users and their rights; the admin has all rights."""


class SecuredKafka(EmbeddedKafka):
    """
    An embedded Kafka that denies everything without a grant, and encrypts all connections.

    Its listeners are ``SASL_SSL`` for users with a password, and ``MTLS`` for users with a certificate; the
    brokers use ``MTLS``. The directory contains, readable by its owner only:

    - ``certificates``: ``ca.pem``, and ``USER.pem`` with the user's key and certificate
    - ``clients``: ``USER.properties`` for librdkafka and ``--command-config``, ``USER.java.properties`` for
      Kafka's own tools
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(directory, listeners={**_LISTENERS, **(listeners or {})}, **parameters)
        self.certificates = self.directory / "certificates"
        self.ca = self.certificates / "ca.pem"
        self.clients = clients_directory(self.directory)
        self._properties = {**self._security(), **(properties or {})}

    def start(self) -> Self:
        """Start the brokers unless all run; create certificates, users and grants; write clients' files."""
        if not self.running:
            authority = Authority(self.certificates)
            for name in (_BROKER, *USERS):
                authority.issue(name)
            super().start()
            set_passwords(self.client_config(), self._write_clients())
            wanted = [grant.binding(user) for user, grants in USERS.items() for grant in grants]
            _administer(
                self.client_config(), lambda admin: admin.create_acls(wanted, request_timeout=TIMEOUT)
            )
        return self

    def client_config(self) -> dict[str, Any]:
        """Return the admin's configuration, with a certificate: passwords work only after they are set."""
        file = str(self.certificates / f"{ADMIN}.pem")
        return {
            "bootstrap.servers": self.servers(MTLS),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": file,
            "ssl.key.location": file,
        }

    def _security(self) -> dict[str, str]:
        return {
            "inter.broker.listener.name": MTLS,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{_BROKER};User:{ADMIN}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates / f"{_BROKER}.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            # The certificate's common name is the user, as with a password.
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            f"listener.name.{MTLS.lower()}.ssl.client.auth": "required",
            f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.{SASL_SSL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": (
                f"{_SCRAM_LOGIN} required;"
            ),
        }

    def _write_clients(self) -> dict[str, str]:
        """Write the files of all users, with the passwords of the last start; return the passwords."""
        self.clients.mkdir(mode=0o700, exist_ok=True)
        passwords = {}
        for user in USERS:
            file = self.clients / f"{user}.properties"
            known = load_properties(file) if file.exists() else {"sasl.password": secrets.token_urlsafe(24)}
            passwords[user] = password = known["sasl.password"]
            both = {
                "bootstrap.servers": self.servers(SASL_SSL),
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
            }
            librdkafka = {"sasl.username": user, "sasl.password": password, "ssl.ca.location": str(self.ca)}
            java = {
                "sasl.jaas.config": f'{_SCRAM_LOGIN} required username="{user}" password="{password}";',
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.ca),
            }
            for path, own in ((file, librdkafka), (self.clients / f"{user}.java.properties", java)):
                write_private(path, properties_text({**both, **own}).encode())
        return passwords


def set_passwords(config: Mapping[str, Any], passwords: Mapping[str, str]) -> None:
    """Set the passwords of users with an administrator's configuration; replace existing ones."""
    method = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    wanted = [UserScramCredentialUpsertion(user, method, word.encode()) for user, word in passwords.items()]
    _administer(config, lambda admin: admin.alter_user_scram_credentials(wanted, request_timeout=TIMEOUT))


def _administer(
    config: Mapping[str, Any], request: Callable[[AdminClient], Mapping[Any, Future[None]]]
) -> None:
    # Without a reference to it, the client would end its calls before the responses arrive.
    admin = AdminClient({**config, "log_level": 0})
    for answer in request(admin).values():
        answer.result(TIMEOUT)


def clients_directory(home: Path) -> Path:
    """Return the directory of users' files in a secured Kafka's directory; other Kafkas do not have it."""
    return home / "clients"
