"""The examples on a secured Kafka and on Spark standalone; their secrets are where they belong only."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from breakable_kafka import create_users
from canaries import Canaries, watching
from confluent_kafka.admin import AdminClient, NewTopic
from spark_session import QUICK_JAVA
from spark_standalone import standalone_spark

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [
    pytest.mark.system,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks into /proc"),
]

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
GROUP = "payments-secured"
USER = "payments"
RECORDS = 5
CONNECTIONS = "connections.json"

FLIGHTS, ORDERS = "flights", "shop-orders"
TIMEOUT = 30.0
DAY, SINCE, MIDNIGHT = "2013-01-01", "2013-01-01T00:00:00-05:00", "2013-01-02T00:00:00-05:00"
USES_OF_FLIGHTS: dict[str, dict[str, Any]] = {
    "daily_flights.py": {"date": MIDNIGHT},
    "recover_flights.py": {"conf": {"since": SINCE}},
    "one_bad_day.py": {"conf": {"day": DAY}},
    "planned_window.py": {"date": MIDNIGHT},
    "replay_window.py": {"conf": {"since": SINCE, "until": MIDNIGHT}},
    "exactly_once.py": {},
}
"""The examples with the topic of flights, which the first one fills; and how they are run."""

RUN = """
import json, runpy, sys
from datetime import datetime, timezone
from airflow.serialization.serialized_objects import DagSerialization

file, conf, date = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
dag = runpy.run_path(file)["dag"]
date = datetime.fromisoformat(date) if date else datetime.now(tz=timezone.utc)
run = dag.test(run_conf=conf, logical_date=date)
instances = run.get_task_instances()
print(json.dumps(DagSerialization.to_dict(dag), default=str))
print("XCOM", [ti.xcom_pull(task_ids=ti.task_id, map_indexes=ti.map_index) for ti in instances])
print("@@" + json.dumps({ti.task_id: str(ti.state) for ti in instances}))
"""

LOG4J = """
rootLogger.level = debug
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n%ex
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def temporary(home):
    directory = home / "tmp"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def environment(airflow, home, temporary, spark_settings):
    """Everything at DEBUG, and all temporary files in one place."""
    conf = home / "conf"
    conf.mkdir()
    (conf / "log4j2.properties").write_text(LOG4J)
    (home / "events").mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{home}/events"}
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    kept = {name: value for name, value in airflow.environment.items() if "AIRFLOW_CONN_" not in name}
    backend = {"connections_file_path": str(home / CONNECTIONS)}
    return kept | {
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(backend),
        "FLIGHTS_HOME": str(home / "flights"),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} {QUICK_JAVA}",
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_DIRS": str(temporary),
        "TMPDIR": str(temporary),
    }


@pytest.fixture(scope="module")
def standalone(home, environment):
    with standalone_spark(home / "spark", environment) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topic(secured_kafka, make_topic, produce):
    name = make_topic(1, on=secured_kafka.plain)
    produce(name, {0: RECORDS}, on=secured_kafka.plain)
    return name


@pytest.fixture
def canaries():
    return Canaries()


@pytest.fixture
def login(secured_kafka, canaries):
    """login("password") -> a user's connection with a secret in each of its fields that has one."""

    def settings(kind, *grants):
        secured_kafka.grant(USER, *grants)
        if kind == "token":
            return {**secured_kafka.by_token(USER), "debug": "all"}
        certificate = secured_kafka.by_certificate(USER)
        key, password = canaries.encrypted_key(Path(certificate.pop("ssl.key.location")).read_bytes())
        if kind == "password":
            create_users(secured_kafka.plain, {USER: canaries("password")})
            certificate |= secured_kafka.login(USER, canaries("password"))
        return {**certificate, "ssl.key.pem": key, "ssl.key.password": password, "debug": "all"}

    return settings


@pytest.fixture
def rights(topic):
    """What the example of a secured Kafka needs."""
    return [("topic", topic, "Read"), ("group", GROUP, "Read")]


@pytest.fixture
def run(home, environment, standalone, topic, temporary, canaries, tmp_path):
    """
    run(settings, example) -> the states of the tasks, where secrets were seen, what was looked at, and the
    log.

    conf and date: of the run; the other keywords are further connections.
    """

    def start(settings, example="secured_spark.py", *, conf=None, date="", **connections):
        connections |= {
            "kafka_default": {"conn_type": "kafka", "extra": settings},
            "spark_default": {
                "conn_type": "spark",
                "host": standalone.host,
                "port": standalone.port,
                "extra": {"deploy-mode": "client"},
            },
        }
        (home / CONNECTIONS).write_text(json.dumps(connections))
        log = home / "run.log"
        with log.open("w") as output, watching(canaries, temporary) as seen:
            subprocess.run(
                [sys.executable, "-c", RUN, str(EXAMPLES / example), json.dumps(conf or {}), date],
                env={**environment, "PAYMENTS_TOPIC": topic, "LAKE": str(tmp_path / "lake")},
                cwd=home,
                stdout=output,
                stderr=output,
                timeout=400,
                check=False,
            )
        text = log.read_text()
        states = [line for line in text.splitlines() if line.startswith("@@")]
        assert states, text[-5000:]
        leaks = {*seen.leaks, *canaries.in_files(home, tmp_path, but=[CONNECTIONS, log.name])}
        # Airflow's dag.test() itself writes at DEBUG what it is to mask from then on.
        leaks.update(canaries.in_lines(log, but="MaskSecret("))
        leaks.update(canaries.in_files(Path(environment["AIRFLOW_HOME"])))
        return json.loads(states[0][2:]), leaks, seen, text

    return start


@pytest.mark.parametrize("kind", ["password", "certificate", "token"])
def test_the_job_reads_with_the_connections_credentials_and_they_are_nowhere_else(
    run, login, rights, home, secured_kafka, topic, tmp_path, kind
):
    with OffsetsClient(secured_kafka.admin) as client:
        client.delete_groups([GROUP])
    states, leaks, seen, text = run(login(kind, *rights))
    assert states == {"process": "success", "commit": "success"}, text[-5000:]
    assert leaks == set()
    # Those that had the secrets were looked at, and were as talkative as they can be.
    assert any("CoarseGrainedExecutorBackend" in each for each in seen.processes), seen.processes
    # A token of the tests has no secret in it.
    assert [name.rpartition("-")[0] for name in seen.private] == ["kafka-options"] * (kind != "token")
    executor = max((home / "spark" / "work").rglob("stderr"), key=lambda file: file.stat().st_mtime)
    assert "ConsumerConfig" in executor.read_text()
    assert "DEBUG" in executor.read_text()
    assert list((home / "events").rglob("*"))
    with OffsetsClient(secured_kafka.admin) as client:
        (commit,) = client.committed(GROUP, [TopicPartition(topic, 0)]).values()
    assert commit is not None
    assert commit.offset == RECORDS
    texts = [file.read_text() for file in (tmp_path / "lake" / "payments").glob("part-*")]
    assert len("".join(texts).splitlines()) == RECORDS


@pytest.mark.parametrize("wrong", ["sasl.password", "ssl.key.pem", "bootstrap.servers"])
def test_what_fails_shows_no_secret_either(run, login, rights, canaries, wrong):
    settings = login("password", *rights)
    values = {
        "sasl.password": canaries("wrong-password"),
        "ssl.key.pem": settings["ssl.key.pem"].replace("A", "B"),
        "bootstrap.servers": f"user:{canaries('in-servers')}@{settings['bootstrap.servers']}",
    }
    states, leaks, _, text = run({**settings, wrong: values[wrong]})
    assert states["process"] == "failed", text[-5000:]
    assert leaks == set()


@pytest.fixture
def rights_on_flights():
    """What the examples with the topic of flights need, together."""
    groups = ("flights-daily", "flights-planned", "flights-counted")
    return [
        *(("topic", FLIGHTS, right) for right in ("Create", "Write", "Read")),
        *(("group", group, "Read") for group in groups),
    ]


@pytest.mark.parametrize("example", USES_OF_FLIGHTS)
def test_the_examples_run_as_they_are_with_the_connections_credentials(
    run, login, rights_on_flights, postgres, example
):
    settings = login("password", *rights_on_flights)
    connections = {"departures": postgres.airflow_connection}
    states, leaks, _, text = run(settings, example, **USES_OF_FLIGHTS[example], **connections)
    assert set(states.values()) == {"success"}, text[-5000:]
    assert leaks == set()


def test_a_stream_inside_a_task_reads_with_the_connections_credentials(run, login, secured_kafka, produce):
    admin = AdminClient({"bootstrap.servers": secured_kafka.plain, "log_level": 0})
    admin.create_topics([NewTopic(ORDERS, num_partitions=1)])[ORDERS].result(TIMEOUT)
    orders = [{"key": b"shop-1", "value": b"%d" % number} for number in range(RECORDS)]
    produce(ORDERS, orders, on=secured_kafka.plain)
    rights = [("topic", ORDERS, "Read"), ("group", "shops", "Read")]
    states, leaks, _, text = run(login("password", *rights), "pyspark_task.py")
    assert set(states.values()) == {"success"}, text[-5000:]
    assert leaks == set()
