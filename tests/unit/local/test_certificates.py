import datetime
import stat

import pytest
from cryptography import x509

from airflow_kafka_offsets.local.certificates import DAY, Authority


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "certificates"


def certificate(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_keys_and_certificates_are_readable_by_their_owner_only(directory):
    Authority(directory).issue("alice")
    for file in [directory, *directory.iterdir()]:
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_a_certificate_is_signed_by_the_authority_of_the_directory_also_later(directory):
    first = certificate(Authority(directory, "First").issue("alice"))
    second = certificate(Authority(directory, "Second").issue("bob"))
    authority = certificate(directory / "ca.pem")
    for signed in (first, second):
        signed.verify_directly_issued_by(authority)


def test_a_certificate_that_is_there_is_kept(directory):
    before = Authority(directory).issue("alice").read_bytes()
    assert Authority(directory).issue("alice").read_bytes() == before


def test_hosts_and_times_are_as_wanted(directory):
    found = certificate(
        Authority(directory).issue("old", hosts=["kafka.example.org", "127.0.0.1"], start=-2 * DAY, end=-DAY)
    )
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kafka.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert found.not_valid_after_utc < datetime.datetime.now(datetime.timezone.utc)
