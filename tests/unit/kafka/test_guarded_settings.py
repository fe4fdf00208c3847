"""Settings of a connection that would run code or give a file away: refused, unless they are allowed."""

import ctypes
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import confluent_kafka
import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.config import client_config, dropped_keys

SERVER = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
SECURITY_PAGE = Path(__file__).parents[3] / "docs/reference/security.md"
GUARDED = [
    "ssl.engine.location",
    "ssl.engine.id",
    "ssl.providers",
    "sasl.kerberos.kinit.cmd",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
]

ASK = """
import json, sys
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
try:
    with OffsetsClient(json.loads(sys.argv[1]), timeout=1) as client:
        client.partitions()
except KafkaOffsetsError as error:
    print(error)
"""


@pytest.fixture
def allow(monkeypatch):
    def allow(text: str) -> None:
        monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS", text)

    monkeypatch.delenv("AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS", raising=False)
    return allow


def initialised(config: dict[str, str], log: Path, **environment: str) -> tuple[str, str]:
    """Return what a client of this configuration says, and the libraries whose constructors have run."""
    process = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(config)],
        env={**os.environ, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(log), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return process.stdout, "\n".join(file.read_text() for file in log.parent.glob(f"{log.name}.*"))


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc's loader")
@pytest.mark.parametrize("setting", ["ssl.engine.location", "ssl.providers", "plugin.library.paths"])
def test_a_connection_loads_no_library(tmp_path, setting):
    spec = find_spec("cryptography.hazmat.bindings._rust")
    library = str(spec and spec.origin)
    text, loaded = initialised({**SERVER, setting: library}, tmp_path / "loader")
    assert "calling init: " in loaded
    assert library not in loaded
    assert library not in text


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc's loader")
def test_a_library_that_the_environment_allows_is_loaded(tmp_path):
    spec = find_spec("cryptography.hazmat.bindings._rust")
    config = {"ssl.engine.location": str(spec and spec.origin)}
    _, loaded = initialised(
        {**SERVER, **config}, tmp_path / "loader", AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS=json.dumps(config)
    )
    assert f"calling init: {config['ssl.engine.location']}" in loaded


@pytest.mark.parametrize("setting", GUARDED)
def test_a_guarded_setting_is_refused_by_its_name(allow, setting):
    with pytest.raises(UsageError) as caught:
        client_config({**SERVER, setting: "/tmp/mine"})
    text = str(caught.value)
    assert setting in text
    assert "AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS" in text
    assert "/tmp/mine" not in text


@pytest.mark.parametrize("setting", GUARDED)
@pytest.mark.parametrize("as_list", [False, True])
def test_the_environment_allows_a_value(allow, setting, as_list):
    allow(json.dumps({setting: ["/opt/other", "/opt/theirs"] if as_list else "/opt/theirs"}))
    config = {**SERVER, setting: "/opt/theirs"}
    assert client_config(config) == config
    with pytest.raises(UsageError, match="does not allow"):
        client_config({**SERVER, setting: "/opt/theirs/../mine"})


@pytest.mark.parametrize(
    "text", ["ssl.providers", "[]", '"ssl.providers"', '{"ssl.providers": 1}', '{"ssl.providers": [null]}']
)
def test_an_allow_list_that_cannot_be_read_allows_nothing(allow, text):
    allow(text)
    with pytest.raises(UsageError, match=r"AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS .* expected a JSON object"):
        client_config({**SERVER, "ssl.providers": "legacy"})
    assert client_config(SERVER) == SERVER


@pytest.mark.parametrize("setting", ["sasl.kerberos.principal", "sasl.kerberos.keytab"])
@pytest.mark.parametrize(
    "value", ["x; touch /tmp/ran", "$(id)", "`id`", 'a" -c "b', "-c", "a b", "a\nb", "%{x}"]
)
def test_what_the_client_puts_into_a_shell_command_has_no_syntax_of_a_shell(setting, value):
    with pytest.raises(UsageError, match=rf"{setting} .* shell") as caught:
        client_config({**SERVER, setting: value})
    assert value not in str(caught.value)


def client_settings(tmp_path) -> list[str]:
    """Return the names of all settings of the installed client, as it prints them."""
    package = Path(confluent_kafka.__file__).parent
    found = sorted(package.with_name("confluent_kafka.libs").glob("librdkafka*"))
    if not found:
        pytest.skip("the client was not installed from a wheel")
    client, libc = ctypes.CDLL(str(found[0])), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    page = tmp_path / "settings"
    file = ctypes.c_void_p(libc.fopen(str(page).encode(), b"w"))
    client.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    return re.findall(r"^([a-z][\w.]+) +\|", page.read_text(), re.MULTILINE)


def test_the_docs_say_what_each_setting_of_the_client_may_reach(tmp_path):
    settings = client_settings(tmp_path)
    assert "ssl.providers" in settings
    kept = set(settings) - set(dropped_keys(dict.fromkeys(settings, "x")))
    told = re.findall(
        r"`([\w.*]+)`", SECURITY_PAGE.read_text().partition("## What a connection's settings")[2]
    )
    patterns = [re.compile(re.escape(name).replace(r"\*", ".*")) for name in told]
    assert not [name for name in sorted(kept) if not any(each.fullmatch(name) for each in patterns)]
    assert set(GUARDED) < set(settings)
