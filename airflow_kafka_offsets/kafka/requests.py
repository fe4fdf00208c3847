"""One request to a broker each, and the reading of its response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.failures import NO_LEADER, UNKNOWN_PARTITION, Failed, Failure
from airflow_kafka_offsets.model.offsets import Commit, Offsets, TopicPartition, summarize

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import TopicMetadata


def read_topics(connection: Connection, topic: str | None, timeout: float) -> dict[str, list[int]]:
    """
    Return the partitions of one topic, or of all.

    The client takes note of the answer: that is what shows it a topic that was deleted and created again,
    or a partition that was added.

    :raises Failed: if there is no answer, or not one for this user.
    """
    topics: dict[str, list[int]] = {}
    for name, described in _list_topics(connection, topic, timeout).items():
        if described.error is None:
            topics[name] = sorted(described.partitions)
        elif topic is not None:
            failure = _about(topic, described.error)
            if failure.code not in UNKNOWN_PARTITION:
                raise Failed(failure)
    return topics


def missing_partitions(
    connection: Connection, partitions: Iterable[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """Return those that the broker does not know either."""
    wanted = sorted(set(partitions))
    topics: dict[str, list[int]] = {}
    for topic in sorted({tp.topic for tp in wanted}):
        topics.update(read_topics(connection, topic, timeout))
    return [tp for tp in wanted if tp.partition not in topics.get(tp.topic, ())]


def without_leader(
    connection: Connection, partitions: Iterable[TopicPartition], timeout: float
) -> Failure | None:
    """Return how those fail that are there and have no leader now; ``None`` if there are none."""
    wanted = set(partitions)
    found: dict[TopicPartition, Sequence[int]] = {}
    for topic in sorted({tp.topic for tp in wanted}):
        for described in _list_topics(connection, topic, timeout).values():
            for number, partition in described.partitions.items():
                if partition.leader < 0 and TopicPartition(topic, number) in wanted:
                    found[TopicPartition(topic, number)] = partition.replicas
    if not found:
        return None
    brokers = sorted({broker for replicas in found.values() for broker in replicas})
    return Failure(
        NO_LEADER,
        f"partition {summarize(found)} has no leader: none of the brokers that hold it ({', '.join(map(str, brokers))}) "
        "can be it now",
    )


def _list_topics(connection: Connection, topic: str | None, timeout: float) -> dict[str, TopicMetadata]:
    named = () if topic is None else (topic,)
    topics: dict[str, TopicMetadata] = connection.ask(
        lambda consumer: consumer.list_topics(*named, timeout=timeout)
    ).topics
    return topics


def read_commits(
    connection: Connection, partitions: Sequence[TopicPartition], timeout: float
) -> dict[TopicPartition, Commit | None]:
    """
    Return what the connection's group committed; ``None`` where it did not.

    :raises Failed: if there is no answer for one of the partitions.
    """
    wanted = [ClientPartition(*tp) for tp in partitions]
    answer = connection.ask(lambda consumer: consumer.committed(wanted, timeout=timeout))
    # The client fills in the list that it is given.
    return {tp: _commit(said) for tp, said in zip(partitions, answer, strict=True)}


def _commit(said: ClientPartition) -> Commit | None:
    if said.error is not None:
        raise Failed(_about(f"{said.topic}-{said.partition}", said.error))
    offset = said.offset
    if offset < 0:
        return None
    try:
        metadata = (said.metadata or "").partition("\0")[0]
    except UnicodeDecodeError:
        # Other clients' texts have no NUL at their end, so that what lies behind them in memory was read too.
        metadata = None
    return Commit(offset, metadata)


def read_offsets(
    connection: Connection, partitions: Sequence[TopicPartition], timestamp: int, timeout: float
) -> tuple[Offsets, dict[TopicPartition, Failure]]:
    """
    Return the first offset at or after a time, or the log start or end (``OFFSET_BEGINNING``, ``OFFSET_END``).

    :return: the offset of each partition that answered (-1: no record is that new), the failure of each other.
    :raises Failed: if there is no answer at all.
    """
    wanted = [ClientPartition(tp.topic, tp.partition, timestamp) for tp in partitions]
    try:
        answer = connection.ask(lambda consumer: consumer.offsets_for_times(wanted, timeout=timeout))
    except Failed as error:
        if error.failure.code not in UNKNOWN_PARTITION:
            raise
        # Said when all of them failed, whatever each of them failed with.
        return {}, dict.fromkeys(partitions, error.failure)
    offsets: Offsets = {}
    failures: dict[TopicPartition, Failure] = {}
    for tp, said in zip(partitions, answer, strict=True):
        offset = said.offset
        if said.error is not None:
            failures[tp] = _about(str(tp), said.error)
        elif offset >= 0 or (offset == OFFSET_END and timestamp >= 0):
            offsets[tp] = offset
        else:
            # A broker that is silent can look like this; a negative offset is never an answer.
            failures[tp] = Failure("_TIMED_OUT", f"no offset for {tp}")
    return offsets, failures


def _about(what: str, error: KafkaError) -> Failure:
    failure = Failure.of(error)
    return Failure(failure.code, f"{what}: {failure.text}")
