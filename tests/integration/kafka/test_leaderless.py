"""Partitions without a leader: those of a log directory that has failed, while the broker goes on."""

import re
import shutil
from datetime import datetime, timezone
from functools import partial, reduce

import pytest
from confluent_kafka.admin import AdminClient
from deadlines import until

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_groups
from airflow_kafka_offsets.moves.groups import plan_group_resets

pytestmark = pytest.mark.integration

OFFSETS_PARTITIONS = 6


@pytest.fixture(scope="module")
def halved(make_topic, produce, tmp_path_factory):
    """
    (broker, topic, partitions with a leader, partitions without one, partitions of commits without one) of a
    broker one of whose disks has failed.
    """
    base = tmp_path_factory.mktemp("disks")
    disks = [base / name for name in "abc"]
    properties = {
        "log.dirs": ",".join(map(str, disks)),
        "metadata.log.dir": str(disks[0]),
        # It notices a failed disk when it writes there.
        "log.flush.offset.checkpoint.interval.ms": "500",
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    }
    with EmbeddedKafka(base / "kafka", properties=properties) as kafka:
        servers = kafka.bootstrap_servers
        topic = make_topic(6, on=servers)
        produce(topic, dict.fromkeys(range(6), 10), on=servers)
        with OffsetsClient({"bootstrap.servers": servers}) as client:
            client.commit("before", {TopicPartition(topic, number): 5 for number in range(6)})
        shutil.rmtree(disks[1])
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

        def leaderless(admin, topic):
            found = admin.list_topics(topic, timeout=5).topics[topic].partitions
            return sorted(number for number, partition in found.items() if partition.leader == -1)

        without = until(partial(leaderless, admin, topic), "a partition to lose its leader")
        lost = until(partial(leaderless, admin, OFFSETS_TOPIC), "a partition of commits to lose its leader")
        del admin
        yield servers, topic, sorted(set(range(6)) - set(without)), without, lost


@pytest.fixture
def group_on(halved, new_group):
    """group_on(there=...) -> a group whose commits are, or would be, on a partition with or without a leader."""

    def named(*, there):
        # As Kafka's brokers choose it: by the hash of a Java string.
        def has_leader(group):
            number = reduce(lambda found, char: (31 * found + ord(char)) & 0xFFFFFFFF, group, 0)
            return min(number, 2**32 - number) % OFFSETS_PARTITIONS not in halved[-1]

        return next(group for group in iter(new_group, None) if has_leader(group) == there)

    return named


def reset(servers, group, topics):
    with OffsetsClient({"bootstrap.servers": servers}, timeout=4) as client:
        now = datetime.now(tz=timezone.utc)
        plans = plan_group_resets(client, {group: TopicScope.parse(topics)}, Place("latest"), now=now)
        apply_groups(client, PipelinePlan(plans), CommitMetadata(tool="test"))


def test_reset_offsets_with_partition_none_leader(halved, oracle, group_on):
    servers, topic, _, without, _ = halved
    ours, theirs = group_on(there=True), group_on(there=True)
    named = rf"partition {topic}-{without[0]}[^;]* has no leader: [^;]*; [^;]*; restart a broker that holds the partition"
    with pytest.raises(BrokerUnavailableError, match=named):
        reset(servers, ours, topic)
    flags = ("--topic", f"{topic}:{without[0]}", "--to-latest", "--execute", "--timeout", "1000")
    assert oracle.reset(theirs, *flags, on=servers).error is not None
    assert oracle.committed(ours, theirs, on=servers) == {ours: {}, theirs: {}}


def test_reset_offsets_with_offline_partition_not_in_reset_target(halved, oracle, group_on):
    servers, topic, with_leader, *_ = halved
    ours, theirs = group_on(there=True), group_on(there=True)
    target = f"{topic}:{','.join(map(str, with_leader))}"
    reset(servers, ours, target)
    oracle.reset(theirs, "--topic", target, "--to-latest", "--execute", on=servers)
    committed = oracle.committed(ours, theirs, on=servers)
    assert committed[ours] == committed[theirs]
    assert committed[ours] == {TopicPartition(topic, number): 10 for number in with_leader}


def test_groups_whose_commits_have_no_leader_are_named_and_missing_in_no_list(halved, group_on):
    """Kafka's own list leaves them out without a word."""
    servers, topic, with_leader, *_ = halved
    there, not_there = group_on(there=True), group_on(there=False)
    cause = r"__consumer_offsets-\d[^;]* has no leader: none of the brokers that hold it \(1\)"
    with OffsetsClient({"bootstrap.servers": servers}, timeout=4) as client:
        client.commit(there, {TopicPartition(topic, with_leader[0]): 5})
        with pytest.raises(BrokerUnavailableError, match=f"listing groups: partition {cause}"):
            client.list_groups()
        found = client.committed_groups({there: None, not_there: None})
    assert found[there] == {TopicPartition(topic, with_leader[0]): Commit(5)}
    assert re.search(cause, str(found[not_there]))
