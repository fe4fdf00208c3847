"""A DataFrame is audited: each loss, each double and each foreign row is found, and nothing else is."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from spark_session import window

from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark import audit_window, read_window

SCHEMA = "topic string, partition int, offset bigint, value string"
ROWS = 10_000_000 if os.environ.get("LONG_TESTS") else 100_000


@pytest.fixture(params=["spark", pytest.param("connect", marks=pytest.mark.long)])
def session(request):
    """A classic session, and one of Spark Connect."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def table(session, tmp_path):
    """table(topic, {partition: offsets}) -> a Parquet table of these rows, as Spark reads it."""

    def make(topic, offsets, schema=SCHEMA):
        rows = [(topic, number, offset, "x") for number, its in offsets.items() for offset in its]
        path = str(tmp_path / f"table-{len(list(tmp_path.iterdir()))}")
        session.createDataFrame(rows, schema).write.parquet(path)
        return session.read.parquet(path)

    return make


def counted(certificate):
    return {name: count for name, count in certificate.counts.items() if count}


def test_what_a_job_has_written_of_its_window_is_complete(spark, make_topic, produce, options, tmp_path):
    topic = make_topic(2)
    produce(topic, {0: 30, 1: 12})
    planned = window(topic, (5, 25), (0, 12))
    path = str(tmp_path / "bronze")
    read_window(spark, planned, options).write.parquet(path)
    # Another window's rows.
    read_window(spark, window(topic, (25, 30)), options).write.mode("append").parquet(path)
    found = audit_window(spark.read.parquet(path), planned, options=options, name="bronze")
    found.require_complete()
    assert found.verdict == "complete"
    assert counted(found) == {"offsets": 32, "rows": 32}
    assert found.audited["table"] == "bronze"
    assert Certificate.parse(found.as_text()) == found


def test_lost_double_and_foreign_rows_are_found(table, make_topic, produce, options):
    topic = make_topic(2)
    produce(topic, {0: 30, 1: 12})
    frame = table(topic, {0: [4, *range(5, 10), *range(12, 25)], 1: [*range(12), 3], 7: [5]})
    planned = window(topic, (5, 25), (0, 12))
    found = audit_window(frame, planned, options=options)
    assert counted(found) == {"offsets": 32, "rows": 31, "lost": 2, "doubled": 1}
    with pytest.raises(
        AuditError, match=f"2 records lost \\({topic}-0: offsets 10 to 11\\); 1 record doubled"
    ):
        found.require_complete()
    found = audit_window(frame, planned, options=options, exclusive=True)
    assert counted(found) == {"offsets": 32, "rows": 31, "lost": 2, "doubled": 1, "foreign": 2}
    assert {(each.partition, each.first, each.rows) for each in found.foreign} == {(0, 4, 1), (7, 5, 1)}


def test_markers_and_aborted_records_are_no_loss(
    table, make_topic, options, bootstrap_servers, broker, wait_until
):
    topic = make_topic(1)
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.flush(30)
        producer.abort_transaction(30) if number % 3 == 0 else producer.commit_transaction(30)
    committed = [2 * number for number in range(6) if number % 3]
    planned, partition = window(topic, (0, 12)), TopicPartition(topic, 0)
    # The broker writes a marker some time after it has confirmed the end of a transaction.
    wait_until(lambda: broker.log_ranges([partition], isolation_level="read_committed")[partition].end == 12)
    found = audit_window(table(topic, {0: committed[1:]}), planned, options=options)
    assert counted(found) == {"offsets": 12, "rows": 3, "lost": 1, "without_record": 8}
    assert found.lost == {partition: (OffsetRange(committed[0], committed[0] + 1),)}


def test_what_retention_has_deleted_and_what_is_not_asked_cannot_be_said(
    spark, make_topic, produce, options, delete_records
):
    topic = make_topic(1)
    produce(topic, {0: 10})
    frame = spark.createDataFrame([(topic, 0, offset, "x") for offset in range(3, 9)], SCHEMA)
    delete_records(topic, {0: 2})
    planned = window(topic, (0, 10))
    found = audit_window(frame, planned, options=options)
    assert counted(found) == {"offsets": 10, "rows": 6, "lost": 2, "undecided": 2}
    assert found.undecided.keys() == {"retention"}
    found = audit_window(frame, planned)
    assert counted(found) == {"offsets": 10, "rows": 6, "undecided": 4}
    with pytest.raises(AuditError, match="is undecided: .* options= was not given"):
        found.require_complete()


def test_columns_are_named_and_checked(session):
    rows = [("orders", 0, 5, "5"), ("orders", 0, 6, "6")]
    frame = session.createDataFrame(rows, "`the topic` string, `part``ition` smallint, o int, text string")
    names: dict[str, Any] = {
        "topic_column": "the topic",
        "partition_column": "part`ition",
        "offset_column": "o",
    }
    planned = window("orders", (5, 7))
    assert audit_window(frame, planned, **names).verdict == "complete"
    with pytest.raises(UsageError, match="has no column 'topic', 'partition', 'offset' .it has 'the topic'"):
        audit_window(frame, planned)
    with pytest.raises(UsageError, match="column 'text' is of type string; expected a whole number"):
        audit_window(frame, planned, **{**names, "offset_column": "text"})
    with pytest.raises(UsageError, match="column 'o' is of type int; expected string"):
        audit_window(frame, planned, **{**names, "topic_column": "o"})
    with pytest.raises(UsageError, match="no partitions"):
        audit_window(frame, OffsetWindow({}), **names)
    with pytest.raises(UsageError, match="no window was given"):
        audit_window(frame, **names)
    with pytest.raises(UsageError, match="found .* expected the name of a topic"):
        audit_window(frame, window("o' OR '1'='1", (0, 1)), **names)


def test_nulls_and_an_empty_table(spark):
    planned = window("orders", (0, 2))
    rows = [
        ("orders", 0, 0, "x"),
        ("orders", 0, 1, "x"),
        (None, 0, 1, "x"),
        ("orders", None, 1, "x"),
        ("orders", 0, None, "x"),
    ]
    frame = spark.createDataFrame(rows, SCHEMA)
    assert audit_window(frame, planned).verdict == "complete"
    assert counted(audit_window(frame, planned, exclusive=True)) == {"offsets": 2, "rows": 2, "foreign": 3}
    empty = audit_window(spark.createDataFrame([], SCHEMA), planned)
    assert counted(empty) == {"offsets": 2, "undecided": 2}


@pytest.mark.long
def test_many_partitions_and_topics(spark):
    planned = OffsetWindow(
        {
            TopicPartition(topic, number): OffsetRange(number % 5, number % 7 + 5)
            for topic in ("orders", "payments")
            for number in range(200)
        }
    )
    rows = [(*tp, offset, "x") for tp in planned.ranges for offset in range(12)]
    assert audit_window(spark.createDataFrame(rows, SCHEMA), planned).verdict == "complete"


@pytest.mark.timeout(1_800)
def test_one_lost_one_double_and_one_foreign_row_among_many(spark, tmp_path):
    third = ROWS // 3
    path = str(tmp_path / "large")
    numbers = spark.range(3 * third).selectExpr(
        "'orders' AS topic",
        "CAST(id % 3 AS INT) AS partition",
        "id DIV 3 AS offset",
        "concat('some hundred characters of a record, as a table has them: ', id) AS value",
    )
    numbers.write.parquet(path)
    whole = spark.read.parquet(path)
    planned = window("orders", (0, third), (0, third), (0, third))

    def seconds(read):
        times = []
        for _ in range(3):
            began = time.monotonic()
            read()
            times.append(time.monotonic() - began)
        return sorted(times)[1]

    plain = seconds(lambda: whole.selectExpr("count(*)", "sum(offset)").collect())
    audited = seconds(lambda: audit_window(whole, planned))
    print(f"Parquet: {ROWS:,} rows, plain {plain:.2f} s, audit {audited:.2f} s: {audited / plain:.2f}")
    assert audit_window(whole, planned).verdict == "complete"
    extra = [("orders", 2, third // 4, "again"), ("orders", 0, third, "of another window")]
    spark.createDataFrame(extra, SCHEMA).write.mode("append").parquet(path)
    wrong = spark.read.parquet(path).where(f"NOT (partition = 1 AND offset = {third // 2})")
    found = audit_window(wrong, planned, exclusive=True)
    one = TopicPartition("orders", 1)
    assert counted(found) == {
        "offsets": 3 * third,
        "rows": 3 * third,
        "doubled": 1,
        "foreign": 1,
        "undecided": 1,
    }
    assert found.undecided["not_read"][one] == (OffsetRange(third // 2, third // 2 + 1),)
    assert found.doubled[TopicPartition("orders", 2)] == (OffsetRange(third // 4, third // 4 + 1),)
