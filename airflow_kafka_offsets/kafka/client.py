"""The Kafka client: reads and commits consumer groups' offsets, and asks what the logs hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import BrokerError, UsageError
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.commits import check_commit
from airflow_kafka_offsets.kafka.failures import CallError
from airflow_kafka_offsets.kafka.fenced import FencedCommit
from airflow_kafka_offsets.kafka.group_commits import Check, GroupCommits
from airflow_kafka_offsets.kafka.groups import GroupDescription, GroupListing
from airflow_kafka_offsets.kafka.logs import offsets_at_timestamps, read_logs
from airflow_kafka_offsets.kafka.record_offsets import RecordOffsets, read_record_offsets
from airflow_kafka_offsets.kafka.record_sizes import RecordSizes
from airflow_kafka_offsets.kafka.record_times import RecordTimeLookup
from airflow_kafka_offsets.kafka.records import Records, Take
from airflow_kafka_offsets.kafka.requests import read_cluster_id
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.kafka.topics import Topics
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offset_ranges import RangesByPartition, count_offsets
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    Commit,
    Commits,
    IsolationLevel,
    LogRange,
    OffsetRange,
    Offsets,
    TopicPartition,
    summarize,
)
from airflow_kafka_offsets.model.text import shorten

if TYPE_CHECKING:
    from typing import Self

__all__ = ["OffsetsClient"]


class OffsetsClient:
    """
    Reads and commits consumer groups' offsets, and asks what the logs hold.

    Each method ends within ``timeout`` seconds, asks again after errors that pass, and raises a
    :class:`~airflow_kafka_offsets.errors.BrokerError` that names cause and remedy. Connections are kept
    between calls, and so is the admin process: a child process, started with the first question about groups.
    Calls of several threads wait for each other. Use it as a context
    manager, or call :meth:`close`.

    :param config: librdkafka's configuration; see :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    :param timeout: seconds for each method.
    :param total: seconds for all calls together, without the time between them; default: no limit.
    :param chunk_size: partitions in one request; twice as many if eight connections have one each.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float = 30.0,
        total: float | None = None,
        chunk_size: int = 250,
    ) -> None:
        self._session = Session(config, timeout=timeout, total=total, chunk_size=chunk_size)
        self._admin = Admin(self._session.config)
        self._topics = Topics(self._session)
        self._times = RecordTimeLookup(self._session)
        self._records = Records(self._session)
        self._sizes = RecordSizes(self._session)
        self._assigned: dict[str, frozenset[TopicPartition]] = {}

    @property
    def servers(self) -> str:
        """The bootstrap servers, as the configuration has them."""
        return self._session.servers

    def close(self) -> None:
        """Close all connections; waits a few seconds at most. A running call closes them when it ends."""
        self._session.close()
        self._times.close()
        self._records.close()
        self._sizes.close()
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """
        Return the partitions of topics, as the broker knows them now.

        :param topics: names; default: all topics that are not Kafka's own.
        :return: topic -> its partitions in order. A topic that does not exist is not in it.
        """
        if topics is not None:
            return self._topics.read(topics)
        with self._session.begin_question("reading the list of topics") as call:
            return self._topics.read_all(call)

    def sees_all_topics(self) -> bool:
        """
        Return whether the user may see all topics, as far as that can be known.

        A broker hides the topics that a user may not describe. Who may describe all also sees Kafka's own.
        """
        if self._topics.sees_all is None:
            self.partitions()
        return bool(self._topics.sees_all)

    def cluster_id(self) -> str:
        """Return the id of the cluster, as the last list of topics has it; empty if the broker has none."""
        session = self._session
        if session.cluster_id is None:
            with session.begin_question("asking for the id of the cluster") as call:
                session.cluster_id = session.ask(call, read_cluster_id)
        return session.cluster_id

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """
        Return the ids of the cluster and of topics: a topic that was created again has another one.

        :return: without topics that do not exist, and those of a broker before Kafka 2.8, which has no ids.
        :raises BrokerError: if there is no answer for one of them.
        """
        cluster = self.cluster_id()
        with self._session.begin_call("looking up the ids of topics") as call:
            return LogIds(cluster, self._admin.topic_ids(topics, call))

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return the settings of topics that decide when records are deleted; needs DescribeConfigs."""
        with self._session.begin_call("reading the settings of topics") as call:
            return self._admin.topic_settings(topics, call)

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """
        Return a group's commits; ``None`` where it has none, and where there is no such partition.

        :param group_id: the group; it need not exist.
        """
        with self._session.begin_call(f"reading the offsets of group {group_id!r}") as call:
            return GroupCommits(self._session, self._admin, group_id).read(call, partitions)

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """
        Return all commits of a group, in all topics that the user may see.

        :param group_id: the group; it need not exist.
        """
        with self._session.begin_question(f"reading all offsets of group {group_id!r}") as call:
            return GroupCommits(self._session, self._admin, group_id).read_all(call, self._topics)

    def committed_groups(
        self, wanted: Mapping[str, Iterable[TopicPartition] | None], *, within: float | None = None
    ) -> dict[str, dict[TopicPartition, Commit] | BrokerError]:
        """
        Return the commits of many groups, asked for together in the admin process.

        :param wanted: the partitions to read of each group; ``None``: all that it has in the topics that the
            user may see.
        :param within: seconds for it; default: the client's timeout.
        :return: group -> its commits, without the partitions that have none; or why it has no answer.
        :raises BrokerError: if there is no answer for any of them.
        """
        with self._session.begin_call(f"reading the offsets of {len(wanted)} groups", within) as call:
            return self._admin.read_commits(
                {
                    parse_group(group_id): None if partitions is None else sorted(dict.fromkeys(partitions))
                    for group_id, partitions in wanted.items()
                },
                call,
            )

    def assigned(self, group_id: str) -> frozenset[TopicPartition]:
        """
        Return the partitions that the members of a group read. They are looked up once.

        :raises BrokerAuthenticationError: if they read what this user may not see, and the broker reports
            that.
        """
        if group_id not in self._assigned:
            members = self.describe_groups([group_id])[group_id].members
            self._assigned[group_id] = frozenset(tp for member in members for tp in member.partitions)
        return self._assigned[group_id]

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """
        Return what the logs hold.

        :param isolation_level: ``read_committed`` ends before the first transaction that is still open.
        :raises UnknownTopicPartitionError: if one of the partitions is not on the broker.
        """
        wanted = sorted(dict.fromkeys(partitions))
        with self._session.begin_question(f"reading the log ends of {summarize(wanted)}") as call:
            return read_logs(self._session, call, wanted, isolation_level)

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """
        Return the first offset at or after a time; ``None`` where no record is that new.

        :param timestamp_ms: milliseconds since 1970.
        :raises UnknownTopicPartitionError: if one of the partitions is not on the broker.
        """
        if not 0 <= timestamp_ms <= MAX_OFFSET:
            found = f"found timestamp {shorten(timestamp_ms)}"
            raise UsageError(f"{found}; expected milliseconds since 1970, 0 or more")
        wanted = sorted(dict.fromkeys(partitions))
        with self._session.begin_question(f"looking up a time in {summarize(wanted)}") as call:
            (offsets,) = offsets_at_timestamps(self._session, call, wanted, timestamp_ms)
        return {tp: None if offset < 0 else offset for tp, offset in offsets.items()}

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """
        Return when the first record at or after each offset was written, in milliseconds since 1970.

        Partitions that did not answer in time are not in the result; it is empty if the broker cannot be
        reached. Records without a time, or that cannot be read, are left out as well. The records are
        fetched, so the user needs Read on the topics.

        :param offsets: where to look; an offset below the log start counts as the log start.
        :param within: seconds for it; default: 10, or the client's timeout if that is less.
        :param isolation_level: ``read_committed`` skips the records of aborted transactions, and stops before
            the first transaction that is still open.
        :return: ``None`` where no record follows before the log end: at the end, or before nothing but
            markers of transactions.
        :raises UnknownTopicPartitionError: if one of the partitions is not on the broker.
        :raises BrokerAuthenticationError: if the broker does not allow it.
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
        Return at which offsets of some ranges there is a record, as a ``read_committed`` consumer gets them.

        The records are fetched, so the user needs Read on the topics.

        :param ranges: inside the logs: not before their start, and not after their last stable offset.
        :param within: seconds for it.
        :param most: records after which the rest stays unread.
        :raises BrokerAuthenticationError: if the broker does not allow it.
        """
        what = f"looking up records at {count_offsets(ranges):,} offsets of {summarize(ranges)}"
        with self._session.begin_call(what, within) as call:
            try:
                return read_record_offsets(self._session.config, ranges, call, most)
            except CallError as error:
                raise call.explain(error.failure, "Read") from None

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Check = None,
    ) -> None:
        """
        Commit offsets to a group that has no active members.

        Many partitions are committed in several requests. Nothing is compared: whether the offsets are in the
        log, or go backwards, is for the caller to know.

        :param group_id: the group; the first commit creates it.
        :param offsets: the next record to read, for each partition.
        :param metadata: a text that is kept with each of them, 4,095 bytes at most; or topic -> its text.
        :param check: given the group's commits right before they are overwritten; what it raises ends it.
        :raises GroupActiveError: if the group has members; names them.
        :raises CommitError: if partitions were refused; says which, and which were written.
        """
        texts = check_commit(group_id, offsets, metadata)
        with self._session.begin_question(f"committing to group {group_id!r}") as call:
            GroupCommits(self._session, self._admin, group_id).commit(call, offsets, texts, check)

    def prove_commit(self, group_id: str, topics: Iterable[str]) -> None:
        """
        Check that this user may commit to a group, for some topics; nothing is written.

        It commits to a partition that no topic has. The broker checks the rights on group and topics first,
        and only then refuses because the partition does not exist (``KafkaApis.handleOffsetCommitRequest``).

        :raises BrokerAuthenticationError: naming the right that is missing.
        """
        with self._session.begin_question(f"seeing whether group {group_id!r} may be committed to") as call:
            GroupCommits(self._session, self._admin, group_id).prove_right(call, topics)

    def commit_fenced(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str],
        left: Callable[[Commits], Offsets],
    ) -> Offsets:
        """
        Commit offsets as a member of the group, see :mod:`airflow_kafka_offsets.kafka.fenced`.

        :param left: given the group's commits, returns what is left to write; what it raises
            ends the commit.
        :return: what was written, and read back.
        :raises GroupActiveError: if the group has other members.
        """
        with self._session.begin_call(f"committing a window to group {group_id!r}") as call:
            return FencedCommit(self._session, self._admin, group_id, offsets, metadata, left).run(call)

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return state and members of groups; one that does not exist is ``Dead``."""
        with self._session.begin_call("describing groups") as call:
            return self._admin.describe_groups(group_ids, call)

    def settled_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """
        Return the same as :meth:`describe_groups`, after waiting for the commits of windows to end.

        :raises GroupActiveError: if one has not ended in time; a retry may succeed.
        """
        with self._session.begin_call("describing groups") as call:
            return self._admin.describe_settled_groups(group_ids, call)

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        """
        Return all groups in order of their names.

        :param states: only those in one of these states, as Kafka spells them; default: all.
        """
        with self._session.begin_call("listing groups") as call:
            return self._admin.list_groups(states, call)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, str | None]:
        """
        Delete groups with all their offsets.

        :return: group -> ``None`` if it was deleted, else the reason.
        """
        with self._session.begin_call("deleting groups") as call:
            return self._admin.delete_groups(group_ids, call)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, str | None]:
        """
        Delete a group's commits in partitions; kafka-python does it, which the extra ``delete-offsets`` has.

        :return: partition -> ``None`` if it has no commit any more, else why it was not deleted.
        """
        with self._session.begin_call(f"deleting offsets of group {group_id!r}") as call:
            return self._admin.delete_offsets(parse_group(group_id), sorted(partitions), call)

    def offsets_retention_minutes(self) -> int | None:
        """Return how long the broker keeps offsets of a group without members; ``None`` if unknown."""
        with self._session.begin_call("reading the broker's configuration") as call:
            return self._admin.retention_minutes(call)
