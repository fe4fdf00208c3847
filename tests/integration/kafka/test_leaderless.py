"""Partitions without a leader: those of a log directory that has failed, while the broker goes on."""

import shutil
from datetime import datetime, timezone
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient
from deadlines import until

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka import logs, retry
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import Failure
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_groups
from airflow_kafka_offsets.moves.group_reset import plan_resets

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def halved(make_topic, produce, tmp_path_factory):
    """
    (broker, topic, partitions with a leader, partitions without one) of a broker one of whose disks has
    failed.
    """
    base = tmp_path_factory.mktemp("disks")
    disks = [base / name for name in "abc"]
    properties = {
        "log.dirs": ",".join(map(str, disks)),
        "metadata.log.dir": str(disks[0]),
        # It notices a failed disk when it writes there.
        "log.flush.offset.checkpoint.interval.ms": "500",
        "offsets.topic.num.partitions": "1",
    }
    with EmbeddedKafka(base / "kafka", properties=properties) as kafka:
        servers = kafka.bootstrap_servers
        topic = make_topic(6, on=servers)
        produce(topic, dict.fromkeys(range(6), 10), on=servers)
        with OffsetsClient({"bootstrap.servers": servers}) as client:
            client.commit("before", {TopicPartition(topic, number): 5 for number in range(6)})
        held = [{file.name for file in disk.iterdir()} for disk in disks]
        failed = next(number for number in (1, 2) if "__consumer_offsets-0" not in held[number])
        shutil.rmtree(disks[failed])
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

        def leaderless(admin):
            found = admin.list_topics(topic, timeout=5).topics[topic].partitions
            without = sorted(number for number, partition in found.items() if partition.leader == -1)
            return without if len(found) == 6 else []

        without = until(partial(leaderless, admin), "a partition to lose its leader")
        del admin
        yield servers, topic, sorted(set(range(6)) - set(without)), without


def reset(servers, group, topics):
    with OffsetsClient({"bootstrap.servers": servers}, timeout=4) as client:
        now = datetime.now(tz=timezone.utc)
        plans = plan_resets(client, {group: TopicScope.parse(topics)}, Place("latest"), now=now)
        apply_groups(client, PipelinePlan(plans), CommitMetadata(tool="test"))


def test_reset_offsets_with_partition_none_leader(halved, oracle, new_group):
    servers, topic, _, without = halved
    ours, theirs = new_group(), new_group()
    named = rf"partition {topic}-{without[0]}[^;]* has no leader: [^;]*; [^;]*; restart a broker that holds the partition"
    with pytest.raises(BrokerUnavailableError, match=named):
        reset(servers, ours, topic)
    flags = ("--topic", f"{topic}:{without[0]}", "--to-latest", "--execute", "--timeout", "1000")
    assert oracle.reset(theirs, *flags, on=servers).error is not None
    assert oracle.committed(ours, theirs, on=servers) == {ours: {}, theirs: {}}


def test_reset_offsets_with_offline_partition_not_in_reset_target(halved, oracle, new_group):
    servers, topic, with_leader, _ = halved
    ours, theirs = new_group(), new_group()
    target = f"{topic}:{','.join(map(str, with_leader))}"
    reset(servers, ours, target)
    oracle.reset(theirs, "--topic", target, "--to-latest", "--execute", on=servers)
    committed = oracle.committed(ours, theirs, on=servers)
    assert committed[ours] == committed[theirs]
    assert committed[ours] == {TopicPartition(topic, number): 10 for number in with_leader}


def test_a_topic_that_a_leader_does_not_know_yet_is_not_called_missing(
    bootstrap_servers, make_topic, monkeypatch
):
    """A leader that has just started: for some seconds the list of topics knows more than it does."""
    partition = TopicPartition(make_topic(partitions=1), 0)

    def not_yet(connection, partitions, *_):
        return {}, dict.fromkeys(partitions, Failure("UNKNOWN_TOPIC_OR_PART", "Broker: Unknown topic"))

    monkeypatch.setattr(logs, "read_offsets", not_yet)
    # The list of topics must come in the last attempt too, also on a busy machine.
    monkeypatch.setattr(retry, "_LEAST", 1.5)
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=3) as client:
        with pytest.raises(BrokerUnavailableError, match=f"the leader of {partition} does not know it yet"):
            client.log_ranges([partition])
