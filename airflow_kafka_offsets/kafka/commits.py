"""Checks a commit, splits it into parts, and tracks its progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.failures import (
    OF_WHOLE_GROUP,
    TEMPORARY,
    TOPIC_HIDDEN,
    UNCERTAIN,
    UNKNOWN_PARTITION,
    CallError,
    Failure,
)
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Offsets, TopicPartition, refuse_invalid_partitions
from airflow_kafka_offsets.model.text import is_plain, shorten

Texts = Mapping[str, str]
"""Topic -> the metadata of its commits."""

MAX_METADATA = 4095
"""In bytes: the broker's default is 4096 (``offset.metadata.max.bytes``), and the client adds one."""

MAX_PARTITIONS = 1_000
MAX_BYTES = 600_000
"""A commit is one batch of records, which must fit into ``max.message.bytes``: 1,048,588 by default."""

RECORD_BYTES = 44
"""Bytes of a record in addition to group, topic and metadata."""

ATTEMPT = 10.0
"""Seconds to wait for a response to a commit; then it is read back, and sent again if it was not done."""


def check_commit(
    group_id: str, offsets: Mapping[TopicPartition, int], metadata: str | Mapping[str, str]
) -> Texts:
    """
    Refuse a commit that the broker would refuse or the client would change.

    :param metadata: a text for all topics, or topic -> its text.
    :return: topic -> its text.
    """
    parse_group(group_id)
    refuse_invalid_partitions(offsets)
    for tp, offset in offsets.items():
        if not 0 <= offset <= MAX_OFFSET:
            raise UsageError(
                f"offset {shorten(offset)} of {tp} cannot be committed; expected 0 to {MAX_OFFSET}"
            )
    topics = {tp.topic for tp in offsets}
    texts = dict.fromkeys(topics, metadata) if isinstance(metadata, str) else metadata
    for text in set(texts.values()):
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_METADATA or not is_plain(text):
            raise UsageError(
                f"commit metadata of {size} bytes; expected at most {MAX_METADATA} bytes without NUL"
            )
    return {topic: texts[topic] for topic in topics}


def commit_chunks(group_id: str, offsets: Mapping[TopicPartition, int], texts: Texts) -> Iterator[Offsets]:
    """Split offsets into parts that each fit into one request and one batch."""
    part: Offsets = {}
    size = 0
    least = RECORD_BYTES + len(group_id.encode())
    bytes_of = {topic: least + len(topic) + len(text.encode()) for topic, text in texts.items()}
    for tp in sorted(offsets):
        record = bytes_of[tp.topic]
        if part and (len(part) >= MAX_PARTITIONS or size + record > MAX_BYTES):
            yield part
            part, size = {}, 0
        part[tp] = offsets[tp]
        size += record
    if part:
        yield part


class CommitState:
    """
    The written, refused and pending partitions of one commit.

    :param read_back: returns the partitions whose current commit has the given offset and our metadata.
    """

    def __init__(
        self, offsets: Mapping[TopicPartition, int], read_back: Callable[[Offsets], Sequence[TopicPartition]]
    ) -> None:
        self.pending = dict(offsets)
        self.written: list[TopicPartition] = []
        self.refused: dict[TopicPartition, Failure] = {}
        self.last: dict[TopicPartition, Failure] = {}
        self.uncertain = False
        self._read_back = read_back

    @property
    def failures(self) -> dict[TopicPartition, Failure]:
        """The failure of each partition that was not written."""
        unanswered = Failure("_TIMED_OUT", "no answer")
        return {**{tp: self.last.get(tp, unanswered) for tp in self.pending}, **self.refused}

    def fail_pending(self, failure: Failure, *, uncertain: bool = False) -> None:
        """Record a failure for all pending partitions."""
        self.last.update(dict.fromkeys(self.pending, failure))
        self.uncertain = self.uncertain or uncertain

    def take_results(
        self,
        results: Mapping[TopicPartition, Failure | None],
        missing: Callable[[Sequence[TopicPartition]], Collection[TopicPartition]],
    ) -> None:
        """
        Record the result of each partition; raise :class:`CallError` if another attempt may help.

        Refused partitions are read back, because some of them may be written, unless the error concerns all
        partitions.

        :param missing: returns which of the given partitions do not exist.
        """
        self.mark_written([tp for tp, failure in results.items() if failure is None])
        self.last.update({tp: failure for tp, failure in results.items() if failure is not None})
        codes = {failure.code for failure in self.last.values()}
        # Another client may have committed the same offsets to a topic that this user must not commit to.
        one_topic = len({tp.topic for tp in results}) == 1
        if codes - (OF_WHOLE_GROUP | UNCERTAIN | ({TOPIC_HIDDEN} if one_topic else set())):
            # Until they were read back.
            earlier, self.uncertain = self.uncertain, True
            self.mark_written(self._read_back(self.pending))
            self.uncertain = earlier
        # What an earlier attempt without a response has written may appear later than a read.
        self.uncertain |= any(self.last[tp].code in UNCERTAIN for tp in self.pending)
        unknown = [tp for tp in self.pending if self.last[tp].code in UNKNOWN_PARTITION]
        absent = missing(unknown) if unknown else ()
        again: Failure | None = None
        for tp in list(self.pending):
            failure = self.last[tp]
            if failure.code in TEMPORARY and tp not in absent:
                again = failure
            else:
                self.refused[tp] = failure
                self.pending.pop(tp)
        # A retry for the other partitions does not help a partition that was refused permanently.
        if again is not None and not self.refused:
            raise CallError(again)

    def mark_written(self, partitions: Sequence[TopicPartition]) -> None:
        """Record written partitions."""
        for tp in partitions:
            if self.pending.pop(tp, None) is not None:
                self.written.append(tp)
            self.last.pop(tp, None)
