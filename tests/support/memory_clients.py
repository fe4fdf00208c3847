"""
Connects the real ``OffsetsClient`` to brokers in memory.

The client has two ways out: Consumers, and lines of JSON to the admin process. At the address of a broker in
memory a :class:`MemoryConsumer` and a :class:`MemoryWorker` take their places. All else is the client's own.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as ClientPartition
from memory_broker import (
    GROUP_HIDDEN,
    LISTENERS,
    SETTINGS,
    UNKNOWN_TOPIC,
    Group,
    Listener,
    Log,
    MemoryBroker,
    Topic,
)
from tenacity import Retrying

from airflow_kafka_offsets.kafka import admin_process, connection, failures, retry, session
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import TOPIC_HIDDEN, Failure
from airflow_kafka_offsets.kafka.groups import OTHER
from airflow_kafka_offsets.kafka.worker import AdminWorker
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition

Part = tuple[Any, "Failure | None"]
"""The result for a group or topic, or its failure."""
Topics = Sequence[tuple[str, Sequence[int]]]
"""Partitions by topic."""


def open_client(broker: MemoryBroker, rights: Iterable[tuple[str, str, str]] | None = None) -> OffsetsClient:
    """Return a client of a broker, for a user with these rights, by default all."""
    return OffsetsClient(broker.config(rights))


class Clock:
    """The time of calls, which goes on with each wait: a wait takes none."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waited = 0.0

    def monotonic(self) -> float:
        return self._now() + self._waited

    def wait(self, seconds: float) -> None:
        self._waited += seconds


@contextmanager
def connected(clock: Clock | None = None, pause: Callable[[float], None] | None = None) -> Iterator[None]:
    """
    Within it clients find brokers in memory at their addresses, and do not wait before they repeat a call.

    They ask over one connection after the other: threads took a tenth of the CPU time of the tests.

    :param clock: decides when the time of a call is up.
    :param pause: takes the place of such a wait.
    """
    clock = clock or Clock()

    def consumer(settings: Mapping[str, Any]) -> Any:
        at = LISTENERS.get(settings["bootstrap.servers"])
        return Consumer(settings) if at is None else MemoryConsumer(at, settings, clock)

    def worker(settings: str, token: Sequence[Any] | None) -> Any:
        at = LISTENERS.get(json.loads(settings)["config"]["bootstrap.servers"])
        return AdminWorker(settings, token) if at is None else MemoryWorker(at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "Consumer", consumer)
        for module in (connection, session):
            patch.setattr(module, "ThreadPoolExecutor", _NoThreads)
        patch.setattr(admin_process, "AdminWorker", worker)
        patch.setattr(failures, "time", clock)
        patch.setattr(retry, "Retrying", partial(Retrying, sleep=pause or clock.wait))
        yield


class _NoThreads(ThreadPoolExecutor):
    """Makes each call at once."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        made: Future[Any] = Future()
        try:
            made.set_result(function(*given, **named))
        except Exception as error:  # noqa: BLE001  # raised by its result
            made.set_exception(error)
        return made


def _error(code: str) -> KafkaError:
    return KafkaError(getattr(KafkaError, code))


def _failed(code: str) -> Part:
    return None, Failure.from_error(_error(code))


class MemoryWorker:
    """The admin process, with the broker in it: makes the calls of ``kafka/admin_calls.py``."""

    is_usable = True

    def __init__(self, at: Listener) -> None:
        self._at, self._broker = at, at.broker

    def ask(self, request: str, timeout: float) -> str:
        """Return the line that answers the line of a request."""
        asked = json.loads(request)
        result = getattr(self, asked["call"])(asked["arguments"])
        response = {"result": result, "failure": None, "background_errors": [], "last": False}
        return json.dumps({**response, "cluster_id": self._broker.cluster_id})

    def end(self, patience: float = 0) -> tuple[int, str]:
        """There is no process to end."""
        return 0, ""

    def commit(self, commit: dict[str, Any]) -> dict[str, Part]:
        texts = commit["texts"]
        refused: dict[TopicPartition, str] = {}
        for part in commit["parts"]:
            commits = {TopicPartition(*tp): Commit(offset, texts[tp[0]]) for *tp, offset in part}
            refused |= self._at.commit(commit["group_id"], commits)
        return {str(tp): _failed(code) for tp, code in refused.items()}

    def commits(self, groups: dict[str, Topics | None]) -> dict[str, Part]:
        return {group_id: self._commits(group_id, wanted) for group_id, wanted in groups.items()}

    def _commits(self, group_id: str, topics: Topics | None) -> Part:
        if not self._at.may("group", group_id):
            return _failed(GROUP_HIDDEN)
        found: Mapping[TopicPartition, Commit | None]
        if topics is None:
            every = self._broker.fetch_all(group_id)
            found = {tp: commit for tp, commit in every if self._at.may("topic", tp.topic)}
        else:
            asked = tuple(TopicPartition(topic, number) for topic, numbers in topics for number in numbers)
            for tp in asked:
                if not self._at.may("topic", tp.topic):
                    return None, Failure.from_error(_error(TOPIC_HIDDEN)).about(tp)
            found = dict(zip(asked, self._broker.fetch(group_id, asked), strict=True))
        commits = {tp: commit for tp, commit in found.items() if commit is not None}
        flat: dict[str, Any] = {tp.topic: [] for tp in commits}
        for place, (tp, commit) in enumerate(commits.items()):
            flat[tp.topic] += (tp.partition, commit.offset, place)
        return [{"texts": [commit.metadata for commit in commits.values()], "topics": flat}], None

    def describe(self, names: dict[str, None]) -> dict[str, Part]:
        return {name: self._described(name) for name in names}

    def _described(self, name: str) -> Part:
        if not self._at.may("group", name):
            return _failed(GROUP_HIDDEN)
        group = self._broker.describe(name)
        if group is None:
            return _failed("GROUP_ID_NOT_FOUND")
        members = [
            {
                "member_id": each.member_id,
                "client_id": each.client_id,
                "host": "/127.0.0.1",
                "partitions": self._broker.assigned(group, each.member_id),
            }
            for each in group.members
        ]
        return {**_kind(name, group), "coordinator": "in-memory:9092", "members": members}, None

    def list(self, _: None) -> Any:
        return [
            _kind(name, group) for name, group in self._broker.every_group() if self._at.may("group", name)
        ]

    def delete(self, names: dict[str, None]) -> dict[str, Part]:
        def delete(name: str) -> Part:
            code = self._broker.delete(name) if self._at.may("group", name, "Delete") else GROUP_HIDDEN
            return _failed(code) if code else (True, None)

        return {name: delete(name) for name in names}

    def delete_offsets(self, groups: dict[str, Sequence[tuple[str, int]]]) -> dict[str, Part]:
        def delete(group_id: str, partitions: Sequence[TopicPartition]) -> Part:
            if not self._at.may("group", group_id, "Delete"):
                return _failed(GROUP_HIDDEN)
            allowed = tuple(tp for tp in partitions if self._at.may("topic", tp.topic, "Read"))
            answer = self._broker.delete_offsets(group_id, allowed)
            if answer is None:
                return _failed("GROUP_ID_NOT_FOUND")
            refused = dict(answer) | dict.fromkeys(set(partitions) - set(allowed), TOPIC_HIDDEN)
            return [_failed(refused[tp])[1] if tp in refused else None for tp in partitions], None

        return {name: delete(name, [TopicPartition(*tp) for tp in each]) for name, each in groups.items()}

    def topic_ids(self, names: dict[str, None]) -> dict[str, Part]:
        return {name: self._topic(name, lambda topic: topic.topic_id) for name in names}

    def topic_settings(self, names: dict[str, None]) -> dict[str, Part]:
        def settings(topic: Topic) -> dict[str, str | None]:
            return {**SETTINGS, **dict(topic.settings)}

        return {name: self._topic(name, settings, "DescribeConfigs") for name in names}

    def _topic(self, name: str, value: Callable[[Topic], Any], right: str = "Describe") -> Part:
        code = self._at.topic_error(name, right)
        return _failed(code) if code else (value(self._broker.topics[name]), None)

    def brokers(self, _: None) -> dict[str, Any]:
        known = self._at.may("cluster", "*", "DescribeConfigs")
        failure = None if known else _failed("CLUSTER_AUTHORIZATION_FAILED")[1]
        return {"number": 1, "retention": str(7 * 24 * 60) if known else None, "failure": failure}


def _kind(name: str, group: Group) -> dict[str, str]:
    state = "Unknown" if group.type == OTHER else "Stable" if group.members else "Empty"
    return {"group_id": name, "state": state, "type": group.type}


class Answer(NamedTuple):
    """What the client returns for a partition."""

    topic: str
    partition: int
    offset: int = -1
    error: KafkaError | None = None


class Message(NamedTuple):
    """A record, or an error; all records of a time are equal."""

    tp: TopicPartition | None
    at: int = -1
    time: int = -1
    failed: KafkaError | None = None

    def topic(self) -> str | None:
        return self.tp and self.tp.topic

    def partition(self) -> int | None:
        return self.tp and self.tp.partition

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, self.time

    def key(self) -> None:
        """No record has a key."""

    def value(self) -> bytes:
        return b"0123456789"

    def headers(self) -> None:
        """No record has headers."""

    def error(self) -> KafkaError | None:
        return self.failed


class MemoryConsumer:
    """
    A Consumer of a broker in memory, with as much of confluent_kafka's as the client uses.

    It joins and answers in :meth:`poll`. A member learns of others in its group by what its commit is
    answered.
    """

    def __init__(self, at: Listener, settings: Mapping[str, Any], clock: Clock) -> None:
        self._at, self._broker, self._settings, self._clock = at, at.broker, settings, clock
        self._group_id = settings["group.id"]
        self._subscribed: tuple[tuple[str, ...], Callable[..., None]] | None = None
        self._member: tuple[str, int] | tuple[()] = ()
        self._responses: list[Callable[[], None]] = []
        self._assigned: dict[TopicPartition, int] = {}
        self._messages: Iterator[Message] = iter(())

    # --- topics and logs

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        names = self._broker.topics if topic is None else [topic]
        found = {name: self._metadata(name) for name in names}
        topics = {name: each for name, each in found.items() if topic or each.error is None}
        return SimpleNamespace(cluster_id=self._broker.cluster_id, topics=topics)

    def _metadata(self, name: str) -> Any:
        code = self._at.topic_error(name)
        numbers = () if code else range(len(self._broker.topics[name].logs))
        partitions = {number: SimpleNamespace(leader=1, replicas=[1]) for number in numbers}
        return SimpleNamespace(error=_error(code) if code else None, partitions=partitions)

    def offsets_for_times(self, partitions: Sequence[ClientPartition], timeout: float = -1) -> list[Answer]:
        found = [self._offset(each) for each in partitions]
        if found and all(each.error for each in found):
            raise KafkaException(found[0].error)
        return found

    def _offset(self, asked: ClientPartition) -> Answer:
        tp = TopicPartition(asked.topic, asked.partition)
        code = self._at.topic_error(tp.topic) or (None if self._broker.has(tp) else UNKNOWN_TOPIC)
        if code is not None:
            return Answer(*tp, error=_error(code))
        log = self._broker.log(tp)
        if asked.offset in (OFFSET_BEGINNING, OFFSET_END):
            at = log.range.start if asked.offset == OFFSET_BEGINNING else log.range.end
        else:
            later = (at for at in range(*log.range) if log.times[at] >= asked.offset)
            at = next(later, OFFSET_END)
        return Answer(*tp, at)

    # --- records

    def assign(self, partitions: Sequence[ClientPartition]) -> None:
        self._assigned = {TopicPartition(each.topic, each.partition): each.offset for each in partitions}
        self._messages = self._fetch()

    def incremental_unassign(self, partitions: Sequence[ClientPartition]) -> None:
        for each in partitions:
            del self._assigned[TopicPartition(each.topic, each.partition)]

    def unassign(self) -> None:
        self.assign([])

    def _fetch(self) -> Iterator[Message]:
        for tp, start in [*self._assigned.items()]:
            if not self._at.may("topic", tp.topic, "Read"):
                yield Message(tp, failed=_error(TOPIC_HIDDEN))
            elif self._broker.has(tp):
                yield from self._fetch_log(tp, start, self._broker.log(tp))

    def _fetch_log(self, tp: TopicPartition, start: int, log: Log) -> Iterator[Message]:
        if not log.range.start <= start <= log.range.end:
            yield Message(tp, start, failed=_error("_AUTO_OFFSET_RESET"))
            return
        for at in range(start, log.range.end):
            if tp not in self._assigned:
                return
            if at not in log.markers:
                yield Message(tp, at, log.times[at])
        yield Message(tp, log.range.end, failed=_error("_PARTITION_EOF"))

    def poll(self, timeout: float = 0) -> Message | None:
        if self._subscribed is not None and not self._member:
            refusal = self._join(*self._subscribed)
            if refusal is not None:
                return Message(None, failed=_error(refusal))
        while self._responses:
            self._responses.pop()()
        found = next(self._messages, None)
        if found is None and timeout > 0:
            self._clock.wait(timeout)
        return found

    def consume(self, num_messages: int, timeout: float = -1) -> list[Message]:
        return [*islice(self._messages, num_messages)]

    # --- the group

    def subscribe(self, topics: Sequence[str], on_assign: Callable[..., None], **_: Any) -> None:
        self._subscribed = tuple(topics), on_assign

    def _join(self, topics: tuple[str, ...], on_assign: Callable[..., None]) -> str | None:
        if not self._at.may("group", self._group_id, "Read"):
            return GROUP_HIDDEN
        if not all(self._at.may("topic", topic) for topic in topics):
            return TOPIC_HIDDEN
        client_id = self._settings["client.id"]
        member = f"{client_id}-{next(self._broker.member_ids)}"
        generation, partitions = self._broker.join(self._group_id, member, client_id, topics)
        self._member = member, generation
        on_assign(self, [Answer(*tp) for tp in partitions])
        return None

    def commit(self, offsets: Sequence[ClientPartition], asynchronous: bool) -> None:
        commits = {
            TopicPartition(each.topic, each.partition): Commit(each.offset, each.metadata) for each in offsets
        }
        codes = self._at.commit(self._group_id, commits, *self._member)
        refused = {tp: _error(code) for tp, code in codes.items()}
        answers = [Answer(*tp, error=refused.get(tp)) for tp in commits]
        # The client reports the last error for the whole commit.
        whole = [*refused.values()][-1] if refused else None
        self._responses.append(lambda: self._settings["on_commit"](whole, answers))

    def close(self) -> None:
        if self._member:
            self._broker.leave(self._group_id, self._member[0])
            self._member = ()
