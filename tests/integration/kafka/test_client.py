import socket
import struct
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from group_members import member_of

from airflow_kafka_offsets.errors import GroupActiveError, UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.connection import OWN_GROUP, Connections
from airflow_kafka_offsets.kafka.requests import send_commit
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import Commit, LogRange, TopicPartition

pytestmark = pytest.mark.integration


def partitions_of(topic, count=3):
    return [TopicPartition(topic, number) for number in range(count)]


def test_an_open_transaction_is_in_the_log_for_one_isolation_level_only(
    client, bootstrap_servers, make_topic, produce
):
    topic = make_topic(partitions=1)
    produce(topic, {0: 3})
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(20) == 0
    partition = TopicPartition(topic, 0)
    assert client.log_ranges([partition]) == {partition: LogRange(0, 4)}
    assert client.log_ranges([partition], isolation_level="read_committed") == {partition: LogRange(0, 3)}
    producer.abort_transaction(20)


def test_a_static_member_is_still_there_after_it_has_stopped_and_said_to_be_one(
    client, bootstrap_servers, make_topic, new_group
):
    topic, group = make_topic(partitions=1), new_group()
    static = {"group.instance.id": "reader-1", "session.timeout.ms": 6_000}
    with member_of(bootstrap_servers, group, topic, **static):
        pass
    with pytest.raises(GroupActiveError, match=r"a-reader on 127.0.0.1 \('reader-1', a static member, which"):
        client.commit(group, {TopicPartition(topic, 0): 0})


def test_1200_partitions_are_asked_for_and_committed_in_chunks(client, make_topic, new_group, kafka_tools):
    topic, group = make_topic(partitions=1200), new_group()
    partitions = partitions_of(topic, 1200)
    assert client.log_ranges(partitions) == dict.fromkeys(partitions, LogRange(0, 0))
    client.commit(group, dict.fromkeys(partitions, 0))
    assert client.committed(group, partitions) == dict.fromkeys(partitions, Commit(0, ""))
    assert set(client.committed_everywhere(group)) == set(partitions)
    assert client.offsets_for_time(partitions, 0) == dict.fromkeys(partitions)
    assert len(kafka_tools.describe_rows(group)) == 1200


def test_a_commit_that_is_too_large_for_one_request_is_cut(client, make_topic, new_group):
    topic, group = make_topic(partitions=300), new_group()
    partitions = partitions_of(topic, 300)
    metadata = "x" * 4095
    # 1.2 MB: the broker takes one MB at once.
    client.commit(group, {tp: tp.partition for tp in partitions}, metadata)
    assert client.committed(group, partitions) == {tp: Commit(tp.partition, metadata) for tp in partitions}


def commit_as_others_do(
    bootstrap_servers: str, group: str, tp: TopicPartition, offset: int, metadata: bytes
) -> None:
    """OffsetCommit v2 by hand: Java's metadata has no NUL at its end."""

    def text(value: bytes) -> bytes:
        return struct.pack(">h", len(value)) + value

    body = struct.pack(">hhi", 8, 2, 1) + text(b"by-hand") + text(group.encode())
    body += struct.pack(">i", -1) + text(b"") + struct.pack(">q", -1)
    body += struct.pack(">i", 1) + text(tp.topic.encode())
    body += struct.pack(">iiq", 1, tp.partition, offset) + text(metadata)
    host, _, port = bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as broker, broker.makefile("rb") as answers:
        broker.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", answers.read(4))
        assert answers.read(size)[-2:] == b"\0\0"


@pytest.fixture(scope="module")
def forty(make_topic):
    return partitions_of(make_topic(partitions=40), 40)


@pytest.mark.parametrize("size", [1, 8, 23, 24, 25, 200, 1000])
def test_metadata_of_other_clients_never_hide_their_offsets(
    client, bootstrap_servers, forty, new_group, size
):
    group, metadata = new_group(), "µ" * (size // 2) + "x" * (size % 2)
    client.committed_everywhere(group)
    for partition in forty:
        commit_as_others_do(bootstrap_servers, group, partition, partition.partition, metadata.encode())
    found = client.committed(group, forty)
    assert {tp.partition: commit and commit.offset for tp, commit in found.items()} == {
        n: n for n in range(40)
    }
    for commit in found.values():
        assert commit is not None
        assert commit.metadata is None or commit.metadata.startswith(metadata)


def test_a_response_that_nobody_waited_for_is_not_that_of_the_next_commit(
    bootstrap_servers, new_group, make_topic
):
    partition = TopicPartition(make_topic(partitions=1), 0)
    connections = Connections({"bootstrap.servers": bootstrap_servers}, new_group())
    connection = connections.get()
    sent = [ClientPartition(partition.topic, 0, 5)]
    connection.ask(lambda consumer: consumer.commit(offsets=sent, asynchronous=True))
    for _ in range(200):
        connection.drain(0.1)
        if connection.commit_responses:
            break

    missing = TopicPartition(f"{partition.topic}-missing", 0)
    results = send_commit(
        connection, {partition: 7, missing: 0}, dict.fromkeys((partition.topic, missing.topic), ""), 20
    )
    connections.close(5)
    assert results[missing] is not None
    assert results[partition] is not None, "this is the response to the commit before"


def test_threads_share_a_client(client, make_topic, new_group):
    partition, groups = TopicPartition(make_topic(), 0), [new_group() for _ in range(8)]
    failures = []

    def work(group: str) -> None:
        try:
            for number in range(10):
                client.commit(group, {partition: number})
                assert client.committed(group, [partition]) == {partition: Commit(number, "")}
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_closing_leaves_no_thread_behind_and_reading_neither_a_commit_nor_a_group(
    bootstrap_servers, make_topic, produce, new_group
):
    partition = TopicPartition(make_topic(), 0)
    produce(partition.topic, {0: 3})
    before = set(threading.enumerate())
    with OffsetsClient({"bootstrap.servers": bootstrap_servers, "group.id": partition.topic}) as client:
        client.commit(new_group(), {partition: 0})
        assert client.record_times({partition: 0})
        assert client.record_offsets({partition: merge([(0, 2)])}, within=20).records
        groups = {listed.group_id for listed in client.list_groups()}
        assert not groups & {partition.topic, OWN_GROUP}
        assert client.committed_everywhere(OWN_GROUP) == {}
    client.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(UsageError, match="this client was closed"):
        client.partitions()
