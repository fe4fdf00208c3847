from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from airflow_kafka_offsets.local.broker_checks import check_retention
from airflow_kafka_offsets.local.connector import Spark
from airflow_kafka_offsets.local.environment import (
    check_environment,
    check_java,
    check_port,
    check_pyspark,
    check_registry,
    check_spark_home,
    check_writable,
)


def test_pyspark_and_its_client_of_one_version_are_fine():
    assert check_pyspark("4.0.0", "4.0.0").status == "ok"
    assert check_pyspark("4.0.0", None).status == "ok"


def test_pyspark_and_its_client_of_two_versions_fail_with_the_commands_that_repair_it():
    check = check_pyspark("4.0.0", "4.1.1")
    assert check.status == "fail"
    assert check.found.startswith(
        "pyspark 4.0.0 and pyspark-client 4.1.1 have overwritten each other's files"
    )
    assert check.remedy.endswith("pip install 'pyspark==4.0.0' 'pyspark-client==4.0.0'")


@pytest.mark.parametrize("client", [None, "4.0.0"])
def test_without_pyspark_there_is_a_warning(client):
    check = check_pyspark(None, client)
    assert check.status == "warn"
    assert check.remedy == "pip install 'airflow-kafka-offsets[spark]'"


def test_no_java_fails_with_its_remedy_apart(tmp_path):
    check = check_java({"PATH": str(tmp_path)})
    assert check.status == "fail"
    assert check.found == "no Java was found on PATH, expected Java 17 or newer"
    assert check.remedy.startswith("install Java 17")


def test_a_spark_home_of_another_version_than_pyspark_fails():
    (check,) = check_spark_home("/opt/spark", Spark("3.5.3", "2.12"), "4.0.0")
    assert (check.status, check.found) == ("fail", "/opt/spark is Spark 3.5.3, but pyspark is 4.0.0")
    assert check_spark_home("/opt/spark", Spark("4.0.0", "2.13"), "4.0.0")[0].status == "ok"
    assert check_spark_home("/opt/nothing", None, "4.0.0")[0].status == "fail"
    assert check_spark_home(None, None, "4.0.0") == []


def test_a_port_is_free_or_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = check_port(port)
    assert (taken.status, taken.found) == ("fail", f"{port} on 127.0.0.1 is taken")
    assert check_port(port).status == "ok"


def test_a_directory_is_looked_at_without_being_made(tmp_path):
    assert check_writable("cache directory", tmp_path / "a" / "b", "X").status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_fails_with_the_variable_that_moves_it(tmp_path):
    (tmp_path / "file").write_text("")
    check = check_writable("cache directory", tmp_path / "file" / "a", "X")
    assert (check.status, check.remedy) == ("fail", "make it writable, or name another one in X")


def test_an_unreachable_registry_fails_in_time_and_names_no_address(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    check = check_registry(timeout=5)
    assert check.status == "fail"
    assert check.remedy.startswith("check the network")
    assert "://" not in check.found


@pytest.mark.parametrize(
    ("minutes", "status", "found"),
    [
        ("10080", "ok", "10080: a group that nobody joins forgets its offsets 7 days after the last commit"),
        ("1440", "ok", "1440: a group that nobody joins forgets its offsets 1 day after the last commit"),
        (
            "1439",
            "warn",
            "1439: a group that nobody joins forgets its offsets 24 hours after the last commit",
        ),
        ("1", "warn", "1: a group that nobody joins forgets its offsets 1 minute after the last commit"),
        (None, "warn", "not known (no permission)"),
    ],
)
def test_a_retention_below_a_day_is_a_warning(minutes, status, found):
    check = check_retention(minutes, "no permission")
    assert check.status == status
    assert check.found.startswith(found)
    assert (check.remedy is None) == (status == "ok")


def test_the_variables_and_files_that_spark_reads_are_looked_at(tmp_path):
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "conf").mkdir()
    (home / "jars" / "spark-core_2.12-3.5.3.jar").touch()
    (home / "jars" / "kafka-clients-3.4.1.jar").touch()
    (home / "conf" / "spark-defaults.conf").write_text(
        "spark.jars.packages org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3\n"
    )
    arguments = "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 pyspark-shell"
    checks = check_environment(
        environ={"SPARK_HOME": str(home), "PYSPARK_SUBMIT_ARGS": arguments, "PATH": ""}
    )
    connector = [
        (c.status, c.found) for c in checks if c.name in ("Spark's Kafka connector", "kafka-clients")
    ]
    assert connector == [
        (
            "fail",
            "spark-sql-kafka-0-10_2.13:4.0.0 (--packages in PYSPARK_SUBMIT_ARGS): "
            "it is for Scala 2.13, expected 2.12 and it is for Spark 4.0.0, expected 3.5.3",
        ),
        (
            "ok",
            f"spark-sql-kafka-0-10_2.12:3.5.3 (spark.jars.packages in {home / 'conf' / 'spark-defaults.conf'})",
        ),
        ("fail", f"kafka-clients 3.4.1 was added by hand ({home / 'jars'})"),
    ]


def test_looking_imports_neither_pyspark_nor_airflow():
    program = (
        "import sys\n"
        "from airflow_kafka_offsets.local.environment import check_environment\n"
        "check_environment()\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'airflow', 'jgo'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
