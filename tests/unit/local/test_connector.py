import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.local.environment import (
    Spark,
    check_connector,
    default_spark,
    libraries,
    spark_of_jars,
)

SPARK_4 = Spark("4.0.0", "2.13")
FITS = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def status(spark, artifacts):
    return [(check.name, check.status) for check in check_connector(spark, list(artifacts))]


def test_several_packages_in_one_text_are_taken_apart_as_spark_does():
    several = f"org.postgresql:postgresql:42.7.4,{FITS}, org.slf4j/slf4j-api/2.0.16"
    assert status(SPARK_4, libraries([several], [])) == [("Spark's Kafka connector", "ok")]
    jars = "/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar,/jars/postgresql-42.7.4.jar"
    assert status(SPARK_4, libraries([], [jars])) == [("Spark's Kafka connector", "ok")]


@pytest.mark.parametrize("coordinate", ["nonsense", "a:b", "a:b:", "a:b:1:2"])
def test_coordinates_that_spark_refuses_are_refused(coordinate):
    with pytest.raises(UsageError, match=f"packages={coordinate!r}: expected group:artifact:version"):
        libraries([coordinate], [])


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
    (check,) = check_connector(spark, list(libraries([coordinate], [])))
    assert check.status == "fail"
    assert check.found.endswith(found)
    assert check.remedy == f"use {right}"


def test_a_connector_of_another_version_that_was_tried_fits():
    spark = Spark("4.3.0", "2.13")
    (check,) = check_connector(spark, libraries(["org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"], []))
    assert check.status == "ok"
    assert check.found.endswith("which was tried with Spark 4.3.0")
    (wrong,) = check_connector(spark, libraries([FITS], []))
    assert wrong.remedy == (
        "use org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0, or "
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 if Maven does not have it"
    )


def test_without_any_the_right_coordinate_is_named():
    (check,) = check_connector(SPARK_4, [])
    assert check.status == "ok"
    assert FITS in check.found


def test_a_kafka_clients_beside_the_connector_s_own_is_a_warning():
    jars = ["/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar", "/jars/kafka-clients-3.9.0.jar"]
    for found in (libraries([FITS, "org.apache.kafka:kafka-clients:3.4.1"], []), libraries([], jars)):
        assert status(SPARK_4, found) == [("Spark's Kafka connector", "ok"), ("kafka-clients", "warn")]


def test_there_is_nothing_to_compare_with_where_no_spark_is():
    assert status(None, libraries([FITS], [])) == [("Spark's Kafka connector", "warn")]
    assert status(None, []) == []


@pytest.mark.parametrize(("version", "scala"), [("3.5.3", "2.12"), ("4.0.0", "2.13"), ("4.2.0.dev1", "2.13")])
def test_scala_of_a_spark_from_pypi(version, scala):
    assert default_spark(version).scala == scala


def test_a_spark_is_recognised_by_its_core_jar():
    assert spark_of_jars(["scala-library-2.13.16.jar", "spark-core_2.13-3.5.3.jar"]) == Spark("3.5.3", "2.13")
    assert spark_of_jars(["spark-connect-client-jvm_2.13-4.0.0.jar"]) is None
