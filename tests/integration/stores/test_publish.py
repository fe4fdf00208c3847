"""What a database holds, in its consumer group."""

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from sqlalchemy import create_engine

from airflow_kafka_offsets.errors import (
    NoCommitError,
    OffsetsFormatError,
    SetupError,
    StorageUnavailableError,
    UsageError,
)
from airflow_kafka_offsets.hooks import store
from airflow_kafka_offsets.hooks.store import stored_offsets
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.spark.stores import SqlOffsetStore

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]


@pytest.fixture
def save(postgres):
    """save(pipeline, topic, 5, 3, table=...) stores the ends of the topic's partitions."""
    engine = create_engine(postgres.url)

    def ends(pipeline, topic, *ends, table="kafka_offsets"):
        store = SqlOffsetStore(engine, table)
        store.create_table()
        with engine.begin() as connection:
            ranges = {TopicPartition(topic, n): OffsetRange(0, end) for n, end in enumerate(ends)}
            assert store.save(connection, pipeline, ranges)

    yield ends
    engine.dispose()


def publish(group, **parameters):
    task = CommitOffsetsOperator(task_id="publish", group_id=group, store_conn_id="results", **parameters)
    return task.execute({})


def test_the_group_gets_what_is_stored_under_its_name(save, make_topic, produce, new_group, kafka_tools):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 5, 1: 3})
    save(group, topic, 5, 3)
    receipt = publish(group)
    assert receipt["after"] == {topic: {"0": 5, "1": 3}}
    assert receipt["source"] == {"store": "results", "table": "kafka_offsets", "pipeline": group}
    assert [row["lag"] for row in kafka_tools.describe_rows(group)] == [0, 0]


def test_a_pipelines_checkpoint_is_left_aside(save, make_topic, produce, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    save(group, topic, 4)
    receipt = publish(group, checkpoint_location="file:///nowhere", topics=[topic])
    assert receipt["after"] == {topic: {"0": 4}}


def test_another_table_and_another_name(save, make_topic, produce, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    save("counting", topic, 2, table=f"public.offsets_of_{group.replace('-', '_')}")
    table = f"offsets_of_{group.replace('-', '_')}"
    assert publish(group, store_table=table, store_pipeline="counting")["after"] == {topic: {"0": 2}}


def test_several_groups_need_the_pipelines_name(save, make_topic, produce, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    save(f"all-{group}", topic, 5)
    with pytest.raises(AirflowFailException, match="store_pipeline is missing"):
        publish({topic: group})
    receipt = publish({topic: group}, store_pipeline=f"all-{group}")
    assert receipt["after"] == {topic: {"0": 5}}


def test_a_store_that_was_set_back_does_not_move_the_group_back(save, make_topic, produce, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    save(f"before-{group}", topic, 5)
    save(f"after-{group}", topic, 2)
    publish(group, store_pipeline=f"before-{group}")
    with pytest.raises(AirflowFailException, match="allow_rewind"):
        publish(group, store_pipeline=f"after-{group}")
    receipt = publish(group, store_pipeline=f"after-{group}", allow_rewind=True)
    assert receipt["after"] == {topic: {"0": 2}}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE {} SET until_offset = -5", "-5"),
        ("ALTER TABLE {} ALTER until_offset TYPE text", "'4'"),
        ("ALTER TABLE {} ALTER until_offset TYPE numeric(9, 1)", r"Decimal\('4.0'\)"),
        ("ALTER TABLE {0} ALTER until_offset DROP NOT NULL; UPDATE {0} SET until_offset = NULL", "None"),
    ],
    ids=["negative", "text", "numeric", "nothing"],
)
def test_a_row_that_holds_no_offset_is_named(save, postgres, new_group, change, found):
    table = f"edited_{new_group().replace('-', '_')}"
    save("shop", "orders", 4, table=table)
    engine = create_engine(postgres.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(change.format(table))
    engine.dispose()
    with pytest.raises(
        OffsetsFormatError, match=f"pipeline 'shop' of the store: found the row 'orders', 0, {found};"
    ):
        stored_offsets("results", "shop", table)


def test_a_pipeline_that_saved_nothing_is_named(save):
    save("shop", "orders", 5, table="shops_only")
    with pytest.raises(NoCommitError, match="found no offsets of pipeline 'shpo' in table 'shops_only'"):
        stored_offsets("results", "shpo", "shops_only")


def test_a_table_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"table 'nowhere' cannot be read .*create_table"):
        stored_offsets("results", "shop", "nowhere")


def test_a_table_that_sqlite_does_not_have_is_named_and_a_database_that_is_down_is_tried_again(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(store, "sql_engine", lambda *_: create_engine(f"sqlite:///{tmp_path}/there.db"))
    with pytest.raises(UsageError, match=r"table 'nowhere' cannot be read \(no such table"):
        stored_offsets("results", "shop", "nowhere")
    down = f"postgresql+psycopg://postgres@/postgres?host={tmp_path}"
    monkeypatch.setattr(store, "sql_engine", lambda *_: create_engine(down))
    with pytest.raises(StorageUnavailableError, match="check that the database is up"):
        stored_offsets("results", "shop")


def test_a_connection_whose_dialect_is_not_installed_says_so(monkeypatch):
    connection = {"conn_type": "postgres", "extra": {"sqlalchemy_scheme": "postgresql+nodriver"}}
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps(connection))
    with pytest.raises(SetupError, match="the database's driver is missing"):
        stored_offsets("odd", "shop")


def test_a_connection_that_is_no_database_is_refused():
    with pytest.raises(UsageError, match=r"connection 'kafka_default'.*common\.sql"):
        stored_offsets("kafka_default", "shop")
