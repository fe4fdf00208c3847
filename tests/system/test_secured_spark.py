"""The example of a secured Kafka, whole, on Spark standalone; its secrets are where they belong only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from breakable_kafka import create_users
from canaries import Canaries, watching
from spark_session import QUICK_JAVA
from spark_standalone import standalone_spark

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [
    pytest.mark.system,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks into /proc"),
]

DAG = Path(__file__).parents[2] / "dags_examples" / "secured_spark.py"
GROUP = "payments-secured"
USER = "payments"
RECORDS = 5
CONNECTIONS = "connections.json"

RUN = """
import json, runpy, sys
from airflow.serialization.serialized_objects import DagSerialization

dag = runpy.run_path(sys.argv[1])["dag"]
run = dag.test()
instances = run.get_task_instances()
print(json.dumps(DagSerialization.to_dict(dag), default=str))
print("XCOM", {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in instances})
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
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} {QUICK_JAVA}",
        "LAKE": str(home / "lake"),
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
def settings(secured_kafka, topic, canaries):
    """A connection with a secret in each of its fields that has one."""
    create_users(secured_kafka.plain, {USER: canaries("password")})
    secured_kafka.grant(USER, ("topic", topic, "Read"), ("group", GROUP, "Read"))
    key, password = canaries.encrypted_key((secured_kafka.certificates / "client.pem").read_bytes())
    certificate = str(secured_kafka.certificates / "client.pem")
    login = secured_kafka.login(USER, canaries("password"), ssl_certificate_location=certificate)
    return {**login, "ssl.key.pem": key, "ssl.key.password": password, "debug": "all"}


@pytest.fixture
def run(home, environment, standalone, topic, temporary, canaries):
    """run(settings) -> the states of the tasks, where secrets were seen, what was looked at, and the log."""

    def start(settings):
        connections = {
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
                [sys.executable, "-c", RUN, str(DAG)],
                env={**environment, "PAYMENTS_TOPIC": topic},
                cwd=home,
                stdout=output,
                stderr=output,
                timeout=400,
                check=False,
            )
        text = log.read_text()
        states = [line for line in text.splitlines() if line.startswith("@@")]
        assert states, text[-5000:]
        leaks = {*seen.leaks, *canaries.in_files(home, but=[CONNECTIONS, log.name])}
        # Airflow's dag.test() itself writes at DEBUG what it is to mask from then on.
        leaks.update(canaries.in_lines(log, but="MaskSecret("))
        leaks.update(canaries.in_files(Path(environment["AIRFLOW_HOME"])))
        return json.loads(states[0][2:]), leaks, seen, text

    return start


def test_the_job_reads_with_the_connections_credentials_and_they_are_nowhere_else(
    run, settings, home, secured_kafka, topic
):
    states, leaks, seen, text = run(settings)
    assert states == {"process": "success", "commit": "success"}, text[-5000:]
    assert leaks == set()
    # Those that had the secrets were looked at, and were as talkative as they can be.
    assert any("CoarseGrainedExecutorBackend" in each for each in seen.processes), seen.processes
    (handed_over,) = seen.private
    assert handed_over.startswith("kafka-options-")
    (executor,) = (home / "spark" / "work").rglob("stderr")
    assert "ConsumerConfig" in executor.read_text()
    assert "DEBUG" in executor.read_text()
    assert list((home / "events").rglob("*"))
    with OffsetsClient(secured_kafka.admin) as client:
        (commit,) = client.committed(GROUP, [TopicPartition(topic, 0)]).values()
    assert commit is not None
    assert commit.offset == RECORDS
    texts = [file.read_text() for file in (home / "lake" / "payments").glob("part-*")]
    assert len("".join(texts).splitlines()) == RECORDS


@pytest.mark.parametrize("wrong", ["sasl.password", "ssl.key.pem", "bootstrap.servers"])
def test_what_fails_shows_no_secret_either(run, settings, canaries, wrong):
    values = {
        "sasl.password": canaries("wrong-password"),
        "ssl.key.pem": settings["ssl.key.pem"].replace("A", "B"),
        "bootstrap.servers": f"user:{canaries('in-servers')}@{settings['bootstrap.servers']}",
    }
    states, leaks, _, text = run({**settings, wrong: values[wrong]})
    assert states["process"] == "failed", text[-5000:]
    assert leaks == set()
