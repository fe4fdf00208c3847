"""``group delete-offsets`` deletes the offsets of a topic, and keeps the others."""

from __future__ import annotations

import json
import logging

import pytest

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.secured import SASL_SSL
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration
pytest.importorskip("kafka")


@pytest.fixture(autouse=True)
def the_broker(bootstrap_servers, monkeypatch):
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER", bootstrap_servers)


@pytest.fixture
def group(make_topic, produce, new_group, client):
    """A group that has committed to two topics, of which it has left the first one."""
    name, left, kept = new_group(), make_topic(partitions=2), make_topic()
    produce(left, {0: 10, 1: 10})
    produce(kept, {0: 10})
    client.commit(name, {TopicPartition(left, 0): 7, TopicPartition(left, 1): 2, TopicPartition(kept, 0): 5})
    return name, left, kept


def held(client, name):
    return {
        (tp.topic, tp.partition): commit.offset for tp, commit in client.committed_everywhere(name).items()
    }


def test_offsets_of_a_topic_are_deleted_only_with_execute_and_come_back(cli, group, client, tmp_path):
    name, left, kept = group
    before = held(client, name)
    shown = cli("group", "delete-offsets", name, "--topic", left)
    assert (shown.code, "Nothing was changed: give --execute" in shown.err) == (0, True)
    assert held(client, name) == before

    saved = tmp_path / "saved.csv"
    done = cli("group", "delete-offsets", name, "--topic", left, "--execute", "--save", str(saved))
    assert done.code == 0, done.err
    assert "2 of 2 offsets deleted" in done.out
    assert held(client, name) == {(kept, 0): 5}

    assert cli("group", "restore", name, "--from-file", str(saved), "--execute").code == 0
    assert held(client, name) == before


def test_the_receipt_restores_them(cli, group, client, tmp_path):
    name, left, _ = group
    before = held(client, name)
    done = cli("group", "delete-offsets", name, "--topic", f"{left}:1", "--execute", "--output", "json")
    (receipt,) = json.loads(done.out)["groups"]
    assert (receipt["deleted"], receipt["before"]) == (True, {left: {"1": 2}})
    assert held(client, name) == {key: at for key, at in before.items() if key != (left, 1)}
    file = tmp_path / "receipt.json"
    file.write_text(done.out)
    assert cli("group", "restore", name, "--receipt", str(file), "--execute").code == 0
    assert held(client, name) == before


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ([], 2, "--topic is missing"),
        (["--topic", "not-there"], 1, "topic not-there is not on the broker: correct --topic"),
    ],
)
def test_what_is_not_named_rightly_is_refused(cli, group, client, options, code, text):
    name, *_ = group
    before = held(client, name)
    done = cli("group", "delete-offsets", name, *options, "--execute")
    assert (done.code, text in done.err) == (code, True), done.err
    assert held(client, name) == before


def test_a_group_that_is_not_there_or_has_none_of_the_topic_is_refused(cli, group, make_topic):
    name, left, _ = group
    done = cli("group", "delete-offsets", "nobody-ever", "--topic", left, "--execute")
    assert (done.code, "there is no group 'nobody-ever': correct GROUP" in done.err) == (1, True)
    done = cli("group", "delete-offsets", name, "--topic", make_topic(), "--execute")
    assert (done.code, "has no committed offsets of" in done.err) == (1, True)


def test_a_topic_that_members_read_is_refused_before_and_by_the_broker(
    cli, new_group, member, make_topic, client
):
    name, topic = new_group(), make_topic()
    client.commit(name, {TopicPartition(topic, 0): 0})
    member(name, topic)
    done = cli("group", "delete-offsets", name, "--topic", topic, "--execute")
    assert (done.code, "only offsets of topics that no member reads" in done.err) == (1, True)
    (error,) = client.delete_offsets(name, [TopicPartition(topic, 0)]).values()
    assert error == "members of the group read the topic (GROUP_SUBSCRIBED_TO_TOPIC): stop them first"
    assert held(client, name) == {(topic, 0): 0}


@pytest.mark.parametrize("login", ["SASL_PLAINTEXT", SASL_SSL])
def test_it_logs_in_as_the_connection_does_and_logs_no_password(
    secured_kafka, make_topic, new_group, login, caplog
):
    topic, name = make_topic(on=secured_kafka.plain), new_group()
    tp = TopicPartition(topic, 0)
    config = secured_kafka.login("admin", listener=login)
    caplog.set_level(logging.DEBUG)
    with OffsetsClient(config) as client:
        client.commit(name, {tp: 0})
        assert client.delete_offsets(name, [tp]) == {tp: None}
        assert client.committed(name, [tp]) == {tp: None}
    assert str(config["sasl.password"]) not in caplog.text


def test_the_rights_that_are_missing_are_named(secured_kafka, make_topic, new_group):
    topic, name = make_topic(on=secured_kafka.plain), new_group()
    tp = TopicPartition(topic, 0)
    user = secured_kafka.user("carol", ("topic", topic, "Read"), ("group", name, "Read"))
    with OffsetsClient(user) as client:
        client.commit(name, {tp: 0})
        with pytest.raises(Exception, match="Delete"):
            client.delete_offsets(name, [tp])
        assert client.committed(name, [tp])[tp] is not None


def test_a_wrong_password_is_final_and_not_shown(secured_kafka, new_group):
    config = {**secured_kafka.login("admin", listener="SASL_PLAINTEXT"), "sasl.password": "not-this-one"}
    with (
        OffsetsClient(config, timeout=20) as client,
        pytest.raises(Exception, match="refused the credentials") as refused,
    ):
        client.delete_offsets(new_group(), [TopicPartition("t", 0)])
    assert "not-this-one" not in str(refused.value)


def test_a_broker_that_does_not_answer_ends_in_time(new_group):
    with (
        OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=3) as client,
        pytest.raises(Exception, match="no usable answer from 127.0.0.1:1"),
    ):
        client.delete_offsets(new_group(), [TopicPartition("t", 0)])
