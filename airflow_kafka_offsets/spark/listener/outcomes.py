"""What became of the commits for each query, and what is to be said about it?"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from airflow_kafka_offsets.errors import BrokerUnavailableError, KafkaOffsetsError
from airflow_kafka_offsets.spark.group_commit import is_refusal
from airflow_kafka_offsets.spark.listener.queries import RunningQuery

log = logging.getLogger(__name__)

_WHOLE_QUERY = ""
"""In place of a group, where an error is of no single one."""


class Counts(NamedTuple):
    """What became of the commits so far."""

    committed: int = 0
    """Commits that were read back."""
    refused: int = 0
    """Commits that must not be made, wholly or in part."""
    failed: int = 0
    """Attempts that did not succeed."""


class Outcomes:
    """Counts commits, keeps the error of each group that is not where its query is, and warns of each once."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._errors: dict[tuple[str, str], KafkaOffsetsError] = {}
        self._said: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()

    @property
    def errors(self) -> list[KafkaOffsetsError]:
        """Why groups are not where their queries are; one that was mended is not in it."""
        with self._lock:
            return list(self._errors.values())

    def committed(self, query: RunningQuery, group_id: str, *, wholly: bool = True) -> None:
        """
        Note a commit that was read back.

        :param wholly: whether the group is now where the query is.
        """
        self._count(committed=1)
        if not wholly:
            return
        with self._lock:
            errors = [self._errors.pop((query.query_id, about), None) for about in (group_id, _WHOLE_QUERY)]
            self._said = {said for said in self._said if said[:2] != (query.query_id, group_id)}
        if any(errors):
            log.info("Group %s follows query %s again", group_id, query.name)

    def not_committed(
        self, query: RunningQuery, error: KafkaOffsetsError, group_id: str = _WHOLE_QUERY
    ) -> None:
        """Note why a group is not where its query is."""
        if is_refusal(error):
            self._count(refused=1)
        else:
            self._count(failed=1)
        with self._lock:
            self._errors.pop((query.query_id, _WHOLE_QUERY), None)
            self._errors[query.query_id, group_id] = error
        self.say(query, group_id, type(error).__name__, str(error))

    def late(self, query: RunningQuery, timeout: float) -> None:
        """Note that a query's last commit was not done in time, unless there is a better reason already."""
        self._incomplete(query, f"its last commit was not done within {timeout:.3g} s; its next run does it")

    def unknown_end(self, query: RunningQuery) -> None:
        """Note that Spark does not tell what a query has finished last, unless there is a better reason already."""
        self._incomplete(
            query,
            "the Spark Connect server does not answer, so that what it has finished last is not known: what is "
            "committed is what its last event told; its next run, or CommitOffsetsOperator, commits the rest",
        )

    def say(self, query: RunningQuery, about: str, kind: str, text: str) -> None:
        """Warn once, however often it happens again before it is mended."""
        key = (query.query_id, about, kind)
        level = logging.DEBUG if key in self._said else logging.WARNING
        log.log(level, "Kafka offsets: query %s: %s", query.name, text)
        self._said.add(key)

    def _incomplete(self, query: RunningQuery, text: str) -> None:
        with self._lock:
            if any(query_id == query.query_id for query_id, _ in self._errors):
                return
            self._errors[query.query_id, _WHOLE_QUERY] = BrokerUnavailableError(f"query {query.name}: {text}")
        self.say(query, _WHOLE_QUERY, "incomplete", text)

    def _count(self, **more: int) -> None:
        self.counts = Counts(*(old + more.get(name, 0) for name, old in self.counts._asdict().items()))
