"""
A Kafka in memory, and a client of it with the methods of ``OffsetsClient``.

It is no mock: `tests/contract/test_broker.py` runs the same tests against it and against a real Kafka. A
request is one method of :class:`MemoryBroker`; its arguments and its result are plain values with a hash,
and what a request changes is a :class:`Group`, which is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.errors import BrokerError, GroupActiveError, UnknownTopicPartitionError, UsageError
from airflow_kafka_offsets.kafka.admin import _NOT_DELETED
from airflow_kafka_offsets.kafka.commits import check_commit
from airflow_kafka_offsets.kafka.explain import Call, active_group_error, commit_error
from airflow_kafka_offsets.kafka.failures import ACTIVE_GROUP, OCCUPIED, TOPIC_HIDDEN, Failure
from airflow_kafka_offsets.kafka.groups import (
    COMMITTER,
    OTHER,
    GroupDescription,
    GroupListing,
    GroupMember,
    check_states,
)
from airflow_kafka_offsets.kafka.record_reads import Record, positions_in_logs
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.names import parse_existing_groups, parse_group
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Commit,
    Commits,
    IsolationLevel,
    LogRange,
    OffsetRange,
    Offsets,
    TopicPartition,
    check_partitions,
    summarize,
)

if TYPE_CHECKING:
    from typing import Self

    from airflow_kafka_offsets.kafka.explain import Right

UNKNOWN_TOPIC = "UNKNOWN_TOPIC_OR_PART"
GROUP_HIDDEN = "GROUP_AUTHORIZATION_FAILED"
_TEXTS = {
    GROUP_HIDDEN: "Broker: Group authorization failed",
    TOPIC_HIDDEN: "Broker: Topic authorization failed",
    UNKNOWN_TOPIC: "Broker: Unknown topic or partition",
    "ILLEGAL_GENERATION": "Broker: Specified group generation id is not valid",
    "UNKNOWN_MEMBER_ID": "Broker: Unknown member",
}
_INCLUDES = {"Describe": ("Describe", "Read", "Delete"), "Read": ("Read",), "Delete": ("Delete",)}
_TRIES = 5
SETTINGS: dict[str, str | None] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Of topics; the retention is that of topics with old records in them."""


class Log(NamedTuple):
    """The records of a partition: the time of each one that was ever written, and the first that is left."""

    times: tuple[int, ...] = ()
    start: int = 0

    @property
    def range(self) -> LogRange:
        return LogRange(self.start, len(self.times))


class Topic(NamedTuple):
    topic_id: str
    logs: tuple[Log, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """Those that differ from :data:`SETTINGS`."""


class Member(NamedTuple):
    member_id: str
    client_id: str
    topics: tuple[str, ...]


class Group(NamedTuple):
    """What a coordinator knows of a group."""

    commits: tuple[tuple[TopicPartition, Commit], ...] = ()
    members: tuple[Member, ...] = ()
    generation: int = 0
    type: str = "classic"

    @property
    def occupied(self) -> bool:
        """Whether its members only commit a window, and leave."""
        return bool(self.members) and all(each.client_id.endswith(COMMITTER) for each in self.members)


class MemoryBroker:
    """Topics and groups; its methods are the requests of clients, and what tests do to topics."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.cluster_id = "cluster-in-memory"
        self._topic_ids = count(1)

    # --- what tests do

    def create(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic; one that is there is deleted first."""
        self.delete_topic(topic)
        logs, changed = (Log(),) * partitions, tuple((settings or {}).items())
        self.topics[topic] = Topic(f"{topic}-id-{next(self._topic_ids)}", logs, changed)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number."""
        found = self.topics[topic]
        added = (Log(),) * (partitions - len(found.logs))
        self.topics[topic] = found._replace(logs=(*found.logs, *added))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and with it what groups have committed to it."""
        if self.topics.pop(topic, None) is not None:
            for name, group in self.groups.items():
                kept = tuple(each for each in group.commits if each[0].topic != topic)
                self.groups[name] = group._replace(commits=kept)

    def append(self, topic: str, partition: int, times: Iterable[int]) -> None:
        """Write records of these times."""
        self._change(topic, partition, lambda log: log._replace(times=(*log.times, *times)))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        self._change(topic, partition, lambda log: log._replace(start=before))

    def forget(self, group_id: str) -> None:
        """Forget a group's commits, as Kafka does offsets.retention.minutes after the last one."""
        self.groups.pop(group_id, None)

    def _change(self, topic: str, partition: int, change: Callable[[Log], Log]) -> None:
        found = self.topics[topic]
        logs = [change(log) if number == partition else log for number, log in enumerate(found.logs)]
        self.topics[topic] = found._replace(logs=tuple(logs))

    # --- requests

    def fetch(
        self, group_id: str, partitions: tuple[TopicPartition, ...] | None
    ) -> tuple[Commit | None, ...]:
        """OffsetFetch: the commit of each partition."""
        commits = dict(self.groups.get(group_id, Group()).commits)
        return tuple(commits.get(tp) for tp in partitions or ())

    def fetch_all(self, group_id: str) -> tuple[tuple[TopicPartition, Commit], ...]:
        """OffsetFetch without partitions: all commits."""
        return self.groups.get(group_id, Group()).commits

    def send(
        self,
        group_id: str,
        commits: tuple[tuple[TopicPartition, Commit], ...],
        member: str = "",
        generation: int = -1,
    ) -> tuple[tuple[TopicPartition, str], ...]:
        """OffsetCommit: the partitions that were refused, each with its code."""
        group = self.groups.get(group_id, Group())
        # The broker looks for the partitions first, and asks the coordinator about the others only.
        there = {tp: commit for tp, commit in commits if self._exists(tp)}
        refused = {tp: UNKNOWN_TOPIC for tp, _ in commits if tp not in there}
        known = any(each.member_id == member for each in group.members)
        if (group.members or member) and not known:
            refused |= dict.fromkeys(there, "UNKNOWN_MEMBER_ID")
        elif known and generation != group.generation:
            refused |= dict.fromkeys(there, "ILLEGAL_GENERATION")
        elif there:
            held = tuple(sorted({**dict(group.commits), **there}.items()))
            self.groups[group_id] = group._replace(commits=held)
        return tuple(refused.items())

    def describe(self, group_id: str) -> Group | None:
        """DescribeGroups: ``None`` for a group that is not there."""
        return self.groups.get(group_id)

    def names(self) -> tuple[str, ...]:
        """ListGroups."""
        return tuple(sorted(self.groups))

    def delete(self, group_id: str) -> str | None:
        """DeleteGroups: the code of the refusal."""
        group = self.groups.get(group_id)
        if group is None:
            return "GROUP_ID_NOT_FOUND"
        if group.members:
            return "NON_EMPTY_GROUP"
        del self.groups[group_id]
        return None

    def join(
        self, group_id: str, member_id: str, client_id: str, topics: tuple[str, ...]
    ) -> tuple[int, tuple[TopicPartition, ...]]:
        """JoinGroup and SyncGroup: the generation, and the partitions of this member."""
        group = self.groups.get(group_id, Group())
        others = tuple(each for each in group.members if each.member_id != member_id)
        group = group._replace(
            members=(*others, Member(member_id, client_id, topics)), generation=group.generation + 1
        )
        self.groups[group_id] = group
        return group.generation, self.assigned(group, member_id)

    def leave(self, group_id: str, member_id: str) -> None:
        """LeaveGroup."""
        group = self.groups.get(group_id, Group())
        left = tuple(each for each in group.members if each.member_id != member_id)
        if left != group.members:
            self.groups[group_id] = group._replace(members=left, generation=group.generation + 1)

    def wait(self, group_id: str) -> bool:
        """Wait until nobody commits a window to a group any more; whether that has come."""
        return not self.groups.get(group_id, Group()).occupied

    def alone(self, group_id: str, member_id: str) -> bool:
        """Wait until a member has its group for itself; whether that has come."""
        return {each.member_id for each in self.groups[group_id].members} == {member_id}

    def assigned(self, group: Group, member_id: str) -> tuple[TopicPartition, ...]:
        """The partitions of a member, by Kafka's range assignor."""
        found: list[TopicPartition] = []
        for topic in sorted({topic for each in group.members for topic in each.topics} & self.topics.keys()):
            readers = [each.member_id for each in group.members if topic in each.topics]
            partitions = range(len(self.topics[topic].logs))
            share, more = divmod(len(partitions), len(readers))
            for place, reader in enumerate(readers):
                first = place * share + min(place, more)
                mine = partitions[first : first + share + (place < more)]
                found += [TopicPartition(topic, number) for number in mine if reader == member_id]
        return tuple(found)

    def log(self, tp: TopicPartition) -> Log:
        return self.topics[tp.topic].logs[tp.partition]

    def _exists(self, tp: TopicPartition) -> bool:
        return tp.topic in self.topics and tp.partition < len(self.topics[tp.topic].logs)


class MemoryClient:
    """
    A client of a :class:`MemoryBroker`, with the methods of ``OffsetsClient`` and its errors.

    :param rights: of the user; by default all.
    :param name: tells members of groups apart.
    """

    servers = "in-memory:9092"

    def __init__(
        self, broker: MemoryBroker, rights: Iterable[tuple[str, str, str]] | None = None, name: str = "client"
    ) -> None:
        self._broker = broker
        self._rights = None if rights is None else frozenset(rights)
        self._name = name
        self._members = count(1)

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- topics and logs

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        there = self._broker.topics
        if topics is None:
            return {name: self._numbers(name) for name in sorted(there) if self._may("topic", name)}
        wanted = sorted(set(topics))
        check_partitions(TopicPartition(topic, 0) for topic in wanted)
        for topic in wanted:
            self._need("topic", topic, "Describe", f"looking up topics {', '.join(wanted[:5])}")
        return {name: self._numbers(name) for name in wanted if name in there}

    def sees_all_topics(self) -> bool:
        return self._may("topic", "*")

    def cluster_id(self) -> str:
        return self._broker.cluster_id

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        wanted = sorted(set(topics))
        for topic in wanted:
            self._need("topic", topic, "Describe", f"looking up the ids of topics {', '.join(wanted[:5])}")
        there = self._broker.topics
        return LogIds(self.cluster_id(), {name: there[name].topic_id for name in wanted if name in there})

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        there = self._broker.topics
        changed = {topic: there[topic].settings if topic in there else () for topic in sorted(set(topics))}
        return {topic: {**SETTINGS, **dict(each)} for topic, each in changed.items()}

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        wanted = self._there(partitions, "reading the log ends of {}")
        return {tp: self._broker.log(tp).range for tp in wanted}

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        if not 0 <= timestamp_ms <= MAX_OFFSET:
            raise UsageError(f"found timestamp {timestamp_ms}; expected milliseconds since 1970, 0 or more")
        wanted = self._there(partitions, "looking up a time in {}")

        def first(log: Log) -> int | None:
            at = (n for n in range(log.start, len(log.times)) if log.times[n] >= timestamp_ms)
            return next(at, None)

        return {tp: first(self._broker.log(tp)) for tp in wanted}

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        what = "looking up the times of records in {}"
        wanted = self._there(offsets, what)
        logs = {tp: self._broker.log(tp) for tp in wanted}
        inside = positions_in_logs(offsets, {tp: log.range for tp, log in logs.items()})
        for tp in inside:
            self._need("topic", tp.topic, "Read", what.format(summarize(wanted)))
        return {tp: logs[tp].times[inside[tp]] if tp in inside else None for tp in wanted}

    def first_since(
        self, ranges: Mapping[TopicPartition, OffsetRange], timestamp_ms: int
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        what = "looking for a time in the records of {}"
        wanted = self._there(ranges, what)
        for tp in wanted:
            self._need("topic", tp.topic, "Read", what.format(summarize(wanted)))

        def first(tp: TopicPartition) -> tuple[int, int] | None:
            log, (start, end) = self._broker.log(tp), ranges[tp]
            inside = range(max(start, log.start), min(end, len(log.times)))
            return next(((n, log.times[n]) for n in inside if log.times[n] >= timestamp_ms), None)

        return {tp: first(tp) for tp in wanted}

    def read_records(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        take: Callable[[TopicPartition, Record], None],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Offsets:
        """Its records have times only: all are empty."""
        what = "reading records of {}"
        wanted = self._there(ranges, what)
        for tp in wanted:
            self._need("topic", tp.topic, "Read", what.format(summarize(wanted)))
            log, (start, end) = self._broker.log(tp), ranges[tp]
            for offset in range(max(start, log.start), min(end, len(log.times))):
                take(tp, Record(offset, log.times[offset], None, b""))
        return {tp: ranges[tp].end for tp in wanted}

    def record_sizes(
        self, offsets: Mapping[TopicPartition, int], *, within: float = 5.0
    ) -> dict[TopicPartition, list[int]]:
        """Its records have times only: there is nothing to measure."""
        return {}

    # --- groups

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        wanted = sorted(set(partitions))
        check_partitions(wanted)
        what = f"reading the offsets of group {group_id!r}"
        return self._read(group_id, wanted, what)

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        self._need("group", parse_group(group_id), "Describe", f"reading all offsets of group {group_id!r}")
        found = self._broker.fetch_all(group_id)
        return {tp: commit for tp, commit in found if self._may("topic", tp.topic)}

    def committed_groups(
        self, wanted: Mapping[str, Iterable[TopicPartition] | None], *, within: float | None = None
    ) -> dict[str, dict[TopicPartition, Commit] | BrokerError]:
        found: dict[str, dict[TopicPartition, Commit] | BrokerError] = {}
        for group_id, partitions in wanted.items():
            try:
                every = self.committed_everywhere(group_id)
                named = every if partitions is None else partitions
                found[group_id] = {tp: every[tp] for tp in sorted(set(named)) if tp in every}
            except BrokerError as error:
                found[group_id] = error
        return found

    def assigned(self, group_id: str) -> frozenset[TopicPartition]:
        members = self.describe_groups([group_id])[group_id].members
        return frozenset(tp for member in members for tp in member.partitions)

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        described = {}
        for group_id in parse_existing_groups(group_ids):
            self._need("group", group_id, "Describe", f"describing group {group_id!r}")
            described[group_id] = self._described(group_id, self._broker.describe(group_id))
        return described

    def settled_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        names = parse_existing_groups(group_ids)
        while True:
            described = self.describe_groups(names)
            occupied = [group.group_id for group in described.values() if group.is_occupied]
            if not occupied:
                return described
            self._wait(occupied[0], self._call(f"describing group {occupied[0]!r}"))

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        kept = None if states is None else check_states(states)
        names = [name for name in self._broker.names() if self._may("group", name)]
        found = [self._described(name, self._broker.describe(name)) for name in names]
        return [
            GroupListing(each.group_id, each.state, each.type)
            for each in found
            if kept is None or each.state.lower() in kept
        ]

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, str | None]:
        results: dict[str, str | None] = {}
        for group_id in parse_existing_groups(group_ids):
            try:
                self._need("group", group_id, "Delete", f"deleting group {group_id!r}")
                code = self._broker.delete(group_id)
                results[group_id] = code and _NOT_DELETED[code]
            except BrokerError as error:
                results[group_id] = str(error)
        return results

    def offsets_retention_minutes(self) -> int | None:
        return 7 * 24 * 60

    # --- commits

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        texts = check_commit(group_id, offsets, metadata)
        call = self._call(f"committing to group {group_id!r}")
        commits = {tp: Commit(offset, texts[tp.topic]) for tp, offset in sorted(offsets.items())}
        one_each = list({tp.topic: tp for tp in offsets}.values())
        look = partial(
            self._read, group_id, one_each if check is None else sorted(offsets), call.what, "Read"
        )
        try:
            found = look()
        except BrokerError as error:
            raise error.append("nothing was written") from None
        for _ in range(_TRIES):
            if check is not None:
                check(found)
            refused = self._send(group_id, commits)
            if not refused:
                return
            members: Sequence[GroupMember] = ()
            if not ACTIVE_GROUP.isdisjoint(refused.values()):
                group = self._described(group_id, self._broker.describe(group_id))
                if group.is_occupied or not group.is_active:
                    self._wait(group_id, call)
                    found = look()
                    continue
                members = group.members
            raise commit_error(
                group_id,
                offsets,
                [tp for tp in commits if tp not in refused],
                {tp: _failure(code) for tp, code in refused.items()},
                lambda failure: call.explain(failure, "Read"),
                members=partial(tuple, members),
            )
        raise AssertionError(f"group {group_id} was occupied {_TRIES} times")

    def prove_commit(self, group_id: str, topics: Iterable[str]) -> None:
        nowhere = {TopicPartition(topic, MAX_PARTITION): Commit(0) for topic in sorted(set(topics))}
        call = self._call(f"checking the right to commit to group {group_id!r}")
        try:
            self._read(group_id, [*nowhere], call.what, "Read")
            for code in self._send(group_id, nowhere).values():
                if code != UNKNOWN_TOPIC:
                    raise call.explain(_failure(code), "Read")
        except BrokerError as error:
            raise error.append("nothing was changed") from None

    def commit_fenced(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str],
        left: Callable[[Commits], Offsets],
    ) -> Offsets:
        texts = check_commit(group_id, offsets, metadata)
        call = self._call(f"committing a window to group {group_id!r}")
        topics = tuple(sorted({tp.topic for tp in offsets}))
        for _ in range(_TRIES if offsets else 0):
            if not self._may("group", group_id, "Read"):
                raise call.explain(_failure(GROUP_HIDDEN), "Read").append("nothing was written")
            group = self._described(group_id, self._broker.describe(group_id))
            if group.is_occupied:
                self._wait(group_id, call)
                continue
            if group.is_active:
                raise active_group_error(group_id, group.members, "nothing was written")
            member = f"{self._name}-{next(self._members)}"
            generation, mine = self._broker.join(group_id, member, f"{self._name}{COMMITTER}", topics)
            refused: dict[TopicPartition, str] = {}
            try:
                if not offsets.keys() <= set(mine):
                    continue
                todo = left(self._read(group_id, sorted(offsets), call.what, "Read"))
                commits = {tp: Commit(offset, texts[tp.topic]) for tp, offset in sorted(todo.items())}
                if not todo:
                    return {}
                refused = self._send(group_id, commits, member, generation)
                if not refused and not left(self._read(group_id, sorted(offsets), call.what, "Read")):
                    return todo
            finally:
                self._broker.leave(group_id, member)
            if refused and ACTIVE_GROUP.isdisjoint(refused.values()):
                raise commit_error(
                    group_id,
                    offsets,
                    [tp for tp in commits if tp not in refused],
                    {tp: _failure(code) for tp, code in refused.items()},
                    lambda failure: call.explain(failure, "Read"),
                )
        if not offsets:
            return {}
        raise GroupActiveError(
            f"{call.what}: another client joined the group while it was compared: stop the other members and "
            "try again; nothing was written",
            code="REBALANCE_IN_PROGRESS",
            retriable=True,
        )

    # --- helpers of several methods

    def _call(self, what: str) -> Call:
        return Call(what, "memory", 30.0)

    def _may(self, resource: str, name: str, right: str = "Describe") -> bool:
        return self._rights is None or any(
            (resource, each, included) in self._rights
            for each in (name, "*")
            for included in _INCLUDES[right]
        )

    def _need(self, resource: str, name: str, right: Right, what: str, named: Right | None = None) -> None:
        if not self._may(resource, name, right):
            code = GROUP_HIDDEN if resource == "group" else TOPIC_HIDDEN
            raise self._call(what).explain(_failure(code), named or right)

    def _read(
        self, group_id: str, partitions: Sequence[TopicPartition], what: str, right: Right = "Describe"
    ) -> dict[TopicPartition, Commit | None]:
        """Read commits, which needs Describe; before a commit the error names the right to commit."""
        self._need("group", parse_group(group_id), "Describe", what, right)
        for topic in sorted({tp.topic for tp in partitions}):
            self._need("topic", topic, "Describe", what, right)
        return dict(zip(partitions, self._broker.fetch(group_id, tuple(partitions)), strict=True))

    def _send(
        self, group_id: str, commits: Mapping[TopicPartition, Commit], *member: Any
    ) -> dict[TopicPartition, str]:
        """Send a commit; return what was refused. The broker checks the rights first."""
        if not self._may("group", group_id, "Read"):
            return dict.fromkeys(commits, GROUP_HIDDEN)
        hidden = [tp for tp in commits if not self._may("topic", tp.topic, "Read")]
        allowed = tuple(each for each in commits.items() if each[0] not in hidden)
        refused = self._broker.send(group_id, allowed, *member) if allowed else ()
        return {**dict(refused), **dict.fromkeys(hidden, TOPIC_HIDDEN)}

    def _there(self, partitions: Iterable[TopicPartition], what: str) -> list[TopicPartition]:
        wanted = sorted(set(partitions))
        check_partitions(wanted)
        doing = what.format(summarize(wanted))
        for topic in sorted({tp.topic for tp in wanted}):
            self._need("topic", topic, "Describe", doing)
        if missing := [tp for tp in wanted if not self._broker._exists(tp)]:
            raise UnknownTopicPartitionError(
                f"{doing}: {summarize(missing)} is not on memory: correct topic and partition, or the "
                "connection",
                missing=missing,
            )
        return wanted

    def _wait(self, group_id: str, call: Call) -> None:
        if not self._broker.wait(group_id):
            raise call.explain(Failure(OCCUPIED, group_id)).append("nothing was written")

    def _numbers(self, topic: str) -> list[int]:
        return list(range(len(self._broker.topics[topic].logs)))

    def _described(self, group_id: str, group: Group | None) -> GroupDescription:
        if group is None:
            return GroupDescription(group_id, "Dead")
        if group.type == OTHER:
            return GroupDescription(group_id, "Unknown", OTHER)
        members = tuple(
            GroupMember(
                each.member_id,
                each.client_id,
                "/127.0.0.1",
                tuple(sorted(self._broker.assigned(group, each.member_id))),
            )
            for each in group.members
        )
        return GroupDescription(group_id, "Stable" if members else "Empty", group.type, members, "memory")


def _failure(code: str) -> Failure:
    return Failure(code, _TEXTS[code])
