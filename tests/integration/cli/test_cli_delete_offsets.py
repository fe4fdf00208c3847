"""``group delete-offsets`` deletes the offsets of a topic, and keeps the others."""

import json
import logging

import pytest

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.secured import SASL_SSL
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration
pytest.importorskip("kafka")


@pytest.fixture
def kept(make_topic, produce):
    name = make_topic(1)
    produce(name, {0: 10})
    return name


@pytest.fixture
def group(topic, kept, new_group, commit):
    """A group that has committed to two topics, of which it has left the first one."""
    name = new_group()
    commit(name, topic, {0: 7, 1: 2})
    commit(name, kept, {0: 5})
    return name


@pytest.fixture
def held(broker, group):
    """held() -> {(topic, partition): offset} of the group."""

    def look():
        found = broker.committed_everywhere(group)
        return {(tp.topic, tp.partition): commit.offset for tp, commit in found.items()}

    return look


DELETE = "group delete-offsets GROUP --topic TOPIC"


def test_offsets_of_a_topic_are_deleted_only_with_execute_and_come_back(do, kept, held, tmp_path):
    before = held()
    shown = do(DELETE)
    assert (shown.code, "Nothing was changed: give --execute" in shown.err) == (0, True)
    assert held() == before

    saved = tmp_path / "saved.csv"
    done = do(f"{DELETE} --execute --save {saved}")
    assert done.code == 0, done.err
    assert "2 of 2 offsets deleted" in done.out
    assert held() == {(kept, 0): 5}

    assert do(f"group restore GROUP --from-file {saved} --execute").code == 0
    assert held() == before


def test_the_receipt_restores_them(do, topic, held, tmp_path):
    before = held()
    done = do(f"{DELETE}:1 --execute --output json")
    (receipt,) = json.loads(done.out)["groups"]
    assert (receipt["deleted"], receipt["before"]) == (True, {topic: {"1": 2}})
    assert held() == {key: at for key, at in before.items() if key != (topic, 1)}
    file = tmp_path / "receipt.json"
    file.write_text(done.out)
    assert do(f"group restore GROUP --receipt {file} --execute").code == 0
    assert held() == before


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("group delete-offsets GROUP", 2, "--topic is missing"),
        (
            "group delete-offsets GROUP --topic not-there",
            1,
            "topic not-there is not on the broker: correct --topic",
        ),
        (
            "group delete-offsets nobody-ever --topic TOPIC",
            1,
            "there is no group 'nobody-ever': correct GROUP",
        ),
        ("group delete-offsets GROUP --topic OTHER", 1, "has no committed offsets of"),
    ],
)
def test_what_is_not_there_is_refused(do, make_topic, held, line, code, text):
    before = held()
    done = do(f"{line.replace('OTHER', make_topic(1))} --execute")
    assert (done.code, text in done.err) == (code, True), done.err
    assert held() == before


def test_a_topic_that_members_read_is_refused_before_and_by_the_broker(
    do, group, topic, member, client, held
):
    before = held()
    member(group, topic)
    done = do(f"{DELETE} --execute")
    assert (done.code, "only offsets of topics that no member reads" in done.err) == (1, True)
    (error,) = client.delete_offsets(group, [TopicPartition(topic, 0)]).values()
    assert error == "members of the group read the topic (GROUP_SUBSCRIBED_TO_TOPIC): stop them first"
    assert held() == before


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
        OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=1) as client,
        pytest.raises(Exception, match="no usable answer from 127.0.0.1:1"),
    ):
        client.delete_offsets(new_group(), [TopicPartition("t", 0)])
