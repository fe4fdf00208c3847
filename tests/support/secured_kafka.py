"""The secured Kafka of the tests, with listeners and certificates that are wrong in one way each."""

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from breakable_kafka import create_users
from confluent_kafka.admin import AclBindingFilter, AdminClient
from deadlines import until
from shared_kafka import shared

from airflow_kafka_offsets.local.certificates import DAY, Authority
from airflow_kafka_offsets.local.secured import ADMIN, MTLS, SASL_SSL, Grant, SecuredKafka, set_passwords

PASSWORD = "correct-horse-battery-staple"
TIMEOUT = 20.0

_MORE = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "OAUTH": "SASL_SSL",
    "SSL": "SSL",
    "EXPIRED": "SSL",
    "WRONG_HOST": "SSL",
}
_LISTENERS = {**_MORE, SASL_SSL: "SASL_SSL", MTLS: "SSL"}


class OpenedKafka(SecuredKafka):
    """A secured Kafka with the listeners of :class:`TestedKafka`, and its other certificates."""

    def __init__(self, directory: Path, brokers: int) -> None:
        login = "org.apache.kafka.common.security"
        certificates = directory / "certificates"
        properties = {
            "super.users": "User:broker;User:ANONYMOUS;User:admin;User:client",
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
                f"{login}.scram.ScramLoginModule required;"
            ),
            # Without a handler of its own the broker believes every token.
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": (
                f"{login}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "listener.name.expired.ssl.keystore.location": str(certificates / "expired.pem"),
            "listener.name.wrong_host.ssl.keystore.location": str(certificates / "wrong-host.pem"),
        }
        super().__init__(directory, brokers=brokers, listeners=_MORE, properties=properties, heap="256m")

    def stop(self) -> None:
        # Nobody needs its data again, and an orderly end of three brokers takes long.
        for broker in self.brokers.values():
            broker.signal(signal.SIGKILL)
        super().stop()

    def start(self) -> Self:
        authority = Authority(self.certificates, "Test CA")
        authority.issue("client")
        authority.issue("expired", start=-2 * DAY, end=-DAY)
        authority.issue("wrong-host", hosts=["kafka.example.org"])
        Authority(self.certificates / "other", "Another CA").issue("client")
        super().start()
        set_passwords(self.client_config(), {ADMIN: PASSWORD})
        return self


class TestedKafka:
    """
    A Kafka whose ACLs deny what is not granted. Its listener without TLS and users, ``plain``, may do all.

    :param plain: its brokers there, for ``make_topic(on=...)`` and ``produce(..., on=...)``.
    :param listeners: name -> its brokers there: SASL_SSL and SASL_PLAINTEXT for users (SCRAM-SHA-512), OAUTH
        (believes every token), SSL, MTLS (wants a client certificate), EXPIRED and WRONG_HOST (TLS with such
        a certificate). Who comes without a user may do all.
    :param certificates: a directory with ``ca.pem``, ``other/ca.pem`` (of nobody here), and key and
        certificate of MTLS's user ``client`` in ``client.pem``.
    """

    __test__ = False

    def __init__(self, plain: str, listeners: dict[str, str], certificates: str) -> None:
        self.plain = plain
        self.listeners = listeners
        self.certificates = Path(certificates)
        self.ca = self.certificates / "ca.pem"
        self.other_ca = self.certificates / "other" / "ca.pem"
        self._client = AdminClient({"bootstrap.servers": plain, "log_level": 0})

    @property
    def admin(self) -> dict[str, Any]:
        """Client configuration of the super user, over SASL_SSL."""
        return self.login(ADMIN)

    def login(
        self, name: str, password: str = PASSWORD, *, listener: str = SASL_SSL, **more: str
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

    def spark_options(self, name: str, password: str = PASSWORD) -> dict[str, str]:
        """Return a user's options of Spark's Kafka source, on SASL_SSL."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "kafka.bootstrap.servers": self.listeners[SASL_SSL],
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{module} required username="{name}" password="{password}";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.ca),
        }

    def by_certificate(self, name: str = "client") -> dict[str, Any]:
        """Return the client configuration of a user with a certificate, which is made if it is not there."""
        file = str(Authority(self.certificates).issue(name))
        return self.tls(MTLS, ssl_certificate_location=file, ssl_key_location=file)

    def by_token(self, name: str) -> dict[str, Any]:
        """Return the client configuration of a user with a token that librdkafka makes, and nobody signs."""
        return self.tls("OAUTH") | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={name}",
        }

    def user(self, name: str, *grants: Grant | tuple[str, str, str]) -> dict[str, Any]:
        """
        Return the client configuration (SASL_SSL) of a new user who has just these rights; its name begins
        so.
        """
        name = f"{name}-{uuid.uuid4().hex[:8]}"
        create_users(self.plain, {name: PASSWORD})
        until(lambda: self._client.describe_user_scram_credentials([name])[name].exception(TIMEOUT) is None)
        self.grant(name, *grants)
        return self.login(name)

    def grant(self, user: str | dict[str, Any], *grants: Grant | tuple[str, str, str]) -> None:
        """Add rights of a user, who may be given as a client configuration."""
        bindings = [Grant(*grant).binding(_name(user)) for grant in grants]
        for answer in (self._client.create_acls(bindings) if bindings else {}).values():
            answer.result(TIMEOUT)
        for grant in grants:
            until(partial(self._has, user, grant))

    def revoke(self, user: str | dict[str, Any], *grants: Grant | tuple[str, str, str]) -> None:
        """Take rights of a user away."""
        filters = [Grant(*grant).binding(_name(user), AclBindingFilter) for grant in grants]
        for answer in (self._client.delete_acls(filters) if filters else {}).values():
            answer.result(TIMEOUT)
        for grant in grants:
            until(partial(self._has_not, user, grant))

    @contextmanager
    def without(self, user: dict[str, Any], right: Grant, left: Grant | None) -> Iterator[None]:
        """Take a right of a user away for a block, and leave a lesser one in its place, if one is named."""
        lesser = [left] if left else []
        self.grant(user, *lesser)
        self.revoke(user, right)
        yield
        self.grant(user, right)
        self.revoke(user, *lesser)

    def _has_not(self, user: str | dict[str, Any], grant: Grant | tuple[str, str, str]) -> bool:
        return not self._has(user, grant)

    def _has(self, user: str | dict[str, Any], grant: Grant | tuple[str, str, str]) -> bool:
        wanted = Grant(*grant).binding(_name(user), AclBindingFilter)
        return bool(self._client.describe_acls(wanted).result(TIMEOUT))


@contextmanager
def secured_kafka(directory: Path, brokers: int = 1) -> Iterator[TestedKafka]:
    """Use the secured Kafka of this test run that has so many brokers, see :func:`shared_kafka.shared`."""
    name = f"secured-kafka-{brokers}"

    def describe(kafka: OpenedKafka) -> object:
        listeners = {name: kafka.servers(name) for name in _LISTENERS}
        return listeners["PLAINTEXT"], listeners, kafka.certificates

    with shared(directory, name, lambda: OpenedKafka(directory / name, brokers), describe) as said:
        yield TestedKafka(*said)


def _name(user: str | dict[str, Any]) -> str:
    return user if isinstance(user, str) else user["sasl.username"]
