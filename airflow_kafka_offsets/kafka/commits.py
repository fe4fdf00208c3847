"""How are offsets committed so that every partition's answer is known, whatever the broker does meanwhile?"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import BrokerError, UsageError
from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.failures import (
    OF_WHOLE_GROUP,
    RETRIABLE,
    UNCERTAIN,
    UNKNOWN_PARTITION,
    Failed,
    Failure,
)
from airflow_kafka_offsets.model.names import check_group
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Offsets, TopicPartition, check_partitions
from airflow_kafka_offsets.model.text import is_plain, shorten

MAX_METADATA = 4095
"""Bytes: the broker's default is 4096 (``offset.metadata.max.bytes``), and the client adds one."""

MAX_PARTITIONS = 1_000
MAX_BYTES = 600_000
"""One commit is one batch of records, which must fit ``max.message.bytes``: 1,048,588 by default."""

RECORD_BYTES = 44
"""What a record takes besides group, topic and metadata."""

ATTEMPT = 10.0
"""Seconds until a commit without an answer is looked up, and sent again if it was not done."""

_SHORTEST_POLL, _LONGEST_POLL = 0.002, 0.05


def check_commit(group_id: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
    """
    Refuse what the broker would refuse, or worse, what the client would take for something else.

    :raises UsageError: for a group, a topic or a partition that cannot be, an offset out of range, metadata that are
        too long.
    """
    check_group(group_id)
    check_partitions(offsets)
    for tp, offset in offsets.items():
        if not 0 <= offset <= MAX_OFFSET:
            raise UsageError(
                f"offset {shorten(offset)} of {tp} cannot be committed; expected 0 to {MAX_OFFSET}"
            )
    size = len(metadata.encode("utf-8", "surrogatepass"))
    if size > MAX_METADATA or not is_plain(metadata):
        raise UsageError(
            f"commit metadata of {size} bytes; expected at most {MAX_METADATA}, and no NUL in them"
        )


def commit_chunks(group_id: str, offsets: Mapping[TopicPartition, int], metadata: str) -> Iterator[Offsets]:
    """Cut offsets so that each part is one request that fits into one batch."""
    part: Offsets = {}
    size = 0
    for tp in sorted(offsets):
        record = RECORD_BYTES + len(group_id.encode()) + len(tp.topic) + len(metadata.encode())
        if part and (len(part) >= MAX_PARTITIONS or size + record > MAX_BYTES):
            yield part
            part, size = {}, 0
        part[tp] = offsets[tp]
        size += record
    if part:
        yield part


def send_commit(
    connection: Connection, offsets: Offsets, metadata: str, timeout: float
) -> dict[TopicPartition, Failure | None]:
    """
    Send one commit and wait for the answer to each of its partitions.

    :return: partition -> ``None`` if it was committed, else why not. If one of several was refused, the client
        reports its error for all of them: see :meth:`CommitProgress.take`.
    :raises Failed: if there was no answer in time; the connection must then be discarded, because the answer
        may still come.
    """
    connection.commit_answers.clear()
    wanted = [ClientPartition(tp.topic, tp.partition, offset, metadata) for tp, offset in offsets.items()]
    connection.ask(lambda consumer: consumer.commit(offsets=wanted, asynchronous=True))
    end = time.monotonic() + timeout
    pause = _SHORTEST_POLL
    while not connection.commit_answers:
        left = end - time.monotonic()
        if left <= 0 or connection.causes.final is not None:
            raise Failed(Failure("_TIMED_OUT", "no answer to the commit"))
        # The client's poll does not end when the answer comes, only when its time is up.
        connection.drain(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_POLL)
    error, partitions = connection.commit_answers.pop()
    whole = None if error is None else Failure.of(error)
    answers: dict[TopicPartition, Failure | None] = {
        # A partition that the answer does not name was not answered.
        tp: whole or Failure("_TIMED_OUT", "no answer for this partition")
        for tp in offsets
    }
    for partition in partitions:
        failed = whole if partition.error is None else Failure.of(partition.error)
        answers[TopicPartition(partition.topic, partition.partition)] = failed
    return answers


class CommitProgress:
    """
    What of one commit is written, and what is still to be done.

    :param offsets: what is to be committed.
    :param read_back: returns which of some offsets the group holds now, with our metadata.
    """

    def __init__(self, offsets: Offsets, read_back: Callable[[Offsets], Sequence[TopicPartition]]) -> None:
        self.pending = dict(offsets)
        self.written: list[TopicPartition] = []
        self.refused: dict[TopicPartition, Failure] = {}
        self.last: dict[TopicPartition, Failure] = {}
        self.uncertain = False
        self.reason: BrokerError | None = None
        self._read_back = read_back

    @property
    def failures(self) -> dict[TopicPartition, Failure]:
        """Why each partition that is not written is not."""
        unanswered = Failure("_TIMED_OUT", "no answer")
        return {**{tp: self.last.get(tp, unanswered) for tp in self.pending}, **self.refused}

    def look_up(self) -> None:
        """Find out what an attempt without an answer has done, before anything is written again."""
        if self.uncertain:
            self._done(self._read_back(self.pending))
            self.uncertain = False

    def take(
        self,
        answers: Mapping[TopicPartition, Failure | None],
        missing: Callable[[Sequence[TopicPartition]], Collection[TopicPartition]],
    ) -> None:
        """
        Take in the answer to each partition.

        Unless the error is one of all partitions, those that are said to be refused are read back: some of
        them may well be written.

        :param missing: returns which of some partitions do not exist.
        :raises Failed: if one of the partitions is worth another try.
        """
        self._done([tp for tp, failure in answers.items() if failure is None])
        self.last.update({tp: failure for tp, failure in answers.items() if failure is not None})
        told = {failure.code for failure in self.last.values()}
        # A topic that must not be committed to holds what somebody else has written, though it may be the same.
        one_topic = len({tp.topic for tp in answers}) == 1
        of_all = OF_WHOLE_GROUP | UNCERTAIN | ({"TOPIC_AUTHORIZATION_FAILED"} if one_topic else set())
        if told - of_all:
            self._done(self._read_back(self.pending))
        absent = missing([tp for tp in self.pending if self.last[tp].code in UNKNOWN_PARTITION])
        again: Failure | None = None
        for tp in list(self.pending):
            failure = self.last[tp]
            passes = failure.code in RETRIABLE | UNKNOWN_PARTITION and tp not in absent
            if passes:
                again = failure
                self.uncertain = self.uncertain or failure.code in UNCERTAIN
            else:
                self.refused[tp] = failure
                self.pending.pop(tp, None)
        # A refusal for good will not be mended by the others' success.
        if again is not None and not self.refused:
            raise Failed(again)

    def _done(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            if self.pending.pop(tp, None) is not None:
                self.written.append(tp)
            self.last.pop(tp, None)
