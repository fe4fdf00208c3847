"""What a store's offsets prove about the topics that a connection leads to."""

import time
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import filled_broker
from memory_clients import open_client

from airflow_kafka_offsets.errors import GroupMovedError
from airflow_kafka_offsets.hooks import store as stores
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition, committed_offsets
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.spark.stores import SqlOffsetStore

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker():
    return filled_broker([int((time.time() - 60) * 1000)] * 10)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store whose pipeline has saved offset 8, half a minute ago."""
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setattr(stores, "sql_engine", lambda *_names: sa.create_engine(url))
    engine = sa.create_engine(url)
    store = SqlOffsetStore(engine)
    store.create_table()
    with engine.begin() as connection:
        store.save(connection, "g", {ORDERS: OffsetRange(0, 8)})
        connection.execute(
            sa.update(store.table).values(updated_at=sa.text("datetime('now', '-30 seconds')"))
        )
    yield store, engine
    engine.dispose()


@pytest.fixture
def publish(broker):
    """publish() -> where the group is then; ``rendered`` replaces templates, as Airflow does."""

    def publish(rendered=None, **parameters):
        names = {"task_id": "publish", "group_id": "g", "store_conn_id": "db", **parameters}
        task: Any = CommitOffsetsOperator(**names)
        vars(task).update(rendered or {})
        task.open_client = lambda: open_client(broker)
        task.execute({})
        return committed_offsets(open_client(broker).committed("g", [ORDERS]))[ORDERS]

    return publish


@pytest.mark.usefixtures("store")
def test_offsets_that_were_saved_before_a_topics_records_are_of_another_topic(broker, publish):
    assert publish() == 8
    # Kafka deletes the group's commits with the topic.
    broker.create("orders")
    broker.append("orders", 0, [int(time.time() * 1000) - 5_000] * 10)
    with pytest.raises(AirflowFailException, match="the topic was deleted and created again"):
        publish()
    assert committed_offsets(open_client(broker).committed("g", [ORDERS])) == {ORDERS: None}
    assert publish(allow_new_cluster=True) == 8


def test_a_later_commit_of_the_pipeline_is_compared_by_its_ids_only(broker, publish, store):
    assert publish() == 8
    broker.append("orders", 0, [int(time.time() * 1000) - 5_000 + n for n in range(10)])
    # The database's clock may be behind that of the producers.
    saved, engine = store
    with engine.begin() as connection:
        connection.execute(sa.update(saved.table).values(until_offset=15))
    assert publish() == 15


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["store_conn_id", "store_table", "store_pipeline"])
def test_a_name_that_renders_to_a_number_is_refused_by_its_parameter(publish, name):
    parameters = {"store_conn_id": "db", name: "{{ params.it }}"}
    with pytest.raises(AirflowFailException, match=f"{name}: found int; expected text"):
        publish(rendered={name: 42}, **parameters)


def test_a_store_that_is_saved_to_and_published_meanwhile_is_no_way_back(broker, publish, store, monkeypatch):
    saved, engine = store
    log_ranges, others = OffsetsClient.log_ranges, [1]

    def save_and_publish(self, *arguments, **how):
        if others:
            others.pop()
            with engine.begin() as connection:
                saved.save(connection, "g", {ORDERS: OffsetRange(8, 9)})
            assert publish() == 9
        return log_ranges(self, *arguments, **how)

    # After the store was read, and before the group is.
    monkeypatch.setattr(OffsetsClient, "log_ranges", save_and_publish)
    with pytest.raises(GroupMovedError, match="later offsets since these were read; nothing was changed"):
        publish()
    assert publish() == 9
