"""What does the broker know about offsets, and how are they changed there?"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    SetupError,
    UnknownTopicPartitionError,
    UsageError,
)
from airflow_kafka_offsets.kafka.commits import (
    ATTEMPT,
    CommitProgress,
    check_commit,
    commit_chunks,
    send_commit,
)
from airflow_kafka_offsets.kafka.config import SERVERS, client_config
from airflow_kafka_offsets.kafka.connection import (
    MAX_KEPT,
    Connection,
    Connections,
)
from airflow_kafka_offsets.kafka.failures import (
    ACTIVE_GROUP,
    OCCUPIED,
    RETRIABLE,
    TOPIC_HIDDEN,
    UNKNOWN_PARTITION,
    Causes,
    Deadline,
    Failed,
    Failure,
    Right,
    explain,
)
from airflow_kafka_offsets.kafka.fenced import FencedCommit
from airflow_kafka_offsets.kafka.groups import GroupCalls, GroupDescription, GroupListing, GroupMember
from airflow_kafka_offsets.kafka.reader import IsolationLevel
from airflow_kafka_offsets.kafka.record_times import fetch_times, positions_in_logs
from airflow_kafka_offsets.kafka.refusals import and_then, not_committed
from airflow_kafka_offsets.kafka.requests import (
    LOG_END,
    LOG_START,
    Committed,
    missing_partitions,
    read_commits,
    read_offsets,
    read_topics,
    without_leader,
)
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.kafka.topics import topic_ids
from airflow_kafka_offsets.model.names import check_group
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    LogRange,
    Offsets,
    TopicPartition,
    check_partitions,
    summarize,
)
from airflow_kafka_offsets.model.parameters import parse_seconds
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.window import OffsetWindow

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Committed", "GroupDescription", "GroupListing", "GroupMember", "OffsetsClient"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's own, which only those may see who were granted all topics, or nobody asks for rights."""
_INTERNAL = (_OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata")
_PASSES = RETRIABLE | UNKNOWN_PARTITION
_ABSENT_TWICE = 2
"""A broker that was just told of a topic may not know it for a moment."""
_NO_PARTITION = 2**31 - 1
"""The highest number that a partition could have; no topic has so many."""
_CLOSE = 3.0
_LEAST = 0.1
LONGEST_TIMEOUT = 3_600.0
"""Seconds: what an administrator's call of the client may take at most."""

_LOOK_AT_MEMBERS = 10.0
_TIMES = 10.0


class OffsetsClient:
    """
    Reads and commits consumer groups' offsets, and asks what the logs hold.

    Each method ends within ``timeout`` seconds, asks again after errors that pass, and raises a
    :class:`~airflow_kafka_offsets.errors.BrokerError` that names cause and remedy. Connections are kept between
    calls; calls of several threads wait for each other. Use it as a context manager, or call :meth:`close`.

    :param config: librdkafka's configuration; see :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    :param timeout: seconds for each method.
    :param total: seconds for all calls together, without what lies between them; default: no limit.
    :param chunk_size: partitions in one request: the client takes far longer for many at once.
    :param keep: connections that are kept: each is for one group, with about four threads and eight sockets.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float = 30.0,
        total: float | None = None,
        chunk_size: int = 250,
        keep: int = MAX_KEPT,
    ) -> None:
        if chunk_size < 1:
            raise UsageError(f"chunk_size={chunk_size}: expected 1 or more")
        self._config = client_config(config)
        self._servers = str(self._config[SERVERS])
        self._timeout = parse_seconds(timeout, "timeout", most=LONGEST_TIMEOUT, zero=False) or 30.0
        self._total = self._left = math.inf if total is None else total
        self._chunk_size = chunk_size
        self._lock = threading.RLock()
        self._connections = Connections(self._config, keep)
        self._groups = GroupCalls(self._config)
        self._closed = False
        self._sees_all: bool | None = None
        self._assigned: dict[str, frozenset[TopicPartition]] = {}

    def keep(self, connections: int) -> None:
        """Keep so many connections from now on; those beyond are closed when the next one is opened."""
        self._connections.keep = connections

    @property
    def opened(self) -> int:
        """How many connections were made so far."""
        return self._connections.opened

    def close(self) -> None:
        """Close all connections; waits a few seconds at most. A call that is under way closes them when it ends."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self._connections.close(_CLOSE)
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """
        Return the partitions of topics, as the broker knows them now.

        :param topics: those to look for; default: all that are not Kafka's own.
        :return: topic -> its partitions in order. A topic that does not exist is not in it.
        """
        wanted = None if topics is None else sorted(set(topics))
        check_partitions(TopicPartition(topic, 0) for topic in wanted or ())
        what = (
            "reading the list of topics" if wanted is None else f"looking up topics {', '.join(wanted[:5])}"
        )

        found: dict[str, list[int]] = {}
        todo = list(wanted or ())

        def question(connection: Connection, timeout: float) -> dict[str, list[int]]:
            if wanted is None:
                found.update(self._all_topics(connection, timeout))
            while todo:
                found.update(read_topics(connection, todo[-1], timeout))
                todo.pop()
            return {topic: found[topic] for topic in sorted(found) if wanted or topic not in _INTERNAL}

        with self._asking(what) as deadline:
            return self._ask(what, question, deadline)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """
        Return the ids of topics: one that was deleted and created again has another one. It is asked in a child process.

        :return: topic -> its id. Topics of a broker before Kafka 2.8, which has no ids, are not in it.
        :raises BrokerError: if the broker does not tell, also of one of them.
        """
        return topic_ids(self._config, sorted(set(topics)), Deadline(self._timeout))

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Committed | None]:
        """
        Return what a group committed; ``None`` where it has no commit, and where there is no such partition.

        :param group_id: the group; it may be one that does not exist.
        :param partitions: those to ask for.
        """
        what = f"reading the offsets of group {group_id!r}"
        with self._asking(what) as deadline:
            return self._committed(what, group_id, partitions, deadline)

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Committed]:
        """
        Return all that a group committed, for the partitions of all topics on the broker.

        :param group_id: the group; it may be one that does not exist.
        """
        check_group(group_id)
        what = f"reading all offsets of group {group_id!r}"
        with self._asking(what) as deadline:
            topics = self._ask(what, self._all_topics, deadline)
            wanted = [
                TopicPartition(topic, number)
                for topic, numbers in topics.items()
                if topic not in _INTERNAL
                for number in numbers
            ]
            if not wanted and not self._sees_all:
                self._explain_nothing(what, group_id, deadline)
            everywhere = self._committed(what, group_id, wanted, deadline)
        return {tp: commit for tp, commit in sorted(everywhere.items()) if commit is not None}

    def sees_all_topics(self) -> bool:
        """
        Whether the user may see all topics, as far as the broker tells.

        A broker shows a user only the topics that it may describe, and says nothing of the others. Kafka's own topics are
        among those of a user who may describe all.
        """
        if self._sees_all is None:
            self.partitions()
        return bool(self._sees_all)

    def assigned(self, group_id: str) -> frozenset[TopicPartition]:
        """
        Return what the members of a group read. It is asked once, in a child process.

        :raises BrokerAuthenticationError: if they read what this user may not see, and the broker says so.
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

        :param partitions: those to ask for.
        :param isolation_level: ``read_committed`` ends before the first transaction that is still open.
        :raises UnknownTopicPartitionError: if one of them is not on the broker.
        """
        wanted = sorted(dict.fromkeys(partitions))
        what = f"reading the log ends of {summarize(wanted)}"
        with self._asking(what) as deadline:
            return self._logs(what, wanted, isolation_level, deadline)

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """
        Return the first offset at or after a time; ``None`` where no record is that new.

        :param partitions: those to ask for.
        :param timestamp_ms: milliseconds since 1970.
        :raises UnknownTopicPartitionError: if one of them is not on the broker.
        """
        if not 0 <= timestamp_ms <= MAX_OFFSET:
            raise UsageError(
                f"found timestamp {shorten(timestamp_ms)}; expected milliseconds since 1970, 0 or more"
            )
        wanted = sorted(dict.fromkeys(partitions))
        what = f"looking up a time in {summarize(wanted)}"
        with self._asking(what) as deadline:
            found = self._offsets_at(what, wanted, timestamp_ms, deadline)
        return {tp: None if offset < 0 else offset for tp, offset in found.items()}

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """
        Return when the first record at or after each offset was written, in milliseconds since 1970.

        It is told as far as it can be had in time: a partition that did not answer is not in the result, and with
        a broker that cannot be reached the result is empty. A record without a time, or one that cannot be read,
        is left out as well. The records are fetched, so the user needs Read on the topics.

        :param offsets: where to look; an offset below the log start counts as the log start.
        :param within: seconds for it; default: 10, or the client's timeout if that is less.
        :param isolation_level: ``read_committed`` passes over the records of transactions that were aborted, and
            stops before the first one that is still open.
        :return: ``None`` where no record follows before the log end: at the end, or before nothing but markers of
            transactions.
        :raises UnknownTopicPartitionError: if one of them is not on the broker.
        :raises BrokerAuthenticationError: if the broker does not allow it.
        """
        timeout = min(self._timeout, _TIMES) if within is None else within
        if timeout <= 0:
            raise UsageError(f"within={within} leaves no time; expected seconds above 0")
        parse_seconds(timeout, "within", most=LONGEST_TIMEOUT, zero=False)
        wanted = sorted(offsets)
        what = f"looking up the times of records in {summarize(wanted)}"
        with self._calling(what, timeout) as deadline:
            try:
                with self._alone(what, deadline):
                    logs = self._logs(what, wanted, isolation_level, deadline)
            except BrokerUnavailableError as error:
                log.info("The times of records stay unknown: %s", error)
                return {}
            positions = positions_in_logs(offsets, logs)
            # It has a Consumer of its own, so that calls of other threads need not wait.
            try:
                times = fetch_times(self._config, positions, isolation_level, deadline)
            except Failed as error:
                raise explain(what, error.failure, Causes(), self._servers, timeout, "Read") from None
        return {tp: times.get(tp) for tp in wanted if tp in times or tp not in positions}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """
        Commit offsets to a group that has no active members.

        Many partitions are committed in several requests. Nothing is compared: whether the offsets are in the
        log, or go backwards, is for the caller to know.

        :param group_id: the group; the first commit creates it.
        :param offsets: the next record to read, for each partition.
        :param metadata: a text that is kept with each of them, 4,095 bytes at most.
        :raises GroupActiveError: if the group has members; names them.
        :raises CommitError: if partitions were refused; says which, and which were written.
        """
        check_commit(group_id, offsets, metadata)
        what = f"committing to group {group_id!r}"
        written: list[TopicPartition] = []
        with self._asking(what) as deadline:
            # Most of what can be refused shows here, before the first write: it is the same for all partitions of a topic.
            # And a commit that still looks for its coordinator keeps the client from closing for a minute.
            try:
                one_each = {tp.topic: tp for tp in offsets}.values()
                self._committed(what, group_id, one_each, deadline, "Read")
            except BrokerError as error:
                raise and_then(error, "nothing was written") from None
            for part in commit_chunks(group_id, offsets, metadata):
                progress = self._commit(group_id, part, metadata, deadline)
                written += progress.written
                if progress.pending or progress.refused:
                    raise not_committed(
                        group_id,
                        offsets,
                        written,
                        progress,
                        members=lambda: self._members(group_id, deadline),
                        explained=lambda failure: explain(
                            what, failure, Causes(), self._servers, deadline.timeout, "Read"
                        ),
                    )

    def prove_commit(self, group_id: str, topics: Iterable[str]) -> None:
        """
        See that this user may commit to a group, for some topics; nothing is written.

        It commits to a partition that no topic has. The broker looks at the rights on group and topics first, and refuses
        what is allowed only then, because the partition does not exist (``KafkaApis.handleOffsetCommitRequest``).

        :raises BrokerAuthenticationError: naming the right that is missing.
        """
        wanted = {TopicPartition(topic, _NO_PARTITION): 0 for topic in sorted(set(topics))}
        what = f"seeing whether group {group_id!r} may be committed to"

        def question(connection: Connection, timeout: float) -> None:
            answers = send_commit(connection, wanted, "", timeout)
            for failure in answers.values():
                if failure is not None and failure.code not in UNKNOWN_PARTITION:
                    raise Failed(failure)

        check_commit(group_id, wanted, "")
        with self._asking(what) as deadline:
            # As for a commit: one that still looks for its coordinator keeps the client from closing.
            try:
                self._committed(what, group_id, wanted, deadline, "Read")
                self._ask(what, question, deadline, self._connections.get(group_id), "Read")
            except BrokerError as error:
                raise and_then(error, "nothing was changed") from None

    def commit_window(
        self, group_id: str, window: OffsetWindow, metadata: str = "", *, fenced: bool = True
    ) -> Offsets:
        """
        Commit a window's end to a group that stands at its start, see :mod:`airflow_kafka_offsets.kafka.fenced`.

        :param group_id: the group.
        :param window: the ranges; where the group is at the end already, there is nothing to do.
        :param metadata: a text that is kept with each offset.
        :param fenced: join the group, so that comparing and writing are one step. Without it every end is written,
            and another commit could come between the two.
        :return: what was written.
        :raises WindowMismatchError: if the group stands elsewhere; nothing was written.
        :raises GroupActiveError: if the group has other members.
        """
        if fenced:
            commit = FencedCommit(
                self._config, self._groups, group_id, window, metadata, chunk_size=self._chunk_size
            )
            with self._calling(f"committing a window to group {group_id!r}") as deadline:
                return commit.run(deadline)
        held = self.committed(group_id, window.ranges)
        window.to_commit(
            f"group {group_id!r}",
            {tp: commit and commit.offset for tp, commit in held.items()},
            {tp: commit and commit.metadata for tp, commit in held.items()},
        )
        self.commit(group_id, window.end, metadata)
        return window.end

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """
        Return state and members of groups; a group that does not exist is ``Dead``.

        It is asked in a child process.
        """
        with self._calling("describing groups") as deadline:
            return self._groups.describe(sorted(set(group_ids)), deadline)

    def settled_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """
        Return state and members of groups as :meth:`describe_groups` does, after waiting for windows' commits to end.

        :raises GroupActiveError: if one has not ended in time, which is worth another try.
        """
        wanted, what = sorted(set(group_ids)), "describing groups"

        def attempt(_: float) -> dict[str, GroupDescription]:
            described = self._groups.describe(wanted, deadline)
            for group in described.values():
                if group.occupied:
                    raise Failed(Failure(OCCUPIED, group.group_id))
            return described

        with self._calling(what) as deadline:
            try:
                return until(deadline, attempt, Causes, also=[OCCUPIED])
            except Failed as error:
                what = f"describing group {error.failure.text!r}"
                raise explain(what, error.failure, Causes(), self._servers, deadline.timeout) from None

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        """
        Return all groups in order of their names. It is asked in a child process.

        :param states: only those in one of these states, as Kafka spells them; default: all.
        """
        with self._calling("listing groups") as deadline:
            return self._groups.list(states, deadline)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, str | None]:
        """
        Delete groups with all their offsets. It is done in a child process.

        :return: group -> ``None`` if it was deleted, else why not.
        """
        with self._calling("deleting groups") as deadline:
            return self._groups.delete(sorted(set(group_ids)), deadline)

    def offsets_retention_minutes(self) -> int | None:
        """Return how long the broker keeps the offsets of a group without members; ``None`` if it does not tell."""
        with self._calling("reading the broker's configuration") as deadline:
            return self._groups.retention_minutes(deadline)

    @contextmanager
    def _asking(self, what: str) -> Iterator[Deadline]:
        with self._calling(what) as deadline, self._alone(what, deadline):
            yield deadline

    @contextmanager
    def _calling(self, what: str, timeout: float | None = None) -> Iterator[Deadline]:
        """Give a call its time, and take that off what all calls together have."""
        if self._left < _LEAST:
            raise BrokerUnavailableError(
                f"{what}: the calls before it have taken all of the {self._total:g} s for all of them: see why the broker "
                "answers slowly, then try again"
            )
        timeout = timeout or self._timeout
        deadline = Deadline(timeout if timeout <= self._left else round(self._left, 1))
        start = time.monotonic()
        try:
            yield deadline
        finally:
            self._left -= time.monotonic() - start

    @contextmanager
    def _alone(self, what: str, deadline: Deadline) -> Iterator[None]:
        """Keep other threads' calls out, and a closed client's."""
        if not self._lock.acquire(timeout=deadline.left):
            raise BrokerUnavailableError(
                f"{what}: another call of this client took all of {deadline.timeout:g} s: try again, or use two clients"
            )
        try:
            if self._closed:
                raise UsageError(f"{what}: this client was closed; make a new one")
            yield
        finally:
            if self._closed:
                self._connections.close(0)
            self._lock.release()

    def _ask(
        self,
        what: str,
        question: Callable[[Connection, float], T],
        deadline: Deadline,
        connection: Connection | None = None,
        needs: Right = "Describe",
    ) -> T:
        connection = connection or self._connections.get()
        # What was noted since the last call: the cause of an error then is not one now.
        connection.drain()
        connection.causes.clear()
        try:
            return until(deadline, lambda timeout: question(connection, timeout), lambda: connection.causes)
        except Failed as error:
            if connection.causes.final is not None:
                # The client tells some of them only once, such as a coordinator that must not be asked.
                self._connections.discard(connection)
            raise explain(
                what, error.failure, connection.causes, self._servers, deadline.timeout, needs
            ) from None

    def _all_topics(self, connection: Connection, timeout: float) -> dict[str, list[int]]:
        topics = read_topics(connection, None, timeout)
        sees_all = _OFFSETS_TOPIC in topics
        if not sees_all and self._sees_all is not False:
            # It is not there before the first commit on a cluster: then nobody says that it may not be seen.
            try:
                read_topics(connection, _OFFSETS_TOPIC, timeout)
                sees_all = True
            except Failed as error:
                if error.failure.code != TOPIC_HIDDEN:
                    raise
        if self._sees_all is not False and not sees_all:
            log.warning(
                "The broker at %s hides topics that a user may not describe, and this user sees only the topics that were "
                "granted to it, %d: where topics are not named, all topics of a group, and all that fit a pattern, are of "
                "those. Name topics=, or grant it Describe on all of the group's",
                self._servers,
                len(topics),
            )
        self._sees_all = sees_all
        return topics

    def _explain_nothing(self, what: str, group_id: str, deadline: Deadline) -> None:
        """Say which right is missing to a user who sees no topic, so that nothing would be asked."""
        try:
            self._committed(what, group_id, [TopicPartition(_OFFSETS_TOPIC, 0)], deadline)
        except BrokerAuthenticationError as error:
            if error.code != TOPIC_HIDDEN:
                raise
            raise BrokerAuthenticationError(
                f"{what}: this user may see no topic at all: grant it Describe on the topics that the group reads",
                code=error.code,
            ) from None

    def _committed(
        self,
        what: str,
        group_id: str,
        partitions: Iterable[TopicPartition],
        deadline: Deadline,
        needs: Right = "Describe",
    ) -> dict[TopicPartition, Committed | None]:
        wanted = sorted(dict.fromkeys(partitions))
        check_partitions(wanted)
        found: dict[TopicPartition, Committed | None] = {}

        def question(connection: Connection, timeout: float) -> dict[TopicPartition, Committed | None]:
            for chunk in self._chunks([tp for tp in wanted if tp not in found]):
                found.update(read_commits(connection, chunk, timeout))
            return found

        check_group(group_id)
        return self._ask(what, question, deadline, self._connections.get(group_id), needs) if wanted else {}

    def _logs(
        self,
        what: str,
        wanted: Sequence[TopicPartition],
        isolation_level: IsolationLevel,
        deadline: Deadline,
    ) -> dict[TopicPartition, LogRange]:
        if not wanted:
            return {}
        connection = self._connections.get(isolation_level=isolation_level)
        other = self._connections.other_than(connection) if len(wanted) > self._chunk_size else None

        def offsets_at(timestamp: int, over: Connection) -> Offsets:
            return self._offsets_at(what, wanted, timestamp, deadline, over)

        # Apart: one request that names a partition twice gets the last answer for both.
        if other is None:
            starts, ends = offsets_at(LOG_START, connection), offsets_at(LOG_END, connection)
        else:
            # A broker answers what comes over one connection one by one. The log start is the same over any.
            with ThreadPoolExecutor(1) as meanwhile:
                asked = meanwhile.submit(offsets_at, LOG_START, other)
                ends = offsets_at(LOG_END, connection)
                starts = asked.result()
        # Retention may have moved the start of an emptied log past the end that was read for it.
        return {tp: LogRange(starts[tp], max(starts[tp], ends[tp])) for tp in wanted}

    def _offsets_at(
        self,
        what: str,
        wanted: Sequence[TopicPartition],
        timestamp: int,
        deadline: Deadline,
        connection: Connection | None = None,
    ) -> Offsets:
        check_partitions(wanted)
        found: Offsets = {}
        absent: dict[TopicPartition, int] = {}

        def question(connection: Connection, timeout: float) -> Offsets:
            failures: dict[TopicPartition, Failure] = {}
            for chunk in self._chunks([tp for tp in wanted if tp not in found]):
                got, failed = read_offsets(connection, chunk, timestamp, timeout)
                found.update(got)
                failures.update(failed)
            unknown = [tp for tp, failure in failures.items() if failure.code in UNKNOWN_PARTITION]
            missing = missing_partitions(connection, unknown, timeout)
            for tp in missing:
                absent[tp] = absent.get(tp, 0) + 1
            if missing and max(absent[tp] for tp in missing) >= _ABSENT_TWICE:
                raise UnknownTopicPartitionError(
                    f"{what}: {summarize(missing)} is not on {self._servers}: correct topic and partition, "
                    "or the connection",
                    missing=sorted(missing),
                )
            # One that does not pass first: there is no use in asking again for the others.
            for failure in sorted(failures.values(), key=lambda failure: failure.code in _PASSES):
                # While a partition has no leader the client says as well that it does not know it.
                hidden = failure.code in UNKNOWN_PARTITION and without_leader(connection, unknown, timeout)
                raise Failed(hidden or failure)
            return found

        return self._ask(what, question, deadline, connection) if wanted else {}

    def _commit(self, group_id: str, part: Offsets, metadata: str, deadline: Deadline) -> CommitProgress:
        what = f"reading back the offsets of group {group_id!r}"

        def read_back(offsets: Offsets) -> list[TopicPartition]:
            held = self._committed(what, group_id, offsets, deadline)
            return [tp for tp, offset in offsets.items() if held[tp] == Committed(offset, metadata)]

        progress = CommitProgress(part, read_back)
        connection = self._connections.get(group_id)

        def attempt(_: float) -> None:
            nonlocal connection
            progress.look_up()
            if not progress.pending:
                return
            connection = self._connections.get(group_id)
            connection.causes.clear()
            timeout = min(ATTEMPT, deadline.left)
            try:
                got = send_commit(connection, progress.pending, metadata, timeout)
            except Failed as error:
                progress.last.update(dict.fromkeys(progress.pending, error.failure))
                progress.uncertain = True
                # Its answer may still come, and would be taken for that of the next commit.
                self._connections.discard(connection)
                raise
            # That is said for the whole group: nothing was written.
            if any(failure and failure.code in ACTIVE_GROUP for failure in got.values()):
                self._wait_if_occupied(group_id, progress, deadline)
            progress.take(got, lambda unknown: missing_partitions(connection, unknown, timeout))

        what = f"committing to group {group_id!r}"
        try:
            until(deadline, attempt, lambda: connection.causes, also=[OCCUPIED])
        except Failed as error:
            progress.reason = explain(
                what, error.failure, connection.causes, self._servers, deadline.timeout, "Read"
            )
        except BrokerError as error:
            progress.reason = error
        return progress

    def _wait_if_occupied(self, group_id: str, progress: CommitProgress, deadline: Deadline) -> None:
        group = self._described(group_id, deadline)
        # It may be over since.
        if group is not None and (group.occupied or not group.active):
            failure = Failure(OCCUPIED, f"group {group_id!r} is {group.state}")
            progress.last.update(dict.fromkeys(progress.pending, failure))
            raise Failed(failure)

    def _members(self, group_id: str, deadline: Deadline) -> Sequence[GroupMember]:
        group = self._described(group_id, deadline)
        return () if group is None else group.members

    def _described(self, group_id: str, deadline: Deadline) -> GroupDescription | None:
        left = Deadline(min(_LOOK_AT_MEMBERS, deadline.left))
        try:
            return self._groups.describe([group_id], left)[group_id]
        except (BrokerError, SetupError) as error:
            log.debug("Could not find out who is in group %s: %s", group_id, error)
            return None

    def _chunks(self, partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
        for first in range(0, len(partitions), self._chunk_size):
            yield partitions[first : first + self._chunk_size]
