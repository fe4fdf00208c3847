"""Does a job read exactly the records of its window, and does it hear of it when it cannot?"""

import json
import re
import time

import pytest
from breakable_kafka import create_users
from confluent_kafka import Producer
from spark_session import window

from airflow_kafka_offsets.errors import BrokerAuthenticationError, UsageError, WindowReadError
from airflow_kafka_offsets.spark import audit_window, commit_ranges, read, read_window, reading_window

CONF = "spark.kafkaOffsets.window"
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def rows(frame):
    return sorted((row["partition"], row["offset"], bytes(row["value"])) for row in frame.collect())


@pytest.fixture
def transactional(bootstrap_servers):
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": f"tests-{time.monotonic_ns()}"}
    producer = Producer(settings | {"log_level": 0})
    producer.init_transactions(30)
    return producer


def in_transaction(producer, topic, *values):
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)


@pytest.fixture
def conf(spark):
    """conf(value) is what --conf spark.kafkaOffsets.window=value does for the job."""
    yield lambda value: spark.conf.set(CONF, value)
    spark.conf.unset(CONF)


def test_the_rows_are_the_records_of_the_window_and_no_others(spark, make_topic, produce, options):
    topic = make_topic(3)
    produce(topic, {0: 10, 1: 4})
    frame = read_window(spark, window(topic, (2, 5), (0, 4), (0, 0)), options)
    assert frame.columns == COLUMNS
    # What is written after the window is none of its business.
    produce(topic, {0: 3, 1: 3, 2: 3})
    expected = [(0, n, b"%d" % n) for n in (2, 3, 4)] + [(1, n, b"%d" % n) for n in range(4)]
    assert rows(frame) == expected


def test_an_empty_window_has_no_rows(spark, make_topic, produce, options):
    topic = make_topic(2)
    produce(topic, {0: 3})
    assert rows(read_window(spark, window(topic, (3, 3), (0, 0)), options, exact_count=True)) == []


def test_a_job_finds_the_window_that_its_dag_planned_in_its_configuration(
    spark, make_topic, produce, options, conf
):
    topic = make_topic(1)
    produce(topic, {0: 4})
    conf(json.dumps(window(topic, (1, 3)).as_json()))
    assert rows(read_window(spark, options=options)) == [(0, 1, b"1"), (0, 2, b"2")]


def test_a_window_that_is_too_long_for_the_configuration_is_in_a_file(
    spark, make_topic, produce, options, conf, tmp_path
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    file = tmp_path / "a window.json"
    file.write_text(json.dumps(window(topic, (0, 1)).as_json()))
    conf(file.as_uri())
    assert rows(read_window(spark, options=options)) == [(0, 0, b"0")]
    conf(str(file))
    assert rows(read_window(spark, options=options)) == [(0, 0, b"0")]


def test_a_file_elsewhere_is_read_with_the_storage_that_spark_has(
    spark, make_topic, produce, options, tmp_path, monkeypatch
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    file = tmp_path / "window.json"
    file.write_text(json.dumps(window(topic, (0, 1)).as_json(), indent=1))
    # As if this machine's files were on HDFS.
    monkeypatch.setattr(read, "_REMOTE", re.compile("file:/"))
    assert rows(read_window(spark, file.as_uri(), options)) == [(0, 0, b"0")]
    with pytest.raises(UsageError, match=r"gone\.json cannot be read \(AnalysisException\)"):
        read_window(spark, (tmp_path / "gone.json").as_uri(), options)


def test_without_a_window_nothing_is_read(spark, options, tmp_path):
    with pytest.raises(UsageError, match=r"no window was given.* has no spark\.kafkaOffsets\.window"):
        read_window(spark, options=options)
    with pytest.raises(UsageError, match=r"gone\.json cannot be read \(FileNotFoundError\)"):
        read_window(spark, str(tmp_path / "gone.json"), options)


def test_a_partition_that_was_added_since_does_not_stand_in_the_way(
    spark, make_topic, produce, options, grow
):
    topic = make_topic(1)
    produce(topic, {0: 3})
    grow(topic, 2)
    assert rows(read_window(spark, window(topic, (1, 3)).as_json(), options)) == [(0, 1, b"1"), (0, 2, b"2")]


def test_headers_and_more_spark_partitions_are_the_sources_own_options(spark, make_topic, produce, options):
    topic = make_topic(1)
    produce(topic, [{"value": b"%d" % n, "partition": 0, "headers": [("h", b"x")]} for n in range(8)])
    # The last one is what the read has in any case.
    own = {"minPartitions": 4, "includeHeaders": True, "failOnDataLoss": "true"}
    frame = read_window(spark, window(topic, (0, 8)), {**options, **own})
    assert frame.columns == [*COLUMNS, "headers"]
    found = frame.selectExpr("headers", "spark_partition_id() AS piece").collect()
    assert {row["headers"][0]["key"] for row in found} == {"h"}
    assert {row["piece"] for row in found} == {0, 1, 2, 3}


def test_records_that_retention_has_taken_are_counted_and_refused(
    spark, make_topic, produce, options, delete_records
):
    topic = make_topic(2)
    produce(topic, {0: 10, 1: 2})
    delete_records(topic, {0: 6})
    with pytest.raises(
        WindowReadError, match="nothing was read: retention has deleted 4 records of the window"
    ) as refused:
        read_window(spark, window(topic, (2, 9), (0, 2)), options)
    assert f"{topic}-0: the window starts at 2, the log at 6" in str(refused.value)


def test_an_end_beyond_the_log_is_refused_before_spark_waits_for_it(spark, make_topic, produce, options):
    topic = make_topic(1)
    produce(topic, {0: 3})
    started = time.monotonic()
    with pytest.raises(WindowReadError, match=r"the window ends at 5, the log at 3"):
        read_window(spark, window(topic, (0, 5)), options)
    assert time.monotonic() - started < 20


def test_a_topic_that_is_not_there_is_refused(spark, options):
    with pytest.raises(WindowReadError, match="nothing was read: .*no-such-topic-0 is not on"):
        read_window(spark, window("no-such-topic", (0, 1)), options)


def test_a_block_that_has_read_a_window_whole_ends_well(spark, make_topic, produce, options):
    topic = make_topic(1)
    produce(topic, {0: 3})
    with reading_window(spark, window(topic, (0, 3)), options, exact_count=True) as records:
        assert records.count() == 3


def test_records_that_go_while_a_block_reads_are_noticed_at_its_end(
    spark, make_topic, produce, options, delete_records
):
    topic = make_topic(1)
    produce(topic, {0: 5})

    def job():
        with reading_window(spark, window(topic, (0, 5)), options) as records:
            assert records.count() == 5
            delete_records(topic, {0: 2})

    with pytest.raises(WindowReadError, match="do not commit it: retention has deleted 2 records"):
        job()


def test_a_failing_block_keeps_its_own_error(spark, make_topic, produce, options, delete_records):
    topic = make_topic(1)
    produce(topic, {0: 5})

    def job():
        with reading_window(spark, window(topic, (0, 5)), options):
            delete_records(topic, {0: 2})
            raise ArithmeticError("of the job")

    with pytest.raises(ArithmeticError, match="of the job"):
        job()


def test_rows_are_not_left_out_when_records_go_before_they_are_read(
    spark, make_topic, produce, options, delete_records
):
    topic = make_topic(1)
    produce(topic, {0: 5})
    frame = read_window(spark, window(topic, (0, 5)), options)
    delete_records(topic, {0: 2})
    with pytest.raises(
        Exception, match=r"(?i)data may have been (lost|missed)|KAFKA_DATA_LOSS|OffsetOutOfRange"
    ):
        frame.collect()


def test_transactions_leave_fewer_rows_than_offsets(spark, make_topic, transactional, options):
    topic = make_topic(1)
    in_transaction(transactional, topic, b"a", b"b")
    transactional.commit_transaction(30)
    in_transaction(transactional, topic, b"c")
    transactional.abort_transaction(30)
    in_transaction(transactional, topic, b"d")
    transactional.commit_transaction(30)
    # a b marker, c marker, d marker
    all_of_it = window(topic, (0, 7))
    committed = {**options, "kafka.isolation.level": "read_committed"}
    assert rows(read_window(spark, all_of_it, committed)) == [(0, 0, b"a"), (0, 1, b"b"), (0, 5, b"d")]
    assert len(rows(read_window(spark, all_of_it, options))) == 4
    with pytest.raises(
        WindowReadError, match="nothing was read: 4 of 7 offsets of the window have no record"
    ):
        read_window(spark, all_of_it, committed, exact_count=True)


def test_an_open_transaction_is_not_waited_for(spark, make_topic, produce, transactional, options):
    topic = make_topic(1)
    produce(topic, {0: 2})
    in_transaction(transactional, topic, b"a")
    committed = {**options, "kafka.isolation.level": "read_committed"}
    try:
        with pytest.raises(WindowReadError, match="behind an open transaction.* readable is up to 2"):
            read_window(spark, window(topic, (0, 3)), committed)
        assert len(rows(read_window(spark, window(topic, (0, 3)), options))) == 3
    finally:
        transactional.abort_transaction(30)


def test_one_set_of_options_is_enough_for_a_broker_that_asks_for_a_password(
    spark, make_topic, produce, secured_kafka, new_group
):
    topic, group = make_topic(1, on=secured_kafka.plain), new_group()
    produce(topic, {0: 3}, on=secured_kafka.plain)
    create_users(secured_kafka.plain, {group: 'it\'s "secret"'})
    secured_kafka.grant(group, ("topic", topic, "Read"), ("group", group, "Read"))
    options = secured_kafka.spark_options(group, 'it\'s \\"secret\\"')
    wanted = window(topic, (1, 3))
    assert rows(read_window(spark, wanted, options)) == [(0, 1, b"1"), (0, 2, b"2")]
    # This one goes through librdkafka.
    assert commit_ranges(group, wanted.ranges, options=options) == wanted.end
    options["kafka.sasl.jaas.config"] = options["kafka.sasl.jaas.config"].replace("it's", "nobody's")
    with pytest.raises(BrokerAuthenticationError) as refused:
        read_window(spark, wanted, options)
    assert "secret" not in str(refused.value)


def test_a_session_without_a_jvm_reads_and_audits_the_same(connect, make_topic, produce, options):
    topic = make_topic(2)
    produce(topic, {0: 4, 1: 1})
    planned = window(topic, (1, 3), (0, 1))
    with reading_window(connect, planned, options) as records:
        assert rows(records) == [(0, 1, b"1"), (0, 2, b"2"), (1, 0, b"0")]
        audit_window(records, planned, options=options).require_complete()
        found = audit_window(records.where("offset != 2"), planned, options=options)
        assert found.as_json()["lost"] == {topic: {"0": [[2, 3]]}}
    with pytest.raises(WindowReadError, match="the window ends at 9, the log at 4"):
        read_window(connect, window(topic, (1, 9), (0, 1)), options)
