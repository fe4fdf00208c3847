import sys
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming import DataStreamWriter

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.spark.listener import launcher
from airflow_kafka_offsets.spark.listener.listener import KafkaOffsetCommitterListener
from airflow_kafka_offsets.spark.listener.py_files import spark_py_files
from airflow_kafka_offsets.spark.listener.refusals import refuse_delegation_tokens, token_targets
from airflow_kafka_offsets.spark.listener.runs import Counts


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Where the zip is made, as if for the first time."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spark_py_files.cache_clear()
    yield tmp_path
    spark_py_files.cache_clear()


def test_the_zip_holds_what_a_driver_needs_and_is_made_once(fresh):
    path = Path(spark_py_files())
    names = zipfile.ZipFile(path).namelist()
    assert "airflow_kafka_offsets/spark/listener/listener.py" in names
    assert not [name for name in names if "/operators/" in name or "/cli/" in name]
    assert path.parent.stat().st_mode & 0o077 == 0
    made = path.stat().st_mtime_ns
    spark_py_files.cache_clear()
    assert spark_py_files() == str(path)
    assert path.stat().st_mtime_ns == made


def test_a_zip_with_other_content_is_made_anew(fresh):
    path = Path(spark_py_files())
    content = path.read_bytes()
    path.write_bytes(b"something else")
    spark_py_files.cache_clear()
    assert Path(spark_py_files()).read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_directory_that_others_may_write_to_is_refused(fresh):
    directory = Path(spark_py_files()).parent
    directory.chmod(0o777)
    spark_py_files.cache_clear()
    with pytest.raises(SetupError, match="is not a directory that only this user can access.*set TMPDIR"):
        spark_py_files()


def test_a_listener_that_cannot_be_attached_keeps_no_query_from_starting(monkeypatch, caplog):
    monkeypatch.setattr(DataStreamWriter, "start", lambda writer: "started")
    monkeypatch.setattr(DataStreamWriter, "toTable", DataStreamWriter.toTable)
    options = Namespace(group_id="g", allow_new_query=False, allow_new_cluster=False)
    launcher._attach_before_each_start([], options)
    writer = DataStreamWriter.__new__(DataStreamWriter)
    writer._spark = object()
    assert writer.start() == "started"
    assert "the listener cannot be attached, so nothing of this session is committed" in caplog.text


def test_a_job_without_a_query_that_the_launcher_sees_is_warned_of(monkeypatch, tmp_path, caplog):
    for name in ("start", "toTable"):
        monkeypatch.setattr(DataStreamWriter, name, getattr(DataStreamWriter, name))
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    job = tmp_path / "job.py"
    job.write_text("import sys\nsys.exit(3)")
    with pytest.raises(SystemExit, match="3"):
        launcher.main(["--group-id", "g", str(job)])
    assert "nothing was committed, because no streaming query was followed" in caplog.text


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), -1.0])
def test_a_listener_stops_whatever_its_timeout_is(timeout):
    session = SimpleNamespace(streams=SimpleNamespace(removeListener=lambda listener: None))
    config = {"bootstrap.servers": "127.0.0.1:1"}
    listener = KafkaOffsetCommitterListener(session, group_id="g", config=config)
    listener.flush(timeout)
    listener.stop(timeout)
    assert listener.counts == Counts()


# Delegation tokens


class Jvm:
    """The one call that is made to it: java.lang.System.getProperty."""

    def __init__(self, login=None):
        self.java = self.lang = self.System = self
        self._login = login

    def getProperty(self, name):  # noqa: N802  # Java's name
        assert name == "java.security.auth.login.config"
        return self._login


CONF = {
    "spark.kafka.clusters.main.auth.bootstrap.servers": "broker-1:9092",
    "spark.kafka.clusters.main.target.bootstrap.servers.regex": r"broker-\d:9092",
}
SETTINGS = {"bootstrap.servers": "broker-1:9092, broker-2:9092", "security.protocol": "SASL_SSL"}


def test_with_delegation_tokens_it_is_said_what_to_set():
    with pytest.raises(
        SetupError, match=r"delegation token \(spark.kafka.clusters.main.*give the listener config="
    ):
        refuse_delegation_tokens(Jvm(), token_targets(CONF), SETTINGS)


@pytest.mark.parametrize(
    ("jvm", "conf", "settings"),
    [
        (Jvm(), {}, SETTINGS),
        (Jvm("/etc/jaas.conf"), CONF, SETTINGS),
        (Jvm(), CONF, SETTINGS | {"sasl.jaas.config": "..."}),
        (Jvm(), CONF, {"bootstrap.servers": "elsewhere:9092"}),
    ],
    ids=["no tokens", "a login for all of Java", "credentials given", "another cluster"],
)
def test_where_there_are_credentials_nothing_is_refused(jvm, conf, settings):
    refuse_delegation_tokens(jvm, token_targets(conf), settings)
