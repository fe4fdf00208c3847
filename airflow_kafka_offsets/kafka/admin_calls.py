"""The AdminClient calls of the admin process, one for each kind of request."""

from __future__ import annotations

import concurrent.futures
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from airflow_kafka_offsets.kafka.config import RETENTION, unusable_setting
from airflow_kafka_offsets.kafka.connection import DEFAULTS
from airflow_kafka_offsets.kafka.failures import UNANSWERED, BackgroundErrors, CallError, Deadline, Failure
from airflow_kafka_offsets.kafka.groups import OTHER
from airflow_kafka_offsets.kafka.listener_probe import find_cause
from airflow_kafka_offsets.kafka.offset_deletion import delete_offsets
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC, leaderless_failure, read_metadata
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.model.headroom import TOPIC_SETTINGS
from airflow_kafka_offsets.model.log_ids import URL_SAFE

# States whose librdkafka name, in title case, is not Kafka's name.
_STATES = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}
_FIRST_WAIT = 0.5
"""Seconds of the first attempt to connect: after it the cause is looked up, such as a wrong password."""
_CHUNK = 500
"""Partitions, topics or groups in one request: the client is far slower with many at once."""

PartResult = tuple[Any, "Failure | None"]
"""The result for one group or topic, or its failure."""


class AdminSession:
    """
    The client of one admin process, created and connected by its first request.

    :param config: librdkafka's settings.
    :param token: the result of an OAUTHBEARER callback: token, expiry, principal and extensions.
    """

    def __init__(self, config: dict[str, Any], token: Sequence[Any] | None) -> None:
        self.background_errors = BackgroundErrors(find=partial(find_cause, config))
        self.config = config
        self._token = token
        self._deadline = Deadline(0)
        self._leaderless: Failure | None = None
        self.admin: Any = None
        self.cluster_id = ""

    def begin(self, end: float) -> None:
        """Begin a request that ends at ``end`` (monotonic clock); first create and connect the client."""
        self._deadline = Deadline(end - time.monotonic())
        if self.admin is None:
            self.admin = self._client()
            self._connect()
        self.admin.poll(0)
        self.background_errors.clear()

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the request."""
        return max(0.1, self._deadline.seconds_left)

    def _client(self) -> AdminClient:
        settings = {
            **DEFAULTS,
            **self.config,
            "error_cb": self.background_errors.add_error,
            # The log would go to standard error, which is only read after a crash, to find the reason.
            "log_level": 0,
        }
        if (token := self._token) is not None:
            settings["oauth_cb"] = lambda _: tuple(token)
        try:
            return AdminClient(settings)
        except KafkaException as error:
            failure = Failure.from_error(error)
            raise CallError(Failure(failure.code, unusable_setting(self.config) or failure.text)) from None

    def _connect(self) -> None:
        """Wait for a connection: without one, a group call may abort, and reports no cause."""

        def attempt(seconds: float) -> None:
            try:
                self._leaderless = self.find_leaderless(seconds)
            except KafkaException as error:
                self.admin.poll(0)
                raise CallError(Failure.from_error(error)) from None

        retry_until(self._deadline, attempt, lambda: self.background_errors, first_attempt=_FIRST_WAIT)

    def find_leaderless(self, seconds: float) -> Failure | None:
        """Return the failure of partitions of Kafka's topic of commits that have no leader."""
        found = self.admin.list_topics(OFFSETS_TOPIC, timeout=seconds)
        self.cluster_id = found.cluster_id or ""
        return leaderless_failure(found.topics.values())

    def background_failures(self) -> list[Failure]:
        """Return the errors that the client reported in the background."""
        if self.admin is not None:
            self.admin.poll(0)
        return self.background_errors.failures

    def wait_for(self, future: Any, value: Callable[[Any], Any]) -> PartResult:
        """Wait for a future, and return its value or its failure."""
        try:
            return value(future.result(self._deadline.seconds_left)), None
        except CallError as error:
            return None, error.failure
        except KafkaException as error:
            failure = Failure.from_error(error)
        except concurrent.futures.TimeoutError:
            failure = Failure("_TIMED_OUT", "no answer in time")
        if failure.code == "_TIMED_OUT":
            # The client waits for the coordinator of a group, and reports the cause in the background, if at
            # all.
            self.admin.poll(0)
            cause = str(self.background_errors) if self._leaderless is None else self._leaderless.text
            failure = failure._replace(text="; ".join(filter(None, (failure.text, cause))))
        return None, failure


def _for_each(
    method: str, value: Callable[[Any], Any], collection: Callable[[list[str]], Any] = list
) -> Callable[[AdminSession, dict[str, None]], dict[str, PartResult]]:
    def call(session: AdminSession, names: dict[str, None]) -> dict[str, PartResult]:
        wanted = list(names)
        futures: dict[Any, Any] = {}
        for first in range(0, len(wanted), _CHUNK):
            some = collection(wanted[first : first + _CHUNK])
            futures |= getattr(session.admin, method)(some, request_timeout=session.seconds_left)
        # Configurations are returned for resources, everything else for names.
        return {getattr(key, "name", key): session.wait_for(future, value) for key, future in futures.items()}

    return call


def _commits(
    session: AdminSession, groups: dict[str, list[tuple[str, list[int]]] | None]
) -> dict[str, PartResult]:
    """Return the commits of many groups in one call: of the given partitions, or all commits of a group."""
    asked: dict[str, list[Any]] = {}
    for group_id, wanted in groups.items():
        asked[group_id] = [
            session.admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id, chunk)], request_timeout=session.seconds_left
            )[group_id]
            for chunk in _chunks(wanted)
        ]
    return {
        group_id: _join([session.wait_for(each, _flatten_commits) for each in futures])
        for group_id, futures in asked.items()
    }


def _commit(session: AdminSession, commit: dict[str, Any]) -> dict[str, PartResult]:
    """Send all parts of a commit at once; return the refused partitions."""
    group_id, texts = commit["group_id"], commit["texts"]
    sent = []
    for part in commit["parts"]:
        offsets = [TopicPartition(*each, metadata=texts[each[0]]) for each in part]
        request = ConsumerGroupTopicPartitions(group_id, offsets)
        futures = session.admin.alter_consumer_group_offsets([request], request_timeout=session.seconds_left)
        sent.append((offsets, futures[group_id]))
    refused: dict[str, PartResult] = {}
    for offsets, future in sent:
        found, failure = session.wait_for(future, _errors)
        for tp in offsets:
            error = failure or found.get(_name(tp), UNANSWERED)
            if error is not None:
                refused[_name(tp)] = None, error
    return refused


def _errors(result: Any) -> dict[str, Failure | None]:
    return {
        _name(tp): None if tp.error is None else Failure.from_error(tp.error)
        for tp in result.topic_partitions
    }


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


def _chunks(wanted: list[tuple[str, list[int]]] | None) -> list[list[TopicPartition] | None]:
    if wanted is None:
        return [None]
    partitions = [TopicPartition(topic, number) for topic, numbers in wanted for number in numbers]
    return [partitions[first : first + _CHUNK] for first in range(0, len(partitions), _CHUNK)]


def _flatten_commits(result: Any) -> dict[str, Any]:
    """Return ``texts`` and, for each topic, a flat list of partition, offset and index of the text."""
    places: dict[str | None, int] = {}
    topics: dict[str, list[int]] = {}
    for tp in result.topic_partitions:
        if tp.error is not None:
            raise CallError(Failure.from_error(tp.error).about(_name(tp)))
        if tp.offset >= 0:
            found = (tp.partition, tp.offset, places.setdefault(read_metadata(tp), len(places)))
            topics.setdefault(tp.topic, []).extend(found)
    return {"texts": list(places), "topics": topics}


def _join(parts: list[PartResult]) -> PartResult:
    failed = [part for part in parts if part[1] is not None]
    return failed[0] if failed else ([found for found, _ in parts], None)


def _list(session: AdminSession, _: None) -> list[dict[str, str]]:
    # Groups that Kafka keeps on a partition without a leader are missing too, without an error.
    if (failure := session.find_leaderless(session.seconds_left)) is not None:
        raise CallError(failure)
    future = session.admin.list_consumer_groups(request_timeout=session.seconds_left)
    found, failure = session.wait_for(future, lambda result: result)
    if failure is not None:
        raise CallError(failure)
    # If one broker does not respond, the groups that it coordinates are missing. An incomplete list would
    # hide a group from the drift check.
    for error in found.errors:
        raise CallError(Failure.from_error(error))
    return [_kind(group) for group in found.valid]


def _brokers(session: AdminSession, _: None) -> dict[str, Any]:
    brokers = session.admin.list_topics(OFFSETS_TOPIC, timeout=session.seconds_left).brokers
    resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
    future = session.admin.describe_configs([resource], request_timeout=session.seconds_left)[resource]
    found, failure = session.wait_for(
        future, lambda settings: settings[RETENTION].value if RETENTION in settings else None
    )
    if failure is not None and failure.code == "_TIMED_OUT":
        # The bootstrap server has answered, but not the broker where it says that it is.
        raise CallError(failure)
    return {"number": len(brokers), "retention": found, "failure": failure}


def _topics(names: list[str]) -> list[ConfigResource]:
    return [ConfigResource(ResourceType.TOPIC, name) for name in names]


def _topic_settings(found: Any) -> dict[str, str | None]:
    return {key: found[key].value for key in TOPIC_SETTINGS if key in found}


def _topic_id(description: Any) -> str | None:
    found = description.topic_id
    # An id of all zeros comes from a broker that is too old for topic ids.
    known = found.get_most_significant_bits() or found.get_least_significant_bits()
    return str(found).translate(URL_SAFE) if known else None


def _describe_groups(session: AdminSession, names: dict[str, None]) -> dict[str, PartResult]:
    parts = _describe_consumer_groups(session, names)
    return {name: _describe_other_kind(session, name, part) for name, part in parts.items()}


_OTHER_PROTOCOL = "is not a consumer group"
"""The client's error text for a group of Kafka Connect, or of another protocol."""
_UNKNOWN = {"state": "Unknown", "type": OTHER, "coordinator": None}


def _is_absent(part: PartResult) -> bool:
    value, failure = part
    return (value["state"] if failure is None else failure.code) in ("Dead", "GROUP_ID_NOT_FOUND")


def _describe_other_kind(session: AdminSession, name: str, part: PartResult) -> PartResult:
    """Describe a group of another kind than consumer groups: the client's description lacks it."""
    failure = part[1]
    connects = failure is not None and failure.code == "_INVALID_ARG" and _OTHER_PROTOCOL in failure.text
    if not (connects or _is_absent(part)):
        return part
    try:
        with warnings.catch_warnings():
            # Deprecated, but the only call of the client that returns groups of every kind.
            warnings.simplefilter("ignore", DeprecationWarning)
            listed = session.admin.list_groups(name, session.seconds_left)
    except KafkaException as error:
        return None, Failure.from_error(error)
    found = [group for group in listed if group.id == name]
    if not found:
        return part
    if connects:
        # Such as the workers of Kafka Connect.
        members = [
            {"member_id": each.id, "client_id": each.client_id, "host": each.client_host, "partitions": []}
            for each in found[0].members
        ]
        return {"group_id": name, **_UNKNOWN, "members": members}, None
    # A first commit may have created the group since.
    part = _describe_consumer_groups(session, {name: None})[name]
    if not _is_absent(part):
        return part
    return {"group_id": name, **_UNKNOWN, "members": []}, None


def _group_json(group: Any) -> dict[str, Any]:
    node = group.coordinator
    return {
        **_kind(group),
        "coordinator": None if node is None else f"{node.host}:{node.port}",
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.group_instance_id or "",
                "partitions": [
                    (tp.topic, tp.partition)
                    for tp in (member.assignment and member.assignment.topic_partitions) or ()
                ],
            }
            for member in group.members
        ],
    }


_describe_consumer_groups = _for_each("describe_consumer_groups", _group_json)


def _kind(group: Any) -> dict[str, str]:
    state = group.state.name
    shown = _STATES.get(state, state.title())
    return {"group_id": group.group_id, "state": shown, "type": group.type.name.lower()}


def _delete_offsets(session: AdminSession, groups: dict[str, list[tuple[str, int]]]) -> dict[str, PartResult]:
    return {
        group_id: delete_offsets(session.config, group_id, partitions, session.seconds_left)
        for group_id, partitions in groups.items()
    }


CALLS: dict[str, Callable[[AdminSession, Any], Any]] = {
    "brokers": _brokers,
    "commit": _commit,
    "commits": _commits,
    "delete": _for_each("delete_consumer_groups", lambda _: True),
    "delete_offsets": _delete_offsets,
    "describe": _describe_groups,
    "list": _list,
    "topic_ids": _for_each("describe_topics", _topic_id, TopicCollection),
    "topic_settings": _for_each("describe_configs", _topic_settings, _topics),
}
