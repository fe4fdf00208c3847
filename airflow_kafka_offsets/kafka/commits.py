"""Checks a commit and splits it into parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_kafka_offsets.errors import UsageError
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
