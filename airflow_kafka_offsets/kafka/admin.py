"""Makes calls in the admin process: about groups, about topics, and about the settings of brokers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.kafka.admin_process import CRASHES, AdminProcess
from airflow_kafka_offsets.kafka.commits import Texts
from airflow_kafka_offsets.kafka.explain import Call, Right
from airflow_kafka_offsets.kafka.failures import (
    RETRIABLE,
    TEMPORARY,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    CallError,
    Failure,
)
from airflow_kafka_offsets.kafka.groups import GroupDescription
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


class Admin(AdminProcess):
    """Makes the calls that only an AdminClient can make."""

    def read_commits(
        self, wanted: Mapping[str, Sequence[TopicPartition] | None], call: Call, needs: Right = "Describe"
    ) -> dict[str, dict[TopicPartition, Commit] | BrokerError]:
        """
        Return the commits of groups, or the error of a group without an answer.

        :param wanted: group -> the partitions to read; ``None``: all partitions with a commit.
        """
        arguments = {group_id: _by_topic(partitions) for group_id, partitions in wanted.items()}
        found: dict[str, tuple[Any, Failure | None]] = {}
        unanswered: BrokerError | None = None
        try:
            first = _first_attempt(arguments)
            # The client crashes if a coordinator has just moved, and many groups share one coordinator.
            self.ask_each(call, "commits", arguments, found, first_attempt=first, most_crashes=math.inf)
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

        :return: partition -> ``None`` if it was committed, else the failure.
        :raises CallError: if there is no response; the offsets may be committed nevertheless.
        :raises ClientCrashedError: if the admin process died; the offsets may be committed nevertheless.
        """
        sent = [[(*tp, offset) for tp, offset in part.items()] for part in parts]
        arguments = {"group_id": group_id, "parts": sent, "texts": dict(texts)}
        # Not run(), which would send the commit again: after a lost response the caller first reads the
        # commits back.
        refused = self.run_once(call, "commit", arguments, background_errors)
        failures = {name: self.read_failure(failure) for name, (_, failure) in refused.items()}
        return {tp: failures.get(str(tp)) for part in parts for tp in part}

    def describe_groups(self, group_ids: Iterable[str], call: Call) -> dict[str, GroupDescription]:
        """Return the state and members of groups; a missing group is ``Dead``."""
        described: dict[str, GroupDescription] = {}
        wanted = parse_existing_groups(group_ids)
        found = self.ask_groups(call, "describe", wanted, _first_attempt(wanted))
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

    def brokers(self, call: Call) -> tuple[int, str | None, str]:
        """Return the number of brokers, ``offsets.retention.minutes``, and, if unknown, the reason."""
        found = self.run(call, "brokers")
        failure = self.read_failure(found["failure"])
        return found["number"], found["retention"], "" if failure is None else failure.text

    def ask_topics(
        self, call: Call, name: str, wanted: Sequence[str]
    ) -> dict[str, tuple[Any, Failure | None]]:
        """Make a call that has one result for each topic; ask again for topics that seem to be missing."""
        found = self.ask_each(call, name, dict.fromkeys(wanted))
        settled: dict[str, tuple[Any, Failure | None]] = {}
        unknown = [
            topic for topic, (_, failure) in found.items() if failure and failure.code in UNKNOWN_PARTITION
        ]
        with suppress(BrokerError):
            again = call.with_timeout(_SETTLED)
            self.ask_each(again, name, dict.fromkeys(unknown), settled, temporary=TEMPORARY)
        missing = dict.fromkeys(topic for topic in unknown if topic not in settled)
        return found | settled | self.ask_each(call, name, missing)

    def ask_groups(
        self, call: Call, name: str, wanted: Sequence[str], first_attempt: float = math.inf
    ) -> dict[str, tuple[Any, Failure | None]]:
        """Make a call that has one result for each group."""
        groups = ", ".join(map(escape_controls, wanted[:5]))
        call = call.with_text(f"{name.removesuffix('e')}ing group {groups}")
        return self.ask_each(call, name, dict.fromkeys(wanted), first_attempt=first_attempt)

    def ask_each(
        self,
        call: Call,
        name: str,
        wanted: Mapping[str, Any],
        found: dict[str, tuple[Any, Failure | None]] | None = None,
        *,
        temporary: Collection[str] = RETRIABLE,
        first_attempt: float = math.inf,
        most_crashes: float = CRASHES,
    ) -> dict[str, tuple[Any, Failure | None]]:
        """
        Make a call that has one result for each name; repeat it for names whose failure is temporary.

        :param found: receives the results, even if the call fails in the end.
        :param temporary: codes of temporary failures.
        :param first_attempt: as in :meth:`AdminProcess.run`; ``most_crashes`` likewise.
        """
        found = {} if found is None else found

        def attempt(seconds: float) -> None:
            again: Failure | None = None
            todo = {each: value for each, value in wanted.items() if each not in found}
            results = self.run(call, name, todo, first_attempt=seconds, most_crashes=most_crashes)
            for each, (value, failed) in results.items():
                failure = self.read_failure(failed)
                if failure is not None and failure.code in temporary:
                    again = failure
                else:
                    found[each] = (value, failure)
            if again is not None:
                raise CallError(again)

        try:
            if wanted:
                retry_until(call, attempt, first_attempt=first_attempt)
        except CallError as error:
            failed = call.explain(error.failure)
            # Brokers may do later what they have not answered, or what their replicas have not confirmed.
            raise failed.append("it may be deleted all the same") if "delete" in name else failed from None
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
