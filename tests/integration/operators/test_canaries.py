"""
Secrets in every field of a connection are not found in anything that is written, logged, pushed, serialised,
listed in a process table or left behind.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from breakable_kafka import create_users
from canaries import Canaries, watching
from canary_tasks import DONE
from written_query import Query

SUPPORT = Path(__file__).parents[2] / "support"
USER = "canary"
GROUP = "canaries"
QUICK = ("right", "wrong-password")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks into /proc"),
]


@pytest.fixture
def canaries():
    return Canaries()


@pytest.fixture
def connections(secured_kafka, make_topic, produce, canaries):
    """Connections by name, and their topic: one that works, and others that are wrong in one field each."""
    topic = make_topic(on=secured_kafka.plain)
    produce(topic, {0: 3}, on=secured_kafka.plain)
    create_users(secured_kafka.plain, {USER: canaries("password")})
    secured_kafka.grant(USER, ("topic", topic, "Read"), ("group", GROUP, "Read"))
    key, password = canaries.encrypted_key((secured_kafka.certificates / "client.pem").read_bytes())
    certificate = str(secured_kafka.certificates / "client.pem")
    right = secured_kafka.login(USER, canaries("password"), ssl_certificate_location=certificate)
    right |= {"ssl.key.pem": key, "ssl.key.password": password, "debug": "all"}
    servers = right["bootstrap.servers"]
    oauth = {**right, "sasl.mechanisms": "OAUTHBEARER"}
    login = f'ScramLoginModule required username="{USER}" password="{canaries("jaas")}";'
    return topic, {
        "right": right,
        "wrong-password": {**right, "sasl.password": canaries("wrong-password")},
        "in-servers": {**right, "bootstrap.servers": f"SASL_SSL://{USER}:{canaries('servers')}@{servers}"},
        "java": {**right, "sasl.jaas.config": login},
        "wrong-key-password": {**right, "ssl.key.password": canaries("wrong-key-password")},
        "broken-key": {**right, "ssl.key.pem": canaries.note("broken-key", key[:150])},
        "broken-ca": {**right, "ssl.ca.pem": canaries("ca")} | {"ssl.ca.location": ""},
        "token": {**oauth, "sasl.oauthbearer.config": canaries("token")},
        "unsecured-token": {
            **oauth,
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal=x {canaries('token-field')}=1",
        },
        "oidc": {
            **oauth,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "canary",
            "sasl.oauthbearer.client.secret": canaries("client-secret"),
            "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:9/token",
        },
        "unknown": {**right, "sasl.unknown": canaries("unknown-value")},
        "not-utf8": {**right, "sasl.password": canaries("surrogate") + "\ud800"},
        "whitespace": {**right, "sasl.password": " " + canaries("whitespace")},
        "number": {**right, "socket.timeout.ms": canaries("number")},
    }


@pytest.fixture
def run(tmp_path, connections, canaries):
    """run(names) -> where secrets were seen, after everything was run for these connections."""
    topic, settings = connections
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    for directory in (home, temporary):
        directory.mkdir()
    checkpoint = home / "checkpoint"
    # Later than its records: else they would be of a topic that was made anew.
    Query(checkpoint).run(0, {topic: {0: 2}}, at=time.time() + 60)
    secrets = tmp_path / "secrets"
    secrets.mkdir()

    def start(names, location=None, **more):
        defined = {name: {"conn_type": "kafka", "extra": settings[name]} for name in names}
        (secrets / "connections.json").write_text(json.dumps({**defined, **more.get("connections", {})}))
        requests = []
        for name in names:
            file = secrets / f"{name}.properties"
            lines = {key: str(value).replace("\n", "\\n") for key, value in settings[name].items()}
            text = "".join(f"{key}={value}\n" for key, value in lines.items())
            file.write_bytes(text.encode("utf-8", "surrogatepass"))
            pipeline = {
                "group_id": GROUP,
                "topics": [topic],
                "checkpoint_location": location or str(checkpoint),
                "checkpoint_conn_id": more.get("checkpoint_conn_id"),
                "kafka_config_id": name,
            }
            requests.append([pipeline, str(file)])
        backend = {"connections_file_path": str(secrets / "connections.json")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        environment = kept | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
            "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(backend),
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path[1:]]),
            "TMPDIR": str(temporary),
        }
        log = home / "log"
        with log.open("w") as output, watching(canaries, temporary) as seen:
            done = subprocess.run(
                [sys.executable, "-m", "canary_tasks"],
                input=json.dumps(requests),
                env=environment,
                cwd=home,
                stdout=output,
                stderr=output,
                text=True,
                timeout=500,
                check=False,
            )
        text = log.read_text(errors="surrogateescape")
        assert done.returncode == 0, text[-3000:]
        assert [line.removeprefix(DONE) for line in text.splitlines() if line.startswith(DONE)] == list(names)
        # Workers and the live child were seen, and are no longer there.
        return (
            {*seen.leaks, *canaries.in_lines(log, but="\0"), *canaries.in_files(home, but=["log"])},
            seen,
            text,
        )

    return start


@pytest.mark.long
def test_no_secret_of_a_connection_is_shown(run):
    leaks, seen, text = run(QUICK)
    assert leaks == set()
    assert "right commit RETURNED" in text
    assert "right job RAISED" in text
    assert "wrong-password commit RAISED" in text
    for child in ("admin_worker", "live_worker"):
        assert any(child in each for each in seen.processes), seen.processes


@pytest.mark.long
def test_no_secret_of_a_connection_that_is_wrong_in_any_field_is_shown(run, connections):
    leaks, _, text = run([name for name in connections[1] if name not in QUICK])
    assert leaks == set(), text


@pytest.mark.long
@pytest.mark.parametrize("where", ["connection", "location"])
def test_no_secret_of_a_storage_is_shown(run, canaries, where):
    secret = canaries("s3-secret")
    extra = {"aws_secret_access_key": secret, "endpoint_url": "http://127.0.0.1:9"}
    connection = {"conn_type": "aws", "login": "key", "password": secret, "extra": extra}
    locations = {"connection": "s3://bucket/checkpoint", "location": f"s3a://key:{secret}@bucket/checkpoint"}
    leaks, _, text = run(
        ["right"], locations[where], connections={"lake": connection}, checkpoint_conn_id="lake"
    )
    assert leaks == set(), text
