from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.local.connector import (
    Artifact,
    Spark,
    check_connector,
    default_scala,
    from_jars,
    from_packages,
    from_properties,
    from_submit_args,
    parse_defaults,
    spark_in,
)

SPARK_4 = Spark("4.0.0", "2.13")
FITS = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def status(spark, artifacts):
    return [(check.name, check.status) for check in check_connector(spark, list(artifacts))]


def test_the_connector_of_the_installed_spark_fits():
    assert status(SPARK_4, from_packages(FITS)) == [("Spark's Kafka connector", "ok")]


@pytest.mark.parametrize(
    ("spark", "coordinate", "found", "right"),
    [
        (
            SPARK_4,
            "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3",
            "it is for Scala 2.12, expected 2.13 and it is for Spark 3.5.3, expected 4.0.0",
            FITS,
        ),
        (
            SPARK_4,
            "org.apache.spark:spark-sql-kafka-0-10_2.12:4.0.0",
            "it is for Scala 2.12, expected 2.13",
            FITS,
        ),
        (
            SPARK_4,
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
            "it is for Spark 4.1.1, expected 4.0.0",
            FITS,
        ),
        (
            Spark("3.5.3", "2.12"),
            FITS,
            "it is for Scala 2.13, expected 2.12 and it is for Spark 4.0.0, expected 3.5.3",
            "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3",
        ),
    ],
)
def test_one_of_another_spark_or_scala_fails_with_the_right_coordinate(spark, coordinate, found, right):
    (check,) = check_connector(spark, list(from_packages(coordinate)))
    assert check.status == "fail"
    assert check.found.endswith(found)
    assert check.remedy == f"use {right}"


def test_without_any_the_right_coordinate_is_told():
    (check,) = check_connector(SPARK_4, [])
    assert check.status == "ok"
    assert FITS in check.found


def test_a_kafka_clients_beside_the_connector_s_own_fails():
    artifacts = from_packages(f"{FITS},org.apache.kafka:kafka-clients:3.4.1")
    assert status(SPARK_4, artifacts) == [("Spark's Kafka connector", "ok"), ("kafka-clients", "fail")]


def test_a_kafka_clients_jar_for_a_connector_jar_is_a_warning():
    jars = from_jars("/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar,/jars/kafka-clients-3.9.0.jar")
    assert status(SPARK_4, jars) == [("Spark's Kafka connector", "ok"), ("kafka-clients", "warn")]


def test_there_is_nothing_to_compare_with_where_no_spark_is():
    assert status(None, from_packages(FITS)) == [("Spark's Kafka connector", "warn")]
    assert status(None, []) == []


@pytest.mark.parametrize(
    "arguments",
    [
        f"--packages {FITS} pyspark-shell",
        f"--packages={FITS} pyspark-shell",
        f"--master local[2] --conf spark.jars.packages={FITS} pyspark-shell",
        f"--conf 'spark.jars.packages={FITS}' pyspark-shell",
        f"-c spark.jars.packages={FITS}",
        f"--packages com.example:other:1.0,{FITS} --verbose pyspark-shell",
    ],
)
def test_submit_arguments_are_read_in_every_spelling(arguments):
    assert next(a[:2] for a in from_submit_args(arguments) if a.name.startswith("spark")) == (
        "spark-sql-kafka-0-10_2.13",
        "4.0.0",
    )


@given(st.text())
def test_no_submit_arguments_are_a_crash(arguments):
    list(from_submit_args(arguments))


@pytest.mark.parametrize("separator", [" ", "\t", "=", " = ", "     "])
def test_defaults_are_read_as_java_properties(separator):
    text = (
        f"# spark.jars /x/kafka-clients-1.0.0.jar\n\n  spark.jars.packages{separator}{FITS}\nspark.master\n"
    )
    properties = parse_defaults(text)
    assert properties == [("spark.jars.packages", FITS), ("spark.master", "")]
    assert [a.source for a in from_properties(properties, "defaults.conf")] == [
        "spark.jars.packages in defaults.conf"
    ]


@pytest.mark.parametrize("key", ["spark.driver.extraClassPath", "spark.executor.extraClassPath"])
def test_class_paths_are_looked_at(key):
    (artifact,) = from_properties([(key, "/opt/*:/opt/kafka-clients-3.4.1.jar")], "f")
    assert artifact == Artifact("kafka-clients", "3.4.1", f"{key} in f", resolved=False)


@pytest.mark.parametrize(("version", "scala"), [("3.5.3", "2.12"), ("4.0.0", "2.13"), ("4.2.0.dev1", "2.13")])
def test_scala_of_a_spark_from_pypi(version, scala):
    assert default_scala(version) == scala


def test_a_spark_is_told_by_its_core_jar():
    assert spark_in(["scala-library-2.13.16.jar", "spark-core_2.13-3.5.3.jar"]) == Spark("3.5.3", "2.13")
    assert spark_in(["spark-connect-client-jvm_2.13-4.0.0.jar"]) is None
