"""A certificate authority for the embedded Kafka, and the certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, write_private

LOCAL_HOSTS = (LOOPBACK, "localhost")
DAY = datetime.timedelta(days=1)
# Ten years: a Kafka in a kept directory must still start next year.
_VALID = 3650 * DAY


class Authority:
    """
    The certificate authority of a directory; it is created with a new key if needed.

    :param directory: for ``ca.pem``, ``ca.key`` and the certificates, which only the owner can read.
    """

    def __init__(self, directory: Path, name: str = "Kafka on this machine") -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self.file = directory / "ca.pem"
        key_file = directory / "ca.key"
        if not self.file.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            own = x509.BasicConstraints(ca=True, path_length=None)
            certificate = _unsigned(name, _common_name(name), key, -3 * DAY, _VALID).add_extension(
                own, critical=True
            )
            write_private(key_file, _key_pem(key))
            write_private(self.file, _pem(certificate.sign(key, hashes.SHA256())))
        self._pem = self.file.read_bytes()
        self._name = x509.load_pem_x509_certificate(self._pem).subject
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise SetupError(f"{key_file} is not a key of this program: name another directory")
        self._key = loaded

    def issue(
        self,
        name: str,
        *,
        hosts: Iterable[str] = LOCAL_HOSTS,
        start: datetime.timedelta = -DAY,
        end: datetime.timedelta = _VALID,
    ) -> Path:
        """
        Return a file with a key and its certificate; create it if needed.

        :param name: common name; for a client, the user.
        :param start: start of the validity, relative to now; ``end``: its end.
        """
        file = self.directory / f"{name}.pem"
        if file.exists():
            return file
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
        certificate = _unsigned(name, self._name, key, start, end).add_extension(alternatives, critical=False)
        write_private(file, _key_pem(key) + _pem(certificate.sign(self._key, hashes.SHA256())) + self._pem)
        return file


def _unsigned(
    name: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime.timedelta,
    end: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
