"""Makes single requests to a broker, and returns their responses as plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.failures import (
    NO_LEADER,
    TOPIC_HIDDEN,
    UNANSWERED,
    UNKNOWN_PARTITION,
    CallError,
    Deadline,
    Failure,
)
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, not_on_broker, summarize

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata, TopicMetadata

OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's internal topic of commits: only users who may describe all topics see it."""

# Seconds between two checks for the response to a commit: usually it takes a few milliseconds; a long wait
# should cost little.
_SHORTEST_POLL, _LONGEST_POLL = 0.002, 0.05


def read_topics(
    connection: Connection,
    topic: str | None,
    timeout: float,
    note: Callable[[ClusterMetadata], object] = lambda _: None,
) -> dict[str, list[int]]:
    """
    Return the partitions of one topic or all topics, and give the whole response to ``note``.

    This also updates the client's metadata: otherwise a topic that was created again, or a new partition,
    would stay unknown to the client.
    """
    topics: dict[str, list[int]] = {}
    found = _list_topics(connection, topic, timeout)
    note(found)
    for name, described in found.topics.items():
        if described.error is None:
            topics[name] = sorted(described.partitions)
            continue
        failure = Failure.from_error(described.error).about(name)
        # A list of all topics leaves out hidden topics, but not those that could not be read.
        if failure.code not in UNKNOWN_PARTITION and (topic is not None or failure.code != TOPIC_HIDDEN):
            raise CallError(failure)
    return topics


def missing_partitions(
    connection: Connection,
    partitions: Iterable[TopicPartition],
    timeout: float,
    note: Callable[[ClusterMetadata], object] = lambda _: None,
) -> list[TopicPartition]:
    """Return the partitions that the broker does not have, and give its responses to ``note``."""
    wanted, deadline = set(partitions), Deadline(timeout)
    topics: dict[str, list[int]] = {}
    for topic in sorted({tp.topic for tp in wanted}):
        topics.update(read_topics(connection, topic, deadline.seconds_left, note))
    return not_on_broker(wanted, topics)


def leaderless_failure(
    topics: Iterable[TopicMetadata], wanted: Container[TopicPartition] | None = None
) -> Failure | None:
    """Return the failure of existing (and wanted) partitions without a leader; ``None`` if all have one."""
    found = {
        tp: partition.replicas
        for described in topics
        for number, partition in described.partitions.items()
        if partition.leader < 0
        for tp in [TopicPartition(described.topic, number)]
        if wanted is None or tp in wanted
    }
    if not found:
        return None
    brokers = ", ".join(map(str, sorted({broker for replicas in found.values() for broker in replicas})))
    text = f"{summarize(found)} has no leader: none of the brokers that hold it ({brokers}) can lead it now"
    return Failure(NO_LEADER, f"partition {text}")


def read_cluster_id(connection: Connection, timeout: float) -> str:
    """Return the cluster's id; empty if the broker reports none."""
    _list_topics(connection, OFFSETS_TOPIC, timeout)
    return connection.cluster_id


def _list_topics(connection: Connection, topic: str | None, timeout: float) -> ClusterMetadata:
    named = () if topic is None else (topic,)
    found = connection.ask(lambda consumer: consumer.list_topics(*named, timeout=timeout))
    connection.cluster_id = found.cluster_id or ""
    return found


def read_metadata(found: ClientPartition) -> str | None:
    """Return a commit's metadata; ``None`` if it cannot be read."""
    try:
        return (found.metadata or "").partition("\0")[0]
    except UnicodeDecodeError:
        # Texts of other clients have no NUL at the end, so the memory after them was read too.
        return None


def read_offsets(
    connection: Connection, partitions: Sequence[TopicPartition], timestamp: int, timeout: float
) -> tuple[Offsets, dict[TopicPartition, Failure]]:
    """
    Return the first offset at or after a time, or the log start or end.

    :param timestamp: milliseconds since 1970, ``OFFSET_BEGINNING`` or ``OFFSET_END``.
    :return: the offset of each partition that answered (-1 if no record is that new); the failures of the
        others.
    """
    wanted = [ClientPartition(tp.topic, tp.partition, timestamp) for tp in partitions]
    try:
        began = time.monotonic()
        found = connection.ask(lambda consumer: consumer.offsets_for_times(wanted, timeout=timeout))
        connection.fastest = min(connection.fastest, time.monotonic() - began)
    except CallError as error:
        if error.failure.code not in UNKNOWN_PARTITION:
            raise
        # The client raises this if all partitions failed, even with different errors.
        return {}, dict.fromkeys(partitions, error.failure)
    offsets: Offsets = {}
    failures: dict[TopicPartition, Failure] = {}
    for tp, each in zip(partitions, found, strict=True):
        if each.error is not None:
            failures[tp] = Failure.from_error(each.error).about(tp)
        elif each.offset >= 0 or (each.offset == OFFSET_END and timestamp >= 0):
            offsets[tp] = each.offset
        else:
            # This can be the result of a broker that does not answer.
            failures[tp] = Failure("_TIMED_OUT", f"no offset for {tp}")
    return offsets, failures


def send_commit(
    connection: Connection, offsets: Offsets, texts: Mapping[str, str], timeout: float
) -> dict[TopicPartition, Failure | None]:
    """
    Send a commit of the connection's group, and wait for its response.

    :return: partition -> ``None`` if it was committed, else the failure. If one partition was refused, the
        client reports its error for all partitions.
    :raises CallError: if there was no response in time. Then discard the connection, because the response may
        still come.
    """
    # A late response to an earlier commit must not be taken for the response to this one.
    connection.commit_responses.clear()
    wanted = [ClientPartition(*tp, offset, texts[tp.topic]) for tp, offset in offsets.items()]
    connection.ask(methodcaller("commit", offsets=wanted, asynchronous=True))
    end, pause = time.monotonic() + timeout, _SHORTEST_POLL
    while not connection.commit_responses:
        left = end - time.monotonic()
        if left <= 0 or connection.background_errors.fatal is not None:
            raise CallError(Failure("_TIMED_OUT", "no answer to the commit"))
        # The client's poll does not end when the response comes, only at its timeout.
        connection.drain(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_POLL)
    error, partitions = connection.commit_responses.pop()
    whole = None if error is None else Failure.from_error(error)
    results: dict[TopicPartition, Failure | None] = dict.fromkeys(offsets, UNANSWERED)
    for each in partitions:
        failed = whole if each.error is None else Failure.from_error(each.error)
        results[TopicPartition(each.topic, each.partition)] = failed
    return results
