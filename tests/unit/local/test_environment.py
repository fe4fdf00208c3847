import importlib.machinery
import importlib.util
import platform
import socket
import subprocess
import sys
from importlib.metadata import version

import pytest

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.environment import (
    Spark,
    check_broker,
    check_demo,
    check_environment,
    check_pyspark,
    check_retention,
    check_spark_home,
)


def test_the_versions_that_a_bug_report_needs_come_first():
    check = check_environment()[0]
    assert (check.name, check.status) == ("versions", "ok")
    for name in ("airflow-kafka-offsets", "apache-airflow", "confluent-kafka"):
        assert f"{name} {version(name)}" in check.found
    assert check.found.endswith(f"Python {platform.python_version()}")


OVERWRITTEN = "have overwritten each other's files"
REINSTALL = "pip install --force-reinstall --no-deps 'databricks-connect==19.3.0'"


@pytest.mark.parametrize(
    ("versions", "status", "found", "remedy"),
    [
        (("4.0.0", "4.0.0"), "ok", "pyspark 4.0.0 and pyspark-client 4.0.0", ""),
        (("4.0.0", None), "ok", "pyspark 4.0.0", ""),
        ((None, None, "19.3.0"), "ok", "databricks-connect 19.3.0", ""),
        (
            ("4.0.0", "4.1.1"),
            "fail",
            f"pyspark 4.0.0 and pyspark-client 4.1.1 {OVERWRITTEN}",
            "pip uninstall -y pyspark-client && pip install --force-reinstall --no-deps 'pyspark==4.0.0'",
        ),
        (
            (None, "4.2.0", "19.3.0"),
            "fail",
            f"databricks-connect 19.3.0 and pyspark-client 4.2.0 {OVERWRITTEN}",
            REINSTALL,
        ),
        ((None, None), "warn", "not installed", "pip install 'pyspark>=3.5,<5'"),
        ((None, "4.0.0"), "warn", "only pyspark-client 4.0.0", "pip install 'pyspark==4.0.0'"),
    ],
)
def test_what_installs_into_one_directory_has_one_version_or_a_command_that_repairs_it(
    versions, status, found, remedy
):
    check = check_pyspark(*versions)
    assert check.status == status
    assert check.found.startswith(found)
    assert remedy in (check.remedy or "")
    assert "pyspark-client==" not in (check.remedy or "")


def test_a_pyspark_whose_files_another_package_has_removed_fails(monkeypatch):
    check = check_pyspark("4.2.0", None, has_files=False)
    assert (check.status, check.remedy) == (
        "fail",
        "pip install --force-reinstall --no-deps 'pyspark==4.2.0'",
    )
    assert check_pyspark(None, None, has_files=False).status == "warn"
    # What is left is a directory without a module.
    find = importlib.util.find_spec
    bare = importlib.machinery.ModuleSpec("pyspark", None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: bare if name == "pyspark" else find(name))
    (check,) = [each for each in check_environment() if each.name == "pyspark"]
    assert check.status == "fail"


@pytest.mark.parametrize(("jars", "status"), [(["spark-core_2.13-4.0.0.jar"], "fail"), ([], "warn")])
def test_no_java_fails_where_a_spark_is_with_its_remedy_apart(jars, status, tmp_path, monkeypatch):
    (tmp_path / "jars").mkdir()
    for jar in jars:
        (tmp_path / "jars" / jar).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = [each for each in check_environment() if each.name == "Java"]
    assert check.status == status
    assert check.found == "no Java was found on PATH, expected Java 17 or newer"
    assert check.remedy
    assert check.remedy.startswith("install Java 17")


def test_a_spark_home_of_another_version_than_pyspark_fails():
    (check,) = check_spark_home("/opt/spark", Spark("3.5.3", "2.12"), "4.0.0")
    assert (check.status, check.found) == ("fail", "/opt/spark is Spark 3.5.3, but pyspark is 4.0.0")
    assert check_spark_home("/opt/spark", Spark("4.0.0", "2.13"), "4.0.0")[0].status == "ok"
    assert check_spark_home("/opt/nothing", None, "4.0.0")[0].status == "fail"
    assert check_spark_home(None, None, "4.0.0") == []


def test_a_missing_extra_is_a_warning_with_the_command_that_installs_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "psutil" else find(name))
    check = check_demo()
    assert (check.status, check.remedy) == ("warn", "pip install 'airflow-kafka-offsets[demo]'")
    assert check.found.startswith("psutil not installed")


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """broken("psutil") -> as if a library were installed, and one of the system's that it needs were not."""

    def broken(name):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('lib{name}.so.1: cannot open it')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return broken


@pytest.mark.parametrize(
    ("library", "check", "status"),
    [
        ("fsspec", "libraries", "fail"),
        ("confluent_kafka", "libraries", "fail"),
        ("psutil", "embedded Kafka", "warn"),
    ],
)
def test_a_library_that_is_there_and_cannot_be_imported_is_no_library(broken, library, check, status):
    broken(library)
    found = {each.name: each for each in check_environment()}[check]
    assert (found.status, found.found) == (
        status,
        f"{library} cannot be imported: lib{library}.so.1: cannot open it",
    )
    assert found.remedy == f"pip install --force-reinstall {library.replace('_', '-')}"


@pytest.mark.parametrize(
    ("module", "library"), [("cache", "filelock"), ("cache", "platformdirs"), ("process", "psutil")]
)
def test_a_command_without_the_extra_that_it_needs_names_the_extra(module, library):
    program = (
        "import sys\n"
        f"sys.modules[{library!r}] = None\n"
        "from airflow_kafka_offsets.errors import SetupError\n"
        "try:\n"
        f"    import airflow_kafka_offsets.local.{module}\n"
        "except SetupError as error:\n"
        "    print(error)"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.strip() == f"{library} is not installed: pip install 'airflow-kafka-offsets[demo]'"


@pytest.mark.parametrize(
    ("minutes", "status", "found"),
    [
        ("10080", "ok", "10080: a group without members loses its offsets 7 d after the last commit"),
        ("1440", "ok", "1440: a group without members loses its offsets 1 d after the last commit"),
        (
            "1439",
            "warn",
            "1439: a group without members loses its offsets 23 h 59 min after the last commit",
        ),
        ("1", "warn", "1: a group without members loses its offsets 1 min after the last commit"),
        (None, "warn", "not known (no permission)"),
    ],
)
def test_a_retention_below_a_day_is_a_warning(minutes, status, found):
    check = check_retention(minutes, "no permission")
    assert check.status == status
    assert check.found.startswith(found)
    assert (check.remedy is None) == (status == "ok")


def test_packages_and_the_jars_in_spark_home_are_compared_with_its_spark(tmp_path, monkeypatch):
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.12-3.5.3.jar").touch()
    (home / "jars" / "kafka-clients-3.4.1.jar").touch()
    packages = ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"]
    monkeypatch.setenv("SPARK_HOME", str(home))
    checks = check_environment(packages=packages)
    connector = [
        (c.status, c.found) for c in checks if c.name in ("Spark's Kafka connector", "kafka-clients")
    ]
    assert connector == [
        (
            "fail",
            "spark-sql-kafka-0-10_2.13:4.0.0 (--packages): "
            "it is for Scala 2.13, expected 2.12 and it is for Spark 4.0.0, expected 3.5.3",
        ),
        ("warn", f"kafka-clients 3.4.1 was added by hand ({home / 'jars'})"),
    ]


def test_the_checks_import_neither_pyspark_nor_airflow():
    program = (
        "import sys\n"
        "from airflow_kafka_offsets.local.environment import check_environment\n"
        "check_environment()\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'airflow', 'jgo'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


@pytest.mark.parametrize(
    "extra",
    [
        {"plugin.library.paths": "/nowhere.so"},
        {"ssl.engine.location": "/nowhere.so", "security.protocol": "ssl"},
    ],
)
def test_a_broker_is_asked_without_code_of_the_connection(extra):
    assert "/nowhere.so" not in str(check_broker({"bootstrap.servers": "127.0.0.1:1", **extra}, 0.2))


def test_a_password_in_an_address_is_not_shown():
    assert "hunter2" not in str(check_broker({"bootstrap.servers": "user:hunter2@127.0.0.1:1"}, 0.2))


def test_nobody_there_fails_within_the_time():
    (check,) = check_broker({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"}, timeout=0.5)
    assert check.status == "fail"
    assert "Connection refused" in check.found


def test_a_server_that_says_nothing_fails_within_the_time():
    with socket.create_server((LOOPBACK, 0)) as server:
        (check,) = check_broker({"bootstrap.servers": f"{LOOPBACK}:{server.getsockname()[1]}"}, timeout=0.2)
    assert check.status == "fail"


def test_a_key_that_librdkafka_does_not_know_is_named():
    unused, check = check_broker({"bootstrap.servers": "127.0.0.1:1", "max.poll.recrods": 1}, 0.2)
    assert (unused.status, check.status) == ("warn", "fail")
    assert "max.poll.recrods" in unused.found
