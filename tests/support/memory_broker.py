"""
A Kafka in memory, beneath the real client: `memory_clients.py` lets ``OffsetsClient`` ask it.

It is no mock: `tests/contract/test_broker.py` runs the same tests against it and against a real Kafka. A
request is one method of :class:`MemoryBroker`; its arguments and its result are plain values with a hash,
and what a request changes is a :class:`Group`, which is replaced as a whole. The rights of a user are checked
by the :class:`Listener` that the user's client is connected to.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import NamedTuple

from airflow_kafka_offsets.kafka.failures import TOPIC_HIDDEN
from airflow_kafka_offsets.kafka.groups import COMMITTER
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC
from airflow_kafka_offsets.model.offsets import Commit, LogRange, TopicPartition

UNKNOWN_TOPIC = "UNKNOWN_TOPIC_OR_PART"
GROUP_HIDDEN = "GROUP_AUTHORIZATION_FAILED"
_INCLUDES = {"Describe": ("Describe", "Read", "Delete")}
"""The rights that include another one, besides itself."""
SETTINGS: dict[str, str | None] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Of topics; the retention is that of topics with old records in them."""


class Log(NamedTuple):
    """The records of a partition: the time of each one that was ever written, and the first that is left."""

    times: tuple[int, ...] = ()
    start: int = 0
    markers: frozenset[int] = frozenset()
    """Offsets without a record: what ends a transaction has an offset and a time."""

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
        self.topics = {OFFSETS_TOPIC: Topic("id-of-offsets", (Log(),))}
        self.groups: dict[str, Group] = {}
        self.cluster_id = "cluster-in-memory"
        self.member_ids = count(1)
        self._topic_ids = count(1)

    def config(
        self, rights: Iterable[tuple[str, str, str]] | None = None, address: str | None = None
    ) -> dict[str, str]:
        """
        Return the settings of a client that is connected to this broker.

        :param rights: of the user; by default all.
        :param address: replaces a broker that had this address; by default it is new.
        """
        address = address or f"in-memory-{len(LISTENERS)}:9092"
        LISTENERS[address] = Listener(self, rights)
        return {"bootstrap.servers": address}

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

    def mark(self, topic: str, partition: int, offset: int) -> None:
        """Make a transaction's marker of a record."""
        self._change(topic, partition, lambda log: log._replace(markers=log.markers | {offset}))

    def append_in_transaction(self, tp: TopicPartition, *times: int) -> None:
        """Write records of these times, and the marker behind them, which has the broker's time."""
        self.append(*tp, [*times, int(time.time() * 1000)])
        self.mark(*tp, self.log(tp).range.end - 1)

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
        there = {tp: commit for tp, commit in commits if self.has(tp)}
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

    def every_group(self) -> tuple[tuple[str, Group], ...]:
        """ListGroups."""
        return tuple(self.groups.items())

    def delete(self, group_id: str) -> str | None:
        """DeleteGroups: the code of the refusal."""
        group = self.groups.get(group_id)
        if group is None:
            return "GROUP_ID_NOT_FOUND"
        if group.members:
            return "NON_EMPTY_GROUP"
        del self.groups[group_id]
        return None

    def delete_offsets(
        self, group_id: str, partitions: tuple[TopicPartition, ...]
    ) -> tuple[tuple[TopicPartition, str], ...] | None:
        """OffsetDelete: the partitions that were refused, each with its code; ``None`` without a group."""
        group = self.groups.get(group_id)
        if group is None:
            return None
        read = {topic for member in group.members for topic in member.topics}
        kept = tuple(each for each in group.commits if each[0] not in partitions or each[0].topic in read)
        if kept != group.commits:
            self.groups[group_id] = group._replace(commits=kept)
        return tuple((tp, "GROUP_SUBSCRIBED_TO_TOPIC") for tp in partitions if tp.topic in read)

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

    def has(self, tp: TopicPartition) -> bool:
        return tp.topic in self.topics and tp.partition < len(self.topics[tp.topic].logs)

    def log(self, tp: TopicPartition) -> Log:
        return self.topics[tp.topic].logs[tp.partition]


class Listener:
    """An address of a broker for one user: its answers have the error codes of missing rights."""

    def __init__(self, broker: MemoryBroker, rights: Iterable[tuple[str, str, str]] | None) -> None:
        self.broker = broker
        self._rights = None if rights is None else frozenset(rights)

    def may(self, resource: str, name: str, right: str = "Describe") -> bool:
        return self._rights is None or any(
            (resource, each, included) in self._rights
            for each in (name, "*")
            for included in _INCLUDES.get(right, (right,))
        )

    def topic_error(self, name: str, right: str = "Describe") -> str | None:
        """Return why a topic is not there for the user."""
        if not self.may("topic", name, right):
            return TOPIC_HIDDEN
        return None if name in self.broker.topics else UNKNOWN_TOPIC

    def commit(
        self, group_id: str, commits: Mapping[TopicPartition, Commit], member: str = "", generation: int = -1
    ) -> dict[TopicPartition, str]:
        """Send a commit; return what was refused. The broker checks the rights first."""
        if not self.may("group", group_id, "Read"):
            return dict.fromkeys(commits, GROUP_HIDDEN)
        allowed = tuple(each for each in commits.items() if self.may("topic", each[0].topic, "Read"))
        fence = (member, generation) if member else ()
        refused = dict(self.broker.send(group_id, allowed, *fence)) if allowed else {}
        return refused | dict.fromkeys(commits.keys() - dict(allowed), TOPIC_HIDDEN)


LISTENERS: dict[str, Listener] = {}
"""Address -> what answers there."""


def filled_broker(
    *logs: Iterable[int], topic: str = "orders", cluster_id: str = "cluster-in-memory"
) -> MemoryBroker:
    """Return a broker with a topic; each of its partitions has records of these times."""
    broker = MemoryBroker()
    broker.cluster_id = cluster_id
    broker.create(topic, len(logs))
    for number, times in enumerate(logs):
        broker.append(topic, number, times)
    return broker
