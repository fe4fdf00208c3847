import fcntl
import json
import os
import stat
import subprocess
import sys
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.spark import spark_kafka_options
from airflow_kafka_offsets.task.kafka_options_file import kafka_options_file

SETTINGS = {
    "bootstrap.servers": "host:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "flights",
    "sasl.password": "canary",
}
VARIABLE = "AIRFLOW_KAFKA_OFFSETS_OPTIONS_FILE"


@pytest.fixture(autouse=True)
def connection(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)

    def define(**settings):
        extra = {**SETTINGS, **settings}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))

    define()
    return define


@pytest.fixture
def submits(monkeypatch):
    """submits(does): what the official operator does when it executes."""
    return lambda does: monkeypatch.setattr(SparkSubmitOperator, "execute", lambda *_: does())


def files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def test_only_the_owner_can_read_the_file_and_it_is_gone_after_the_block(tmp_path):
    with kafka_options_file() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert os.environ[VARIABLE] == str(path)
        assert spark_kafka_options() == spark_kafka_options(SETTINGS)
        asked = f"import os; print(open(os.environ['{VARIABLE}']).read())"
        assert (
            "canary" in subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout
        )
    assert files(tmp_path) == []
    assert VARIABLE not in os.environ


def test_blocks_in_blocks_have_a_file_each(tmp_path, connection):
    with kafka_options_file() as outer:
        connection(**{"bootstrap.servers": "other:9093"})
        with kafka_options_file():
            assert spark_kafka_options()["kafka.bootstrap.servers"] == "other:9093"
            assert len(files(tmp_path)) == 2
        assert os.environ[VARIABLE] == str(outer)
        assert spark_kafka_options()["kafka.bootstrap.servers"] == "host:9093"


def test_the_file_of_a_killed_task_is_removed_by_the_next_one_and_that_of_a_running_one_is_not(tmp_path):
    with kafka_options_file() as running:
        left = running.with_name("kafka-options-killed.json")
        left.write_text("{}")
        for path in (running, left):
            os.utime(path, (0, 0))
        with kafka_options_file():
            assert running.exists()
            assert not left.exists()
    # Somebody who is about to lock what was just made.
    left.write_text("{}")
    with left.open() as file, kafka_options_file():
        fcntl.flock(file, fcntl.LOCK_EX)
        assert left.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_the_operator_has_the_file_while_the_job_runs(tmp_path, submits, fails):
    found = []

    def submit():
        found.append(spark_kafka_options())
        if fails:
            raise RuntimeError("the job failed")

    submits(submit)
    operator = KafkaSparkSubmitOperator(task_id="process", application="job.py")
    if fails:
        with pytest.raises(RuntimeError, match="the job failed"):
            operator.execute({})
    else:
        operator.execute({})
    assert found == [spark_kafka_options(SETTINGS)]
    assert files(tmp_path) == []
    fields = {name: getattr(operator, name) for name in operator.template_fields}
    assert "canary" not in repr(fields)
    assert "kafka-options" not in repr(fields)


@pytest.mark.parametrize(
    "where", ["deploy_mode", "conf", "connection", "connection over conf", "connection over nothing"]
)
def test_a_driver_on_another_machine_is_refused(submits, monkeypatch, where):
    submits(lambda: pytest.fail("submitted"))
    given: dict[str, Any] = {
        "deploy_mode": {"deploy_mode": "cluster"},
        "conf": {"conf": {"spark.submit.deployMode": "cluster"}},
        "connection": {},
        "connection over conf": {"conf": {"spark.submit.deployMode": "client"}},
        "connection over nothing": {"deploy_mode": ""},
    }
    if where.startswith("connection"):
        spark = {"conn_type": "spark", "host": "spark://m", "port": 7077, "extra": {"deploy-mode": "cluster"}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    with pytest.raises(AirflowFailException, match="task process: found deploy mode cluster.* client"):
        KafkaSparkSubmitOperator(task_id="process", application="job.py", **given[where]).execute({})


def test_what_cannot_be_translated_fails_the_task_at_once(submits, connection):
    submits(lambda: pytest.fail("submitted"))
    connection(**{"ssl.crl.location": "/canary"})
    with pytest.raises(AirflowFailException, match=r"no counterpart for ssl\.crl\.location") as refused:
        KafkaSparkSubmitOperator(task_id="process", application="job.py").execute({})
    assert "canary" not in str(refused.value)
    with pytest.raises(UsageError), kafka_options_file():
        pass


@pytest.mark.parametrize("there", ["a directory that others can read", "file", "link", "dangling link"])
def test_what_is_in_the_directory_s_place_is_refused_and_stays(tmp_path, there):
    place = tmp_path / f"airflow-kafka-offsets-{os.getuid()}"
    elsewhere = tmp_path / "elsewhere"
    if there == "file":
        place.write_text("others'")
    elif there == "a directory that others can read":
        place.mkdir(mode=0o755)
    else:
        place.symlink_to(elsewhere)
    if there == "link":
        elsewhere.mkdir(mode=0o700)
    with pytest.raises(
        SetupError, match=rf"{place} is not a directory that only this user can access.*: remove it"
    ):
        with kafka_options_file():
            pass
    assert VARIABLE not in os.environ
    assert place.is_symlink() or place.is_dir() or place.read_text() == "others'"
    assert not elsewhere.exists() or not list(elsewhere.iterdir())
