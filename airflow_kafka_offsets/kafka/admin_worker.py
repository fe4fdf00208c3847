"""
Makes the calls of an AdminClient, in a process of its own because the client can abort it.

Run as ``python -m airflow_kafka_offsets.kafka.admin_worker``: reads the client's settings and then requests
from standard input, each a line of JSON, and writes a line of JSON for each request to standard output.
Nothing else is written there. It ends with its input, with its parent, and after a failure that may pass.
"""

from __future__ import annotations

import concurrent.futures
import gc
import json
import os
import queue
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from airflow_kafka_offsets.kafka.config import RETENTION, missing_file
from airflow_kafka_offsets.kafka.failures import RETRIABLE, Causes, Failed, Failure
from airflow_kafka_offsets.kafka.groups import OTHER
from airflow_kafka_offsets.kafka.listener_probe import probe_listener
from airflow_kafka_offsets.kafka.requests import read_metadata
from airflow_kafka_offsets.model.headroom import TOPIC_SETTINGS
from airflow_kafka_offsets.model.log_ids import URL_SAFE

_STATES = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}
_OFFSETS_TOPIC = "__consumer_offsets"
_FIRST_WAIT = 0.5
_PART = 1 << 20
_WATCH = 5.0
"""Seconds between two looks at the parent."""
_CHUNK = 500
"""Partitions, or topics, in one request: the client takes far longer for many at once."""

Part = tuple[Any, "Failure | None"]
"""The result for one group or topic, or why there is none."""


class _Session:
    def __init__(self, config: dict[str, Any], token: Sequence[Any] | None) -> None:
        self.causes = Causes(find=partial(probe_listener, config))
        self._config = config
        self._token = token
        self._end = 0.0
        self.admin: Any = None

    def begin(self, end: float) -> None:
        """Begin a request, to end by the monotonic clock. The first one makes the client, and connects it."""
        self._end = end
        if self.admin is None:
            self.admin = self._client()
            self._connect()
        self.admin.poll(0)
        self.causes.clear()

    @property
    def left(self) -> float:
        return max(0.1, self._end - time.monotonic())

    def _client(self) -> AdminClient:
        settings = {
            "client.id": "airflow-kafka-offsets",
            # The client also waits for this before its first connection to a broker.
            "reconnect.backoff.ms": 10,
            **self._config,
            "error_cb": self.causes.note,
            "log_level": 0,
        }
        if (token := self._token) is not None:
            settings["oauth_cb"] = lambda _: tuple(token)
        try:
            return AdminClient(settings)
        except KafkaException as error:
            failure = Failure.of(error)
            raise Failed(Failure(failure.code, missing_file(self._config) or failure.text)) from None

    def _connect(self) -> None:
        """Wait for a connection: a group call without one may abort, and knows no cause."""
        wait = _FIRST_WAIT
        while True:
            try:
                # One topic, not all of them.
                self.admin.list_topics(_OFFSETS_TOPIC, timeout=min(wait, self.left))
            except KafkaException as error:  # noqa: PERF203  # this is a wait
                failure = Failure.of(error)
                self.admin.poll(0)
                self.causes.find(failure, self.left)
                final = self.causes.final is not None
                if final or self._end <= time.monotonic() or failure.code not in RETRIABLE:
                    raise Failed(failure) from None
                wait *= 2
            else:
                return

    def seen(self) -> list[Failure]:
        """Return what happened in the background."""
        if self.admin is not None:
            self.admin.poll(0)
        return self.causes.seen

    def part(self, future: Any, value: Callable[[Any], Any]) -> Part:
        try:
            return value(future.result(max(0.0, self._end - time.monotonic()))), None
        except Failed as error:
            return None, error.failure
        except KafkaException as error:
            return None, Failure.of(error)
        except concurrent.futures.TimeoutError:
            return None, Failure("_TIMED_OUT", "no answer in time")


def _for_each(
    method: str, value: Callable[[Any], Any], collection: Callable[[list[str]], Any] = list
) -> Callable[[_Session, dict[str, None]], dict[str, Part]]:
    def call(session: _Session, names: dict[str, None]) -> dict[str, Part]:
        futures = getattr(session.admin, method)(collection(list(names)), request_timeout=session.left)
        return {name: session.part(future, value) for name, future in futures.items()}

    return call


def _commits(session: _Session, groups: dict[str, list[tuple[str, list[int]]] | None]) -> dict[str, Part]:
    """Return the commits of many groups, asked for together: of some partitions, or all of a group."""
    asked: dict[str, list[Any]] = {}
    for group_id, wanted in groups.items():
        asked[group_id] = [
            session.admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id, chunk)], request_timeout=session.left
            )[group_id]
            for chunk in _chunks(wanted)
        ]
    return {
        group_id: _join([session.part(each, _found) for each in futures])
        for group_id, futures in asked.items()
    }


def _chunks(wanted: list[tuple[str, list[int]]] | None) -> list[list[TopicPartition] | None]:
    if wanted is None:
        return [None]
    partitions = [TopicPartition(topic, number) for topic, numbers in wanted for number in numbers]
    return [partitions[first : first + _CHUNK] for first in range(0, len(partitions), _CHUNK)]


def _found(result: Any) -> dict[str, Any]:
    """Return ``texts`` and, for each topic, ``partition, offset, place of its text`` one after the other."""
    places: dict[str | None, int] = {}
    topics: dict[str, list[int]] = {}
    for tp in result.topic_partitions:
        if tp.error is not None:
            failure = Failure.of(tp.error)
            raise Failed(Failure(failure.code, f"{tp.topic}-{tp.partition}: {failure.text}"))
        if tp.offset >= 0:
            found = (tp.partition, tp.offset, places.setdefault(read_metadata(tp), len(places)))
            topics.setdefault(tp.topic, []).extend(found)
    return {"texts": list(places), "topics": topics}


def _join(parts: list[Part]) -> Part:
    failed = [part for part in parts if part[1] is not None]
    return failed[0] if failed else ([found for found, _ in parts], None)


def _list(session: _Session, _: None) -> list[dict[str, str]]:
    future = session.admin.list_consumer_groups(request_timeout=session.left)
    found, failure = session.part(future, lambda result: result)
    if failure is not None:
        raise Failed(failure)
    # Without the response of one broker, the groups that it coordinates are missing.
    for error in found.errors:
        raise Failed(Failure.of(error))
    return [_kind(group) for group in found.valid]


def _brokers(session: _Session, _: None) -> dict[str, Any]:
    brokers = session.admin.list_topics(_OFFSETS_TOPIC, timeout=session.left).brokers
    resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
    future = session.admin.describe_configs([resource], request_timeout=session.left)[resource]
    found, failure = session.part(
        future, lambda settings: settings[RETENTION].value if RETENTION in settings else None
    )
    return {"number": len(brokers), "retention": found, "failure": failure}


def _topic_settings(session: _Session, topics: dict[str, None]) -> dict[str, Part]:
    names = list(topics)
    futures: dict[str, Any] = {}
    for first in range(0, len(names), _CHUNK):
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names[first : first + _CHUNK]]
        asked = session.admin.describe_configs(resources, request_timeout=session.left)
        futures |= {resource.name: future for resource, future in asked.items()}
    return {
        name: session.part(
            future, lambda found: {key: found[key].value for key in TOPIC_SETTINGS if key in found}
        )
        for name, future in futures.items()
    }


def _topic_id(description: Any) -> str | None:
    found = description.topic_id
    # All zeros: a broker that is too old for ids.
    known = found.get_most_significant_bits() or found.get_least_significant_bits()
    return str(found).translate(URL_SAFE) if known else None


def _described(session: _Session, names: dict[str, None]) -> dict[str, Part]:
    found = _for_each("describe_consumer_groups", _description)(session, names)
    return {name: _of_any_kind(session, name, part) for name, part in found.items()}


def _of_any_kind(session: _Session, name: str, part: Part) -> Part:
    """Return a group that is not a consumer group as such: a description as one says that it is not there."""
    value, failure = part
    if (value["state"] if failure is None else failure.code) not in ("Dead", "GROUP_ID_NOT_FOUND"):
        return part
    try:
        with warnings.catch_warnings():
            # Deprecated, and the only call of the client that returns groups of every kind.
            warnings.simplefilter("ignore", DeprecationWarning)
            listed = session.admin.list_groups(name, session.left)
    except KafkaException as error:
        return None, Failure.of(error)
    if not any(group.id == name for group in listed):
        return part
    return {"group_id": name, "state": "Unknown", "type": OTHER, "coordinator": None, "members": []}, None


def _description(group: Any) -> dict[str, Any]:
    node = group.coordinator
    return {
        **_kind(group),
        "coordinator": None if node is None else f"{node.host}:{node.port}",
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [
                    (tp.topic, tp.partition)
                    for tp in (member.assignment and member.assignment.topic_partitions) or ()
                ],
            }
            for member in group.members
        ],
    }


def _kind(group: Any) -> dict[str, str]:
    state = group.state.name
    return {
        "group_id": group.group_id,
        "state": _STATES.get(state, state.title()),
        "type": group.type.name.lower(),
    }


CALLS: dict[str, Callable[[_Session, Any], Any]] = {
    "brokers": _brokers,
    "commits": _commits,
    "delete": _for_each("delete_consumer_groups", lambda _: True),
    "describe": _described,
    "list": _list,
    "topic_ids": _for_each("describe_topics", _topic_id, TopicCollection),
    "topic_settings": _topic_settings,
}


def respond(session: _Session, request: dict[str, Any]) -> dict[str, Any]:
    """Make the call of one request; ``last``: a failure may pass, and a new process should try again."""
    result = failure = None
    try:
        session.begin(request["end"])
        result = CALLS[request["call"]](session, request["arguments"])
    except Failed as error:
        failure = error.failure
    except KafkaException as error:
        failure = Failure.of(error)
    last = failure is not None or any(code in RETRIABLE for code in _codes(result))
    return {"result": result, "failure": failure, "causes": session.seen(), "last": last}


def _codes(result: Any) -> list[str]:
    """Return the codes of the parts' failures."""
    parts = result.values() if isinstance(result, Mapping) else ()
    return [part[1].code for part in parts if type(part) is tuple and part[1] is not None]


def main() -> None:
    """Read the settings, respond to requests, and end with the input."""
    # As the command line: many values that live until they are sent.
    gc.set_threshold(100_000)
    # What the client prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines, os.getppid()), daemon=True).start()
    session = _Session(**json.loads(lines.get()))
    last = False
    while not last:
        request = json.loads(lines.get())
        # Ends also a client that no thread can interrupt.
        signal.alarm(max(1, int(request["end"] - time.monotonic()) + 5))
        response = respond(session, request)
        signal.alarm(0)
        last = response["last"]
        text = json.dumps(response, separators=(",", ":")).encode() + b"\n"
        while text:
            text = text[os.write(out, text) :]
    # Closing the client may abort or hang.
    os._exit(0)


def read_lines(lines: queue.SimpleQueue[bytearray], parent: int) -> None:
    """Read lines of standard input; end this process with its input, and with its parent."""
    pending = bytearray()
    try:
        while True:
            ready, _, _ = select.select([0], [], [], _WATCH)
            # A copy of the parent may hold the other end of the input open.
            data = os.read(0, _PART) if ready else b""
            if os.getppid() != parent or (ready and not data):
                return
            pending += data
            if b"\n" in data:
                *whole, pending = pending.split(b"\n")
                for line in whole:
                    lines.put(line)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
