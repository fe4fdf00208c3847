"""The Kafka client: reads and commits offsets of consumer groups, and reads the offsets of logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import BrokerError, SetupError, UsageError
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.failures import UNKNOWN_PARTITION
from airflow_kafka_offsets.kafka.fenced import FencedCommit
from airflow_kafka_offsets.kafka.group_calls import GroupCalls
from airflow_kafka_offsets.kafka.group_commits import GroupCommits
from airflow_kafka_offsets.kafka.group_writes import GroupWrite
from airflow_kafka_offsets.kafka.logs import offsets_at_timestamps, read_logs
from airflow_kafka_offsets.kafka.record_reads import RecordReads
from airflow_kafka_offsets.kafka.requests import read_cluster_id
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.names import parse_existing_group
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Commit,
    Commits,
    IsolationLevel,
    LogRange,
    Offsets,
    Positions,
    TopicPartition,
    summarize,
)
from airflow_kafka_offsets.model.text import plural, shorten

if TYPE_CHECKING:
    from typing import Self


class OffsetsClient(GroupCalls, RecordReads):
    """
    Reads and commits offsets of consumer groups, and reads the offsets of logs.

    Each method ends within ``timeout`` seconds, retries after temporary errors, and raises a
    :class:`~airflow_kafka_offsets.errors.BrokerError` with cause and remedy. Connections stay open between
    calls. So does the admin process, a child process that the first call about groups starts. Calls of
    several threads wait for each other. Use the client as a context manager, or call :meth:`close`.

    :param config: librdkafka's configuration; see :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    :param timeout: seconds for each method; :meth:`commit_fenced` may take five more to leave the group.
    :param total: seconds for all calls together, without the time between calls; default: no limit.
    :param chunk_size: partitions in one request; twice this number if each of eight connections has a
        request.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float = 30.0,
        total: float | None = None,
        chunk_size: int = 250,
    ) -> None:
        super().__init__(Session(config, timeout=timeout, total=total, chunk_size=chunk_size))
        self._admin = Admin(self._session.config, self._session.note_admin_cluster)
        self._assigned: dict[str, frozenset[TopicPartition]] = {}
        self._retention_minutes: int | None = None

    @property
    def servers(self) -> str:
        """The bootstrap servers as configured."""
        return self._session.servers

    def close(self) -> None:
        """Close all connections; wait a few seconds at most. A running call closes its own at its end."""
        self._session.close()
        self._samples.close()
        self._scans.close()
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """
        Return the current partitions of topics.

        :param topics: names; default: all topics except Kafka's internal ones.
        :return: topic -> its partitions in order, without missing topics.
        """
        wanted = None if topics is None else sorted(set(topics))
        named = "the list of topics" if wanted is None else f"topics {', '.join(wanted[:5])}"
        with self._session.begin_exclusive(f"looking up {named}") as call:
            return self._session.all_topics(call) if wanted is None else self._session.topics(call, wanted)

    def sees_all_topics(self) -> bool:
        """
        Return whether the user may see all topics, as far as the client can tell.

        A broker hides topics that a user may not describe. A user who may describe all topics also sees
        Kafka's internal topics.
        """
        with self._session.begin_exclusive("looking up the topic of commits") as call:
            return self._session.sees_all_topics(call)

    def cluster_id(self) -> str:
        """Return the cluster's id from the last list of topics; empty if the broker reports none."""
        session = self._session
        if session.cluster_id is None:
            with session.begin_exclusive("asking for the id of the cluster") as call:
                session.cluster_id = session.ask(call, read_cluster_id)
        return session.cluster_id

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """
        Return the ids of the cluster and of topics: a topic that was deleted and created again has a new id.

        :return: the ids, without missing topics, and without topic ids of brokers before Kafka 2.8.
        """
        cluster, wanted = self.cluster_id(), sorted(set(topics))
        with self._session.begin_call(f"looking up the ids of topics {', '.join(wanted[:5])}") as call:
            found = self._admin.ask_topics(call, "topic_ids", wanted)
            for _, failure in found.values():
                if failure is not None and failure.code not in UNKNOWN_PARTITION:
                    raise call.explain(failure)
        return LogIds(
            cluster, {topic: topic_id for topic, (topic_id, _) in found.items() if topic_id is not None}
        )

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return the settings of topics that decide when records are deleted; needs DescribeConfigs."""
        with self._session.begin_call("reading the settings of topics") as call:
            found = self._admin.ask_topics(call, "topic_settings", sorted(set(topics)))
        about = "reading the settings of topic {!r}"
        return {
            topic: settings
            if failure is None
            else call.with_text(about.format(topic)).explain(failure, "DescribeConfigs")
            for topic, (settings, failure) in found.items()
        }

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits; ``None`` without one, also if the partition or the group is missing."""
        with self._session.begin_call(f"reading the offsets of group {group_id!r}") as call:
            return GroupCommits(self._session, self._admin, group_id).read(call, partitions)

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all commits of a group, which may be missing, in all topics that the user may see."""
        with self._session.begin_exclusive(f"reading all offsets of group {group_id!r}") as call:
            return GroupCommits(self._session, self._admin, group_id).read_all(call)

    def committed_groups(
        self, wanted: Mapping[str, Iterable[TopicPartition] | None], *, within: float | None = None
    ) -> dict[str, dict[TopicPartition, Commit] | BrokerError]:
        """
        Return the commits of many groups, read together in the admin process.

        :param wanted: group -> the partitions to read; ``None``: all partitions with a commit, in topics that
            the user may see.
        :param within: seconds for the call; default: the client's timeout.
        :return: group -> its commits (partitions without a commit are left out), or the error of the group.
        :raises BrokerError: if the call fails for all groups.
        """
        with self._session.begin_call(
            f"reading the offsets of {plural(len(wanted), 'group')}", within
        ) as call:
            return self._admin.read_commits(
                {
                    parse_existing_group(name): None if each is None else sorted(dict.fromkeys(each))
                    for name, each in wanted.items()
                },
                call,
            )

    def assigned(self, group_id: str) -> frozenset[TopicPartition]:
        """
        Return the partitions that the members of a group read. The partitions are looked up once.

        :raises BrokerAuthenticationError: if the members read topics that this user may not see, and the
            broker reports it.
        """
        if group_id not in self._assigned:
            members = self.describe_groups([group_id])[group_id].members
            self._assigned[group_id] = frozenset(tp for member in members for tp in member.partitions)
        return self._assigned[group_id]

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """
        Return the start and end offsets of logs.

        :param isolation_level: ``read_committed`` ends before the first open transaction.
        :raises UnknownTopicPartitionError: if the broker does not have one of the partitions.
        """
        wanted = sorted(dict.fromkeys(partitions))
        with self._session.begin_exclusive(f"reading the log ends of {summarize(wanted)}") as call:
            return read_logs(self._session, call, wanted, isolation_level)

    def offsets_for_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Positions:
        """
        Return the first offset at or after a time; ``None`` if no record is that new.

        :param timestamp_ms: milliseconds since 1970.
        :raises UnknownTopicPartitionError: if the broker does not have one of the partitions.
        """
        if not 0 <= timestamp_ms <= MAX_OFFSET:
            found = f"found timestamp {shorten(timestamp_ms)}"
            raise UsageError(f"{found}; expected milliseconds since 1970, 0 or more")
        wanted = sorted(dict.fromkeys(partitions))
        with self._session.begin_exclusive(f"looking up a time in {summarize(wanted)}") as call:
            (offsets,) = offsets_at_timestamps(self._session, call, wanted, timestamp_ms)
        return {tp: None if offset < 0 else offset for tp, offset in offsets.items()}

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        """
        Commit offsets to a group that has no active members.

        Many partitions are committed in several requests. Offsets are not checked: the caller must know
        whether they are in the log, or go backwards.

        :param group_id: the group; the first commit creates it.
        :param offsets: partition -> the next record to read.
        :param metadata: a text that is stored with each offset, 4,095 bytes at most; or topic -> its text.
        :param check: called with the group's commits right before they are overwritten; an exception from it
            ends the call.
        :raises GroupActiveError: if the group has members; names them.
        :raises CommitError: if partitions were refused; says which, and which were written.
        """
        write = GroupWrite(self._session, self._admin, group_id, dict(offsets), metadata, check)
        with self._session.begin_exclusive(f"committing to group {group_id!r}") as call:
            write.run(call)

    def prove_commit(self, group_id: str, topics: Iterable[str]) -> None:
        """
        Check that this user may commit to a group for some topics; nothing is written.

        The check commits to a partition number that no topic has. The broker first checks the rights on group
        and topics, and only then refuses the missing partition (``KafkaApis.handleOffsetCommitRequest``).

        :raises BrokerAuthenticationError: if a right is missing; names it.
        """
        wanted = {TopicPartition(topic, MAX_PARTITION): 0 for topic in sorted(set(topics))}
        write = GroupWrite(self._session, self._admin, group_id, wanted, "")
        with self._session.begin_exclusive(f"checking the right to commit to group {group_id!r}") as call:
            write.prove_right(call)

    def commit_fenced(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str],
        offsets_to_commit: Callable[[Commits], Offsets],
    ) -> Offsets:
        """
        Commit offsets as a member of the group, see :mod:`airflow_kafka_offsets.kafka.fenced`.

        :param offsets_to_commit: called with the group's commits; returns the offsets that are left to write.
            An exception from it ends the commit.
        :return: the offsets that were written and read back.
        :raises GroupActiveError: if the group has other members.
        """
        write = FencedCommit(self._session, self._admin, group_id, dict(offsets), metadata, offsets_to_commit)
        with self._session.begin_call(f"committing a window to group {group_id!r}") as call:
            return write.run(call)

    def offsets_retention_minutes(self) -> int | None:
        """Return for how many minutes the broker keeps a memberless group's offsets; ``None`` if unknown."""
        if self._retention_minutes is None:
            what = "reading the broker's configuration"
            with self._session.begin_call(what) as call, suppress(BrokerError, SetupError):
                _, minutes, _ = self._admin.brokers(call)
                if minutes is not None and minutes.isdecimal():
                    self._retention_minutes = int(minutes)
        return self._retention_minutes
