"""Describes, lists and deletes groups, and reads commits of many groups, in the admin process."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.kafka.admin_process import AdminProcess
from airflow_kafka_offsets.kafka.commits import Texts
from airflow_kafka_offsets.kafka.explain import Call, Right
from airflow_kafka_offsets.kafka.failures import (
    OCCUPIED,
    RETRIABLE,
    TEMPORARY,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    CallError,
    Failure,
)
from airflow_kafka_offsets.kafka.groups import GroupDescription, GroupListing, check_states
from airflow_kafka_offsets.kafka.offset_deletion import check_deletion, deletion_refusal
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.model.names import parse_existing_groups
from airflow_kafka_offsets.model.offsets import Commit, Offsets, TopicPartition
from airflow_kafka_offsets.model.text import escape_controls

FIRST_ATTEMPT = 2.0
"""
Seconds of the first attempt, including the start of the process. If a coordinator was down when the client
asked for it, the client waits for it in vain.
"""
# Additional seconds for each group: finding its coordinator and reading its commits takes a third of a
# millisecond on an idle machine.
_EACH_GROUP = 0.002

_SETTLED = 1.0
"""Seconds after which an unknown topic counts as missing."""

# Results for the user, not errors of the call: the other groups are deleted anyway.
_NOT_DELETED = {
    "NON_EMPTY_GROUP": "the group has active members: stop them first",
    "GROUP_ID_NOT_FOUND": "there is no such group",
}


class Admin:
    """Makes the calls that only an AdminClient can make."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._process = AdminProcess(config)

    def close(self) -> None:
        """End the admin process."""
        self._process.close()

    def read_commits(
        self, wanted: Mapping[str, Sequence[TopicPartition] | None], call: Call, needs: Right = "Describe"
    ) -> dict[str, dict[TopicPartition, Commit] | BrokerError]:
        """
        Return the commits of groups, or the error of a group without an answer.

        :param wanted: group -> the partitions to read; ``None``: all partitions with a commit.
        :param needs: the right to name in the error if a right is missing.
        """
        arguments = {group_id: _by_topic(partitions) for group_id, partitions in wanted.items()}
        found: dict[str, tuple[Any, Failure | None]] = {}
        unanswered: BrokerError | None = None
        try:
            first = _first_attempt(arguments)
            # The client crashes if a coordinator has just moved, and many groups share one coordinator.
            self._each(call, "commits", arguments, found, first_attempt=first, most_crashes=math.inf)
        except BrokerError as error:
            if not found:
                raise
            unanswered = error
        results: dict[str, dict[TopicPartition, Commit] | BrokerError] = {}
        for group_id, (value, failure) in found.items():
            about = call.with_text(f"reading the offsets of group {group_id!r}")
            results[group_id] = _commits(value) if failure is None else about.explain(failure, needs)
        if unanswered is not None:
            # A copy for each group: callers append text to the error that they raise.
            results |= {group_id: copy(unanswered) for group_id in wanted.keys() - found.keys()}
        return results

    def commit(
        self,
        group_id: str,
        parts: Sequence[Offsets],
        texts: Texts,
        call: Call,
        background_errors: BackgroundErrors,
    ) -> dict[TopicPartition, Failure | None]:
        """
        Send the parts of a commit together, once, and wait for all responses.

        :param texts: topic -> the metadata of its commits.
        :return: partition -> ``None`` if it was committed, else the failure.
        :raises CallError: if there is no response; the offsets may be committed nevertheless.
        :raises ClientCrashedError: if the admin process died; the offsets may be committed nevertheless.
        """
        sent = [[(*tp, offset) for tp, offset in part.items()] for part in parts]
        arguments = {"group_id": group_id, "parts": sent, "texts": dict(texts)}
        # Not run(), which would send the commit again: after a lost response the caller first reads the
        # commits back.
        refused = self._process.run_once(call, "commit", arguments, background_errors)
        failures = {name: self._process.read_failure(failure) for name, (_, failure) in refused.items()}
        return {tp: failures.get(str(tp)) for part in parts for tp in part}

    def describe_groups(self, group_ids: Iterable[str], call: Call) -> dict[str, GroupDescription]:
        """Return the state and members of groups; a missing group is ``Dead``."""
        described: dict[str, GroupDescription] = {}
        wanted = parse_existing_groups(group_ids)
        found = self._groups(call, "describe", wanted, _first_attempt(wanted))
        for group_id, (value, failure) in found.items():
            if failure is None:
                described[group_id] = GroupDescription.from_worker(value)
            elif failure.code == "GROUP_ID_NOT_FOUND":
                # Since Kafka 4.0 the response for a missing group is an error; older brokers describe it as
                # Dead.
                described[group_id] = GroupDescription(group_id, "Dead")
            else:
                raise call.with_text(f"describing group {group_id!r}").explain(failure)
        return described

    def describe_settled_groups(self, group_ids: Iterable[str], call: Call) -> dict[str, GroupDescription]:
        """Return the state and members of groups, after waiting for commits of windows to end."""
        wanted = parse_existing_groups(group_ids)

        def attempt(_: float) -> dict[str, GroupDescription]:
            described = self.describe_groups(wanted, call)
            for group in described.values():
                if group.is_occupied:
                    raise CallError(Failure(OCCUPIED, group.group_id))
            return described

        try:
            return retry_until(call, attempt, passing=[OCCUPIED])
        except CallError as error:
            raise call.with_text(f"describing group {error.failure.text!r}").explain(error.failure) from None

    def list_groups(self, states: Iterable[str] | None, call: Call) -> list[GroupListing]:
        """Return the groups in one of these states (default: all), ordered by name."""
        kept = None if states is None else check_states(states)
        found = [GroupListing(**group) for group in self._process.run(call, "list")]
        # Brokers answer in any order.
        found.sort(key=lambda group: group.group_id)
        return [group for group in found if kept is None or group.state.lower() in kept]

    def delete_groups(self, group_ids: Iterable[str], call: Call) -> dict[str, str | None]:
        """Delete groups; return ``None`` for each deleted group, else the reason."""
        wanted = parse_existing_groups(group_ids)
        results: dict[str, str | None] = {}
        there: set[str] = set()
        try:
            described = self.describe_groups(wanted, call)
            there = {group_id for group_id, group in described.items() if group.state != "Dead"}
            results |= {
                group_id: group.kind_refusal for group_id, group in described.items() if group.kind_refusal
            }
        except BrokerError as error:
            # A broker cannot describe a group whose name is almost too long. A user without the right to
            # describe a group cannot delete it either: the deletion reports this.
            if error.code not in ("UNKNOWN", "GROUP_AUTHORIZATION_FAILED"):
                raise
        wanted = [group_id for group_id in wanted if group_id not in results]
        for group_id, (_, failure) in self._groups(call, "delete", wanted).items():
            if failure is None or (failure.code == "GROUP_ID_NOT_FOUND" and group_id in there):
                # If it is missing now, an attempt whose response was lost has deleted it.
                results[group_id] = None
            elif failure.code in _NOT_DELETED:
                results[group_id] = _NOT_DELETED[failure.code]
            else:
                results[group_id] = str(
                    call.with_text(f"deleting group {group_id!r}").explain(failure, "Delete")
                )
        return results

    def topic_ids(self, topics: Iterable[str], call: Call) -> dict[str, str]:
        """Return the ids of existing topics; brokers before Kafka 2.8 have no topic ids."""
        wanted = sorted(set(topics))
        call = call.with_text(f"looking up the ids of topics {', '.join(wanted[:5])}")
        found = self._topics(call, "topic_ids", wanted)
        for _, failure in found.values():
            if failure is not None and failure.code not in UNKNOWN_PARTITION:
                raise call.explain(failure)
        return {topic: topic_id for topic, (topic_id, _) in found.items() if topic_id is not None}

    def topic_settings(
        self, topics: Iterable[str], call: Call
    ) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return the settings of topics that decide when records are deleted, or an error for each topic."""
        found = self._topics(call, "topic_settings", sorted(set(topics)))
        about = "reading the settings of topic {!r}"
        return {
            topic: settings
            if failure is None
            else call.with_text(about.format(topic)).explain(failure, "DescribeConfigs")
            for topic, (settings, failure) in found.items()
        }

    def brokers(self, call: Call) -> tuple[int, str | None, str]:
        """Return the number of brokers, ``offsets.retention.minutes``, and, if unknown, the reason."""
        found = self._process.run(call, "brokers")
        failure = self._process.read_failure(found["failure"])
        return found["number"], found["retention"], "" if failure is None else failure.text

    def retention_minutes(self, call: Call) -> int | None:
        """Return the broker's ``offsets.retention.minutes``; ``None`` if unknown."""
        try:
            _, minutes, _ = self.brokers(call)
        except (BrokerError, SetupError):
            return None
        return int(minutes) if minutes is not None and minutes.isdecimal() else None

    def check_offset_deletion(self) -> None:
        """Check that this connection can delete single offsets, without a request."""
        check_deletion(self._config)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], call: Call
    ) -> dict[TopicPartition, str | None]:
        """Delete a group's commits in partitions; return ``None`` for each that is gone, else the reason."""
        self.check_offset_deletion()
        found, failure = self._each(call, "delete_offsets", {group_id: list(partitions)})[group_id]
        if failure is not None:
            raise call.explain(failure, "Delete")
        failures = map(self._process.read_failure, found)
        return {tp: deletion_refusal(failure, call) for tp, failure in zip(partitions, failures, strict=True)}

    def _topics(self, call: Call, name: str, wanted: Sequence[str]) -> dict[str, tuple[Any, Failure | None]]:
        """Make a call that has one result for each topic; ask again for topics that seem to be missing."""
        found = self._each(call, name, dict.fromkeys(wanted))
        settled: dict[str, tuple[Any, Failure | None]] = {}
        unknown = [
            topic for topic, (_, failure) in found.items() if failure and failure.code in UNKNOWN_PARTITION
        ]
        with suppress(BrokerError):
            again = call.with_timeout(_SETTLED)
            self._each(again, name, dict.fromkeys(unknown), settled, passing=TEMPORARY)
        missing = dict.fromkeys(topic for topic in unknown if topic not in settled)
        return found | settled | self._each(call, name, missing)

    def _groups(
        self, call: Call, name: str, wanted: Sequence[str], first_attempt: float = math.inf
    ) -> dict[str, tuple[Any, Failure | None]]:
        groups = ", ".join(map(escape_controls, wanted[:5]))
        call = call.with_text(f"{name.removesuffix('e')}ing group {groups}")
        return self._each(call, name, dict.fromkeys(wanted), first_attempt=first_attempt)

    def _each(
        self,
        call: Call,
        name: str,
        wanted: Mapping[str, Any],
        found: dict[str, tuple[Any, Failure | None]] | None = None,
        *,
        passing: Collection[str] = RETRIABLE,
        **options: float,
    ) -> dict[str, tuple[Any, Failure | None]]:
        """
        Make a call that has one result for each name; repeat it for names whose failure is temporary.

        :param found: receives the results, even if the call fails in the end.
        :param passing: codes of temporary failures.
        :param options: options of :meth:`AdminProcess.run`.
        """
        found = {} if found is None else found

        def attempt(_: float) -> None:
            again: Failure | None = None
            todo = {each: value for each, value in wanted.items() if each not in found}
            for each, (value, failed) in self._process.run(call, name, todo, **options).items():
                failure = self._process.read_failure(failed)
                if failure is not None and failure.code in passing:
                    again = failure
                else:
                    found[each] = (value, failure)
            if again is not None:
                raise CallError(again)

        try:
            if wanted:
                retry_until(call, attempt)
        except CallError as error:
            raise call.explain(error.failure) from None
        return found


def _first_attempt(groups: Collection[str]) -> float:
    return FIRST_ATTEMPT + len(groups) * _EACH_GROUP


def _by_topic(partitions: Sequence[TopicPartition] | None) -> list[tuple[str, list[int]]] | None:
    if partitions is None:
        return None
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return list(topics.items())


def _commits(parts: Sequence[Mapping[str, Any]]) -> dict[TopicPartition, Commit]:
    """Parse the worker's result: for each topic a flat list of partition, offset and index of the text."""
    commits: dict[TopicPartition, Commit] = {}
    for part in parts:
        texts = part["texts"]
        for topic, flat in part["topics"].items():
            for number, offset, place in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
                commits[TopicPartition(topic, number)] = Commit(offset, texts[place])
    return commits
