"""Counts the commits of each query, keeps their errors and logs each error once."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    CommitError,
    KafkaOffsetsError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.moves.write import AHEAD
from airflow_kafka_offsets.spark.listener.queries import RunningQuery, Target

log = logging.getLogger(__name__)

_WHOLE_QUERY = ""
"""Used instead of a target for an error of the whole query."""

Subject = Target | str
"""What an error is about: a group of a cluster, the whole query, or a topic without a group (the text)."""


class Counts(NamedTuple):
    """Results of the commits so far."""

    committed: int = 0
    """Commits that were read back."""
    refused: int = 0
    """Commits that were refused, completely or in part."""
    failed: int = 0
    """Attempts that failed."""


class Outcomes:
    """The counts, the error of each group that is not at its query's offsets, and topics without a group."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._errors: dict[tuple[str, Subject], KafkaOffsetsError] = {}
        self._warned: set[tuple[str, Subject, str]] = set()
        self._lock = threading.Lock()

    @property
    def errors(self) -> list[KafkaOffsetsError]:
        """The errors of groups that are not at their queries' offsets; a later commit removes an error."""
        with self._lock:
            return list(self._errors.values())

    def raise_errors(self) -> None:
        """
        Raise the only error, or one error that names all.

        :raises KafkaOffsetsError: a :class:`~airflow_kafka_offsets.errors.PlanRefusedError` if all are
            refusals.
        """
        errors = self.errors
        if len(errors) == 1:
            raise errors[0]
        if errors and all(isinstance(error, PlanRefusedError) for error in errors):
            raise PlanRefusedError([text for error in errors for text in getattr(error, "refusals", ())])
        if errors:
            text = "".join(f"\n  - {error}" for error in errors)
            raise BrokerError(text, retriable=all(error.retriable for error in errors))

    def record_commit(self, query: RunningQuery, target: Target, *, wholly: bool = True) -> None:
        """Record a commit that was read back; ``wholly`` if the group is now at the query's offsets."""
        self.counts = self.counts._replace(committed=self.counts.committed + 1)
        if not wholly:
            return
        with self._lock:
            fixed = [self._errors.pop((query.query_id, about), None) for about in (target, _WHOLE_QUERY)]
            self._warned = {key for key in self._warned if key[:2] != (query.query_id, target)}
        if any(fixed):
            log.info("Group %r follows query %s again", target.group_id, query.name)

    def record_error(
        self, query: RunningQuery, error: KafkaOffsetsError, target: Subject = _WHOLE_QUERY
    ) -> None:
        """Record why a group is not at its query's offsets."""
        ahead = isinstance(error, CommitError) and AHEAD in error.failed.values()
        kind = "refused" if ahead or isinstance(error, PlanRefusedError) else "failed"
        self.counts = self.counts._replace(**{kind: getattr(self.counts, kind) + 1})
        with self._lock:
            self._errors.pop((query.query_id, _WHOLE_QUERY), None)
            self._errors[query.query_id, target] = error
        self._warn_once(query, target, type(error).__name__, str(error))

    def record_without_group(self, query: RunningQuery, text: str) -> None:
        """Record that no group follows a topic of a query."""
        with self._lock:
            self._errors[query.query_id, text] = UsageError(f"query {query.name}: {text}")
        self._warn_once(query, text, "", text)

    def record_incomplete(self, query: RunningQuery, text: str) -> None:
        """Record that a query's last offsets were not committed, unless it has a more specific error."""
        with self._lock:
            # A topic without a group says nothing about the others.
            known = [about for query_id, about in self._errors if query_id == query.query_id]
            if any(isinstance(about, Target) or about == _WHOLE_QUERY for about in known):
                return
            self._errors[query.query_id, _WHOLE_QUERY] = BrokerUnavailableError(f"query {query.name}: {text}")
        self._warn_once(query, _WHOLE_QUERY, "incomplete", text)

    def _warn_once(self, query: RunningQuery, about: Subject, kind: str, text: str) -> None:
        """Log a warning once; log it again only after a successful commit to the group."""
        key = (query.query_id, about, kind)
        level = logging.DEBUG if key in self._warned else logging.WARNING
        log.log(level, "Kafka offsets: query %s: %s", query.name, text)
        self._warned.add(key)
