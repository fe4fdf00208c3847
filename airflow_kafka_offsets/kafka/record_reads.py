"""The part of the client that fetches records: their times, sizes and offsets, and the records themselves."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_offsets.kafka.failures import CallError
from airflow_kafka_offsets.kafka.record_offsets import RecordOffsets, read_record_offsets
from airflow_kafka_offsets.kafka.record_sizes import RecordSizes
from airflow_kafka_offsets.kafka.record_times import RecordTimeLookup
from airflow_kafka_offsets.kafka.records import Records, Take
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offset_ranges import RangesByPartition, count_offsets
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    OffsetRange,
    Offsets,
    TopicPartition,
    summarize,
)


class RecordReads:
    """
    Base of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient`: the calls that need Read on topics.

    :param session: the client's session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._times = RecordTimeLookup(session)
        self._records = Records(session)
        self._sizes = RecordSizes(session)

    def _close_readers(self) -> None:
        """Close the consumers of these calls."""
        self._times.close()
        self._records.close()
        self._sizes.close()

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """
        Return the time of the first record at or after each offset, in milliseconds since 1970.

        The result lacks partitions that did not answer in time; it is empty if the broker cannot be reached.
        Records without a time, or that cannot be read, are left out as well. The records are fetched, so the
        user needs Read on the topics.

        :param offsets: partition -> first offset to read; an offset below the log start counts as the log
            start.
        :param within: seconds for the call; default: 10, or the client's timeout if that is less.
        :param isolation_level: ``read_committed`` skips the records of aborted transactions, and stops before
            the first open transaction.
        :return: partition -> time; ``None`` if no record follows before the log end: at the log end, or if
            only transaction markers follow.
        :raises UnknownTopicPartitionError: if the broker does not have one of the partitions.
        :raises BrokerAuthenticationError: if the user lacks a right.
        """
        return self._times.read_at_or_after(offsets, isolation_level, within)

    def read_records(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        take: Take,
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Offsets:
        """
        Give the records of ranges to a function; the user needs Read on the topics.

        :param within: seconds for it; default: 30, or the client's timeout if that is less.
        :return: how far each partition was read: the end of its range, unless the time was up.
        :raises BrokerAuthenticationError: if the broker does not allow it.
        """
        return self._records.read(ranges, take, isolation_level, within)

    def record_sizes(self, offsets: Offsets, *, within: float = 5.0) -> dict[TopicPartition, list[int]]:
        """Return the bytes of some records at or after each offset, see :meth:`RecordSizes.sample`."""
        return self._sizes.sample(offsets, within) if offsets else {}

    def record_offsets(
        self, ranges: RangesByPartition, *, within: float, most: int = 100_000
    ) -> RecordOffsets:
        """
        Return which offsets of some ranges have a record that a ``read_committed`` consumer receives.

        The records are fetched, so the user needs Read on the topics.

        :param ranges: ranges inside the logs: from the log start to the last stable offset.
        :param within: seconds for the call.
        :param most: maximum number of records to read; the rest stays unread.
        :raises BrokerAuthenticationError: if the user lacks a right.
        """
        what = f"looking up records at {count_offsets(ranges):,} offsets of {summarize(ranges)}"
        with self._session.begin_call(what, within) as call:
            try:
                return read_record_offsets(self._session.config, ranges, call, most)
            except CallError as error:
                raise call.explain(error.failure, "Read") from None
