"""Spark's side needs just the rights that the documentation has for it."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rights import each_lacking, is_named, rights_of
from secured_kafka import PASSWORD

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark import launcher_path, spark_kafka_options, spark_py_files
from airflow_kafka_offsets.spark.kafka_options import OPTIONS_FILE
from airflow_kafka_offsets.spark.listener.listener import committing
from airflow_kafka_offsets.spark.read import read_window

JOB = Path(__file__).parents[3] / "dags_examples" / "jobs" / "secured_job.py"
NOT_ALLOWED = "(Not authorized to access|Topic authorization failed|TopicAuthorization)"
"""What Spark's own clients say."""


@pytest.fixture(scope="module")
def topic(secured_cluster, make_topic, produce):
    name = make_topic(1, on=secured_cluster.plain)
    produce(name, {0: 3}, on=secured_cluster.plain)
    return name


@pytest.fixture
def held(secured_cluster):
    """held(group) -> what it has committed, as the admin sees it."""

    def look(group):
        with OffsetsClient(secured_cluster.admin) as client:
            return {tuple(tp): commit.offset for tp, commit in client.committed_everywhere(group).items()}

    return look


@pytest.fixture
def read(secured_cluster, spark, topic):
    """read(user) -> the values of two records, as a user's window."""
    window = OffsetWindow({TopicPartition(topic, 0): OffsetRange(1, 3)})

    def values(user):
        options = secured_cluster.spark_options(user["sasl.username"])
        return [bytes(row["value"]) for row in read_window(spark, window, options).collect()]

    return values


@pytest.fixture
def follow(secured_cluster, spark, stream, run, topic, tmp_path):
    """follow(user, group) runs a user's query on a new checkpoint; the group follows it."""
    numbers = itertools.count()

    def query(user, group):
        options = secured_cluster.spark_options(user["sasl.username"])
        options["consumer.commit.groupid"] = group
        with committing(spark, raise_errors=True):
            run(stream(topic, **options), str(tmp_path / str(next(numbers))))

    return query


@pytest.mark.long
@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_a_window_is_read_and_a_query_followed_also_without_a_password(
    secured_cluster, spark, stream, run, topic, new_group, held, location, kind
):
    group = new_group()
    user = f"spark-{group}"
    makes = {"certificate": secured_cluster.by_certificate, "token": secured_cluster.by_token}
    secured_cluster.grant(user, *rights_of("KafkaOffsetCommitterListener", group, topic))
    options = spark_kafka_options(makes[kind](user))
    window = OffsetWindow({TopicPartition(topic, 0): OffsetRange(1, 3)})
    assert [bytes(row["value"]) for row in read_window(spark, window, options).collect()] == [b"1", b"2"]
    with committing(spark, raise_errors=True):
        run(stream(topic, **options, **{"consumer.commit.groupid": group}), location)
    assert held(group) == {(topic, 0): 3}


def test_a_window_is_read_and_a_query_followed_with_the_rights_of_the_table(
    secured_cluster, read, follow, topic, new_group, held, caplog
):
    group = new_group()
    assert read(secured_cluster.user("spark", *rights_of("read_window", "", topic))) == [b"1", b"2"]
    follow(secured_cluster.user("spark", *rights_of("KafkaOffsetCommitterListener", group, topic)), group)
    assert held(group) == {(topic, 0): 3}
    assert PASSWORD not in caplog.text


@pytest.mark.long
def test_a_window_is_not_read_without_one_of_them(secured_cluster, read, topic):
    rights = rights_of("read_window", "", topic)
    user = secured_cluster.user("spark", *rights)
    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((BrokerError, Py4JError, PySparkException)) as refused:
                read(user)
        if lacking.left is None:
            assert is_named(lacking, str(refused.value))
        else:
            assert refused.match(NOT_ALLOWED)
        assert PASSWORD not in str(refused.value)


@pytest.mark.long
def test_a_query_is_not_followed_without_one_of_them(secured_cluster, follow, topic, new_group, held, caplog):
    group = new_group()
    rights = rights_of("KafkaOffsetCommitterListener", group, topic)
    user = secured_cluster.user("spark", *rights)
    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((BrokerAuthenticationError, PySparkException)) as refused:
                follow(user, group)
        if lacking.right.resource == "group":
            assert is_named(lacking, str(refused.value))
        else:
            # The query itself fails before there is anything to commit.
            assert refused.match(NOT_ALLOWED)
        assert held(group) == {}
    assert PASSWORD not in caplog.text


@pytest.fixture
def launch(spark_settings, topic, tmp_path):
    """launch(user, group) -> how the example's job has ended under the launcher, and what it has printed."""
    numbers = itertools.count()
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    settings = [word for name, value in spark_settings.items() for word in ("--conf", f"{name}={value}")]

    def run(user, group):
        home = tmp_path / f"launched-{next(numbers)}"
        home.mkdir()
        (home / "options.json").write_text(json.dumps(spark_kafka_options(user)))
        places = ["--checkpoint", str(home / "checkpoint"), "--output", str(home / "output")]
        done = subprocess.run(
            [
                *(submit, "--master", "local[1]", *settings, "--py-files", spark_py_files(), launcher_path()),
                *("--group-id", group, str(JOB), "--topic", topic, *places),
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, OPTIONS_FILE: str(home / "options.json")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert PASSWORD not in done.stdout
        return done.returncode, done.stdout

    return run


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_under_the_launcher_is_followed_with_the_rights_of_the_table_and_not_without_one(
    secured_cluster, launch, topic, new_group, held
):
    group = new_group()
    rights = rights_of("KafkaOffsetCommitterListener", group, topic)
    user = secured_cluster.user("spark", *rights)
    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            status, printed = launch(user, group)
        if lacking.right.resource == "group":
            # The job itself needs no right on the group.
            assert status == 0, printed
            assert is_named(lacking, printed)
        else:
            assert status != 0
            assert re.search(NOT_ALLOWED, printed)
        assert held(group) == {}
    status, printed = launch(user, group)
    assert status == 0, printed
    assert held(group) == {(topic, 0): 3}
