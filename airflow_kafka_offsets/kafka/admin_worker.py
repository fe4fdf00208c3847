"""
Makes one call of an AdminClient, in a process of its own because the client can abort it.

Run as ``python -m airflow_kafka_offsets.kafka.admin_worker``: reads one request as JSON from standard input
and writes one response as JSON to standard output. Nothing else is written there.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from airflow_kafka_offsets.kafka.config import RETENTION, missing_file
from airflow_kafka_offsets.kafka.failures import RETRIABLE, Causes, Failed, Failure
from airflow_kafka_offsets.kafka.listener_probe import probe_listener

_STATES = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}
_OFFSETS_TOPIC = "__consumer_offsets"
_FIRST_WAIT = 0.5

Part = tuple[Any, "Failure | None"]
"""The result for one group or topic, or why there is none."""


class _Session:
    def __init__(self, config: dict[str, Any], token: list[Any] | None, timeout: float) -> None:
        self._end = time.monotonic() + timeout
        self.causes = Causes(find=partial(probe_listener, config))
        settings = {
            "client.id": "airflow-kafka-offsets",
            # The client also waits for this before its first connection to a broker.
            "reconnect.backoff.ms": 10,
            **config,
            "error_cb": self.causes.note,
            "log_level": 0,
        }
        if token is not None:
            settings["oauth_cb"] = lambda _: tuple(token)
        try:
            self.admin = AdminClient(settings)
        except KafkaException as error:
            failure = Failure.of(error)
            raise Failed(Failure(failure.code, missing_file(config) or failure.text)) from None

    @property
    def left(self) -> float:
        return max(0.1, self._end - time.monotonic())

    def connect(self) -> None:
        """Wait for a connection: a group call without one may abort, and knows no cause."""
        wait = _FIRST_WAIT
        while True:
            try:
                # One topic, not all of them.
                self.admin.list_topics(_OFFSETS_TOPIC, timeout=min(wait, self.left))
            except KafkaException as error:  # noqa: PERF203  # this is a wait
                failure = Failure.of(error)
                self.admin.poll(0)
                self.causes.find(self.left)
                final = self.causes.final is not None
                if final or self._end <= time.monotonic() or failure.code not in RETRIABLE:
                    raise Failed(failure) from None
                wait *= 2
            else:
                return

    def part(self, future: Any, value: Callable[[Any], Any]) -> Part:
        try:
            return value(future.result(self.left)), None
        except KafkaException as error:
            return None, Failure.of(error)
        except concurrent.futures.TimeoutError:
            return None, Failure("_TIMED_OUT", "no answer in time")


def _for_each(
    method: str, value: Callable[[Any], Any], collection: Callable[[list[str]], Any] = list
) -> Callable[[_Session, list[str]], dict[str, Part]]:
    def call(session: _Session, names: list[str]) -> dict[str, Part]:
        futures = getattr(session.admin, method)(collection(names), request_timeout=session.left)
        return {name: session.part(future, value) for name, future in futures.items()}

    return call


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


def _topic_id(description: Any) -> str | None:
    found = description.topic_id
    # All zeros: a broker that is too old for ids.
    return str(found) if found.get_most_significant_bits() or found.get_least_significant_bits() else None


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
    "delete": _for_each("delete_consumer_groups", lambda _: True),
    "describe": _for_each("describe_consumer_groups", _description),
    "list": _list,
    "topic_ids": _for_each("describe_topics", _topic_id, TopicCollection),
}


def respond(request: dict[str, Any]) -> dict[str, Any]:
    """Make the call of one request."""
    session = None
    try:
        session = _Session(request["config"], request["token"], request["timeout"])
        session.connect()
        response: dict[str, Any] = {"result": CALLS[request["call"]](session, request["arguments"])}
    except Failed as error:
        response = {"failure": error.failure}
    except KafkaException as error:
        response = {"failure": Failure.of(error)}
    if session is not None:
        session.admin.poll(0)
        response["causes"] = session.causes.seen
    return response


def main() -> None:
    """Read the request, write the response, and end at once."""
    # What the client prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    # Ends also when the parent was killed and nobody waits any more.
    signal.alarm(int(request["timeout"]) + 5)
    response = json.dumps(respond(request)).encode()
    while response:
        response = response[os.write(out, response) :]
    # Closing the client may abort or hang.
    os._exit(0)


if __name__ == "__main__":
    main()
