"""Where do the Kafka sources of a running query stand, and which group is to follow each of them?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import parse_offsets
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.spark.listener.callbacks import CallbackConnection
from airflow_kafka_offsets.spark.listener.time_limit import LimitedCalls

GROUP_OPTIONS = ("kafka.consumer.commit.groupid", "consumer.commit.groupid")
"""Spark passes over both; Kafka's consumer warns of the first one."""

_KAFKA_SOURCES = re.compile(r"org\.apache\.spark\.sql\.kafka010\.")
_V2 = re.compile(r"StreamingDataSourceV2(Scan)?Relation")
"""Spark's own names of them, before 4.0 and since; packages differ between versions."""
_V1 = "StreamingExecutionRelation"


class SourceState(NamedTuple):
    """What a query has finished of one Kafka source."""

    name: str
    """Spark's description, such as ``KafkaV2[Subscribe[orders]]``."""
    group_id: str | None
    """The group that the source's options name."""
    options: Mapping[str, str]
    """The source's options; empty where they cannot be had."""
    offsets: Offsets
    """Ends of the newest batch that the query has finished."""


class RunningQuery(Protocol):
    """A query that is followed, on whatever kind of session."""

    @property
    def query_id(self) -> str:
        """Id of the query, stable over its restarts."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    def is_active(self) -> bool:
        """Whether it runs."""

    def sources(self) -> list[SourceState]:
        """Return what is finished; empty as long as no batch is."""

    def newest_batch(self) -> int | None:
        """Return the id of the newest batch that is finished, if that can be told."""

    def forget(self) -> None:
        """Give back what following it has taken, when it has ended."""


class ClassicQuery:
    """
    A query in this driver's JVM.

    Spark itself keeps, for each source object, the offsets of the newest batch that is in both of the checkpoint's
    logs (``committedOffsets``). The source object and its options meet in the columns that the source brings into the
    plan, of which each has an id of its own. So nothing is matched by position: a table read twice, a source that is
    used twice (its line in the checkpoint is then there twice, in the progress once), and named sources come out right.

    :param query: PySpark's query.
    :param called_on: the connection on which its start was told, to be closed at its end.
    """

    def __init__(self, query: Any, called_on: CallbackConnection | None = None) -> None:
        self._called_on = called_on
        self.query_id = str(query.id)
        self.name = _called(self.query_id, query.name)
        execution = query._jsq  # PySpark shows neither plan nor options
        if execution.getClass().getSimpleName() == "StreamingQueryWrapper":
            execution = execution.streamingQuery()
        self._execution = execution
        self._found: list[tuple[Any, str, dict[str, str]]] | None = None

    def is_active(self) -> bool:
        """Whether it runs."""
        return bool(self._execution.isActive())

    def sources(self) -> list[SourceState]:
        """Return what is finished; empty as long as no batch is."""
        if self._found is None:
            self._found = list(self._kafka_sources())
        committed = self._execution.committedOffsets()
        states = []
        for source, name, options in self._found:
            offset = committed.get(source)
            if offset.isDefined() and (ends := _ends(name, offset.get().json())):
                states.append(SourceState(name, commit_group(options), options, ends))
        return states

    def newest_batch(self) -> int | None:
        """Return the id of the newest batch that is finished: the log's files are listed for it."""
        found = self._execution.commitLog().getLatestBatchId()
        return int(found.get()) if found.isDefined() else None

    def forget(self) -> None:
        """Give back what following it has taken, when it has ended."""
        if self._called_on is not None:
            self._called_on.close()

    def _kafka_sources(self) -> Iterator[tuple[Any, str, dict[str, str]]]:
        options = {
            relation.output().toString(): dict(relation.extraOptions().asCaseSensitiveMap())
            for kind, relation in _leaves(self._execution.analyzedPlan())
            if kind == "StreamingRelationV2"
        }
        seen = set()
        for kind, relation in _leaves(self._execution.logicalPlan()):
            if _V2.fullmatch(kind):
                source = relation.stream()
            elif kind == _V1:
                source = relation.source()
            else:
                continue
            columns = relation.output().toString()
            if columns not in seen and _KAFKA_SOURCES.match(source.getClass().getName()):
                seen.add(columns)
                yield source, source.toString(), options.get(columns, {})


class ConnectQuery:
    """
    A query on a Spark Connect server: what is known of it is what its progress says.

    :param query_id: id of the query, stable over its restarts.
    :param given: its name, if it was given one.
    :param query: PySpark's query; the server does not give it any more when it has ended.
    :param server: makes the calls to the server, for an answer to which PySpark itself waits ten minutes or for ever.
    """

    def __init__(self, query_id: str, given: str | None, query: Any | None, server: LimitedCalls) -> None:
        self.query_id = query_id
        self.name = _called(query_id, given)
        self._query = query
        self._server = server
        self._batch = -1
        self._states: list[SourceState] = []

    def is_active(self) -> bool:
        """
        Whether it runs, as far as that is known.

        :raises TimeoutError: if the server does not answer.
        """
        query = self._query
        return query is not None and self._server(lambda: bool(query.isActive))

    def sources(self) -> list[SourceState]:
        """Return what is finished; empty as long as no batch is."""
        return self._states

    def newest_batch(self) -> int | None:
        """Return the id of the newest batch that was heard of."""
        return None if self._batch < 0 else self._batch

    def forget(self) -> None:
        """Do nothing: it has taken nothing."""

    def note(self, progress: Any) -> None:
        """Take in what a batch has finished; an older one than is known is passed over."""
        batch = int(progress.batchId)
        if batch >= self._batch:
            states = list(_kafka_states(progress.sources))
            if states:
                self._batch, self._states = batch, states

    def note_last(self) -> None:
        """
        Ask the server for the last progress, whose event may have been lost.

        :raises TimeoutError: if it does not answer.
        """
        query = self._query
        progress = None if query is None else self._server(lambda: query.lastProgress)
        if progress is not None:
            self.note(progress)


def commit_group(options: Mapping[str, str]) -> str | None:
    """
    Return the group that a Kafka source's options name, ``None`` if they name none.

    :raises UsageError: if they name two.
    """
    named = {value.strip() for key, value in options.items() if key.lower() in GROUP_OPTIONS} - {""}
    if len(named) > 1:
        raise UsageError(
            f"the options {' and '.join(GROUP_OPTIONS)} of one source name different groups, "
            f"{' and '.join(sorted(named))}: keep one"
        )
    return next(iter(named), None)


def _called(query_id: str, given: str | None) -> str:
    return f"{given!r} ({query_id})" if given else query_id


def _leaves(plan: Any) -> Iterator[tuple[str, Any]]:
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        yield leaf.getClass().getSimpleName(), leaf


def _kafka_states(sources: Iterable[Any]) -> Iterator[SourceState]:
    for source in sources:
        name = str(source.description)
        if name.startswith("Kafka") and (ends := _ends(name, source.endOffset)):
            yield SourceState(name, None, {}, ends)


def _ends(name: str, text: str | None) -> Offsets:
    # A pattern that no topic fits has no partitions.
    if text in (None, "null", "None", "{}"):
        return {}
    # PySpark 4.0's Spark Connect client shows them as Python writes a dictionary.
    value = ast.literal_eval(text) if text.startswith("{'") else text
    return parse_offsets(value, f"offsets of {name}")
