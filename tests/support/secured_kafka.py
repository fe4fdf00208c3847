"""A Kafka with TLS, users and ACLs, and certificates that are good or bad in one way each."""

from __future__ import annotations

import datetime
import ipaddress
import uuid
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakable_kafka import BreakableKafka, create_users
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from deadlines import until
from shared_kafka import shared

from airflow_kafka_offsets.local.broker_config import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

Grant = tuple[str, str, str]
"""Resource (topic, group, cluster), its name (``*`` for all) and the operation: ``("topic", "orders", "Read")``."""

ADMIN, PASSWORD = "admin", "correct-horse-battery-staple"
CLUSTER = "kafka-cluster"
TIMEOUT = 20.0

_LISTENERS = {
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SSL": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "WRONG_HOST": "SSL",
}
_YEAR = datetime.timedelta(days=365)
_DAY = datetime.timedelta(days=1)


class SecuredKafka:
    """
    A broker whose ACLs deny what is not granted. Its listener without TLS and users, ``plain``, may do all.

    :param plain: ``host:port`` of that one, for ``make_topic(on=...)`` and ``produce(..., on=...)``.
    :param listeners: name -> ``host:port``: SASL_SSL and SASL_PLAINTEXT for users (SCRAM-SHA-512), SSL, MTLS (wants a
        client certificate), EXPIRED and WRONG_HOST (TLS with such a certificate). Who comes without a user may do all.
    :param certificates: a directory with ``ca.pem``, ``other-ca.pem`` (of nobody here), ``client.pem`` and
        ``client.key`` for MTLS.
    """

    def __init__(self, plain: str, listeners: dict[str, str], certificates: str) -> None:
        self.plain = plain
        self.listeners = listeners
        self.certificates = Path(certificates)
        self.ca = self.certificates / "ca.pem"
        self.other_ca = self.certificates / "other-ca.pem"
        self._client = AdminClient({"bootstrap.servers": plain, "log_level": 0})

    @property
    def admin(self) -> dict[str, Any]:
        """Client configuration of the super user, over SASL_SSL."""
        return self.login(ADMIN)

    def login(
        self, name: str, password: str = PASSWORD, *, listener: str = "SASL_SSL", **more: str
    ) -> dict[str, Any]:
        """Return the client configuration of a user; in the names of ``more`` an underscore is a dot."""
        return self.tls(listener, **more) | {
            "security.protocol": _LISTENERS[listener],
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": password,
        }

    def tls(self, listener: str, **more: str) -> dict[str, Any]:
        """Return the client configuration for a listener with TLS, without a user."""
        return {
            "bootstrap.servers": self.listeners[listener],
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
        } | {name.replace("_", "."): value for name, value in more.items()}

    def user(self, name: str, *grants: Grant) -> dict[str, Any]:
        """Return the client configuration (SASL_SSL) of a new user who has just these rights; its name begins so."""
        name = f"{name}-{uuid.uuid4().hex[:8]}"
        create_users(self.plain, {name: PASSWORD})
        until(lambda: self._client.describe_user_scram_credentials([name])[name].exception(TIMEOUT) is None)
        self.grant(name, *grants)
        return self.login(name)

    def grant(self, user: str | dict[str, Any], *grants: Grant) -> None:
        """Add rights of a user, who may be given as a client configuration."""
        bindings = [self._binding(AclBinding, user, grant) for grant in grants]
        for answer in (self._client.create_acls(bindings) if bindings else {}).values():
            answer.result(TIMEOUT)
        for grant in grants:
            until(partial(self._has, user, grant))

    def revoke(self, user: str | dict[str, Any], *grants: Grant) -> None:
        """Take rights of a user away."""
        filters = [self._binding(AclBindingFilter, user, grant) for grant in grants]
        for answer in (self._client.delete_acls(filters) if filters else {}).values():
            answer.result(TIMEOUT)
        for grant in grants:
            until(partial(self._has_not, user, grant))

    def _has_not(self, user: str | dict[str, Any], grant: Grant) -> bool:
        return not self._has(user, grant)

    def _has(self, user: str | dict[str, Any], grant: Grant) -> bool:
        wanted = self._binding(AclBindingFilter, user, grant)
        return bool(self._client.describe_acls(wanted).result(TIMEOUT))

    def _binding(self, kind: Any, user: str | dict[str, Any], grant: Grant) -> Any:
        name = user if isinstance(user, str) else user["sasl.username"]
        resource, called, operation = grant
        if resource == "cluster":
            resource, called = "broker", CLUSTER
        return kind(
            ResourceType[resource.upper()],
            called,
            ResourcePatternType.LITERAL,
            f"User:{name}",
            "*",
            _operation(operation),
            AclPermissionType.ALLOW,
        )


@contextmanager
def secured_kafka(directory: Path) -> Iterator[SecuredKafka]:
    """Use the secured Kafka of this test run, see :func:`shared_kafka.shared`."""
    certificates = directory / "certificates"

    def make() -> BreakableKafka:
        make_certificates(certificates)
        return BreakableKafka(
            users={ADMIN: PASSWORD}, listeners=_LISTENERS, properties=_properties(certificates)
        )

    def describe(kafka: BreakableKafka) -> object:
        listeners = {name: kafka.servers(name) for name in _LISTENERS}
        return kafka.bootstrap_servers, listeners, certificates

    with shared(directory, "secured-kafka", make, describe) as said:
        yield SecuredKafka(*said)


def _properties(certificates: Path) -> dict[str, str]:
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN};User:CN=client",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.location": str(certificates / "expired.pem"),
        "listener.name.wrong_host.ssl.keystore.location": str(certificates / "wrong-host.pem"),
    }


def make_certificates(directory: Path) -> None:
    """Write an authority, and certificates that it signed."""
    directory.mkdir()
    authority, key = _authority("Test CA")
    other, _ = _authority("Another CA")
    (directory / "ca.pem").write_bytes(_pem(authority))
    (directory / "other-ca.pem").write_bytes(_pem(other))
    now = datetime.datetime.now(datetime.timezone.utc)
    here: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    elsewhere: list[x509.GeneralName] = [x509.DNSName("kafka.example.org")]
    certificates: dict[str, tuple[list[x509.GeneralName], datetime.datetime, datetime.datetime]] = {
        "server": (here, now - _DAY, now + _YEAR),
        "expired": (here, now - 2 * _DAY, now - _DAY),
        "wrong-host": (elsewhere, now - _DAY, now + _YEAR),
        "client": (here, now - _DAY, now + _YEAR),
    }
    for name, (hosts, start, end) in certificates.items():
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _certificate(name, start, end, own, authority.subject)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(key, hashes.SHA256())
        )
        (directory / f"{name}.pem").write_bytes(_pem(own) + _pem(certificate) + _pem(authority))
        (directory / f"{name}.key").write_bytes(_pem(own))


def _authority(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        _certificate(name, now - 3 * _DAY, now + _YEAR, key, _name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _certificate(
    name: str,
    start: datetime.datetime,
    end: datetime.datetime,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(what: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(what, x509.Certificate):
        return what.public_bytes(serialization.Encoding.PEM)
    return what.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _operation(name: str) -> AclOperation:
    """Kafka's own spelling of an operation, such as DescribeConfigs."""
    return {operation.name.replace("_", "").lower(): operation for operation in AclOperation}[name.lower()]
