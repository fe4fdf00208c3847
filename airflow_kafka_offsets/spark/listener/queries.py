"""Reads the finished offsets of the Kafka sources of running queries."""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from airflow_kafka_offsets.checkpoint.archived_move import (
    ARCHIVE_NAME,
    BATCHES_COMPARED,
    DIRECTORY,
    DONE,
    MANIFEST,
    UNDONE,
    archive_number,
    newest_finished,
)
from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry, parse_offset_log
from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import parse_offsets
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.spark.listener.threads import LimitedCalls

log = logging.getLogger(__name__)

_KAFKA_SOURCES = re.compile(r"org\.apache\.spark\.sql\.kafka010\.")
_V2 = re.compile(r"StreamingDataSourceV2(Scan)?Relation")
"""Spark's class names before 4.0 and since: the package differs between versions."""
# The class name for a source of Spark's first source interface.
_V1 = "StreamingExecutionRelation"


class SourceState(NamedTuple):
    """The finished offsets of one Kafka source of a query."""

    name: str
    """Spark's description, such as ``KafkaV2[Subscribe[orders]]``."""
    options: Mapping[str, str]
    """The source's options; empty with Spark Connect."""
    offsets: Offsets
    """End offsets of the newest batch that the query has finished."""


class SinceMove(NamedTuple):
    """A move of a query's checkpoint, and the batches after it; without a move, all batches."""

    logs: LogIds
    topics: set[str]
    """The topics whose newest move it is."""
    batches: Iterator[OffsetLogEntry]


class MovedTo(NamedTuple):
    """The cluster to which a query's checkpoint was moved last."""

    archive: str
    cluster: str
    newest_finished: int
    """The newest batch that was finished before or after the move."""


def callback_socket(jvm: Any) -> socket.socket | None:
    """
    Return the socket on which Java has called this Python thread.

    Spark calls ``onQueryStarted`` on the query's own Java thread. py4j gives each Java thread a connection
    and a Python thread, which both remain after the Java thread's end.
    """
    # With PYSPARK_PIN_THREAD=false, threads share connections, and nothing remains.
    of_this_thread = getattr(jvm._gateway_client, "get_thread_connection", None)
    return getattr(of_this_thread() if of_this_thread is not None else None, "socket", None)


class ClassicQuery:
    """
    A query in this driver's JVM.

    For each source object Spark keeps the offsets of the newest batch that is in both logs of the checkpoint
    (``committedOffsets``). A source object and its options are matched by the ids of the source's columns in
    the plan, never by position. So a table that is read twice, a source that is used twice, and named sources
    are handled correctly.

    :param called_on: the socket of the query's ``onQueryStarted`` event; it is shut down at the query's end,
        which ends the Python thread that waits for its next call.
    """

    def __init__(self, query: Any, called_on: socket.socket | None = None) -> None:
        self._query = query
        self._called_on = called_on
        self.query_id = str(query.id)
        self.name = _name(self.query_id, query.name)
        self._found: list[tuple[Any, str, dict[str, str]]] | None = None

    @cached_property
    def _execution(self) -> Any:
        """The query in Java: PySpark shows neither plan nor options."""
        execution = self._query._jsq
        wrapped = execution.getClass().getSimpleName() == "StreamingQueryWrapper"
        return execution.streamingQuery() if wrapped else execution

    @property
    def _files(self) -> Any:
        """Spark's access to the checkpoint's storage, in Java."""
        return self._execution.offsetLog().fileManager()

    def _text(self, path: Any) -> str:
        with contextlib.closing(self._files.open(path)) as file:
            # Java 8, which Spark 3.5 runs on, cannot read a stream as a whole.
            return "\n".join(iter(file.readLine, None))

    def is_active(self) -> bool:
        """Return whether the query runs."""
        return bool(self._execution.isActive())

    def sources(self) -> list[SourceState]:
        """
        Return the finished offsets; empty before the first batch.

        Also empty while Spark plans to end below them, because a log is shorter, as after its topic was
        created again: the query has not read this log up to them. A query that continues from a seek back
        shows this for a moment, too (Spark 3.5).
        """
        if self._found is None:
            self._found = list(self._kafka_sources())
        committed, planned = self._execution.committedOffsets(), self._execution.availableOffsets()
        states = []
        for source, name, options in self._found:
            ends, limits = (_ends(name, _json(progress.get(source))) for progress in (committed, planned))
            if any(offset > limits.get(tp, offset) for tp, offset in ends.items()):
                return []
            if ends:
                states.append(SourceState(name, options, ends))
        return states

    def newest_batch(self) -> int | None:
        """Return the id of the newest finished batch; this lists the log's files."""
        found = self._execution.commitLog().getLatestBatchId()
        return int(found.get()) if found.isDefined() else None

    def planned(self, batch: int) -> OffsetLogEntry | None:
        """Return Spark's plan of a batch, ``None`` if it is not kept; this reads a file."""
        path = self._execution.offsetLog().metadataPath().suffix(f"/{batch}")
        return parse_offset_log(self._text(path), str(path)) if self._files.exists(path) else None

    def since_moves(self, batch: int, topics: Iterable[str]) -> list[SinceMove]:
        """
        Return the newest move of each topic that has written batches, and the last batches since.

        :param batch: the first batch that is left out.
        """
        left, moves = {*topics}, list[tuple[LogIds, set[str], int]]()
        # Each archive takes calls to the storage, and Spark keeps no batch from before so many moves.
        for archive in islice(self._archives(), BATCHES_COMPARED):
            if not left:
                break
            try:
                manifest = json.loads(self._text(archive.suffix(f"/{MANIFEST}")))
                paths = [path for path, digests in manifest["files"].items() if digests["after"] is not None]
                written = [int(path.partition("/")[2]) for path in paths]
                of_query, logs = manifest["query_id"] == self.query_id, LogIds.parse(manifest.get("logs"))
            except (ValueError, LookupError, TypeError, AttributeError, OffsetsFormatError) as error:
                log.warning(
                    "%s: cannot be read (%s), so it is not noticed if %s was created again: move it away",
                    archive,
                    error,
                    ", ".join(sorted(left)),
                )
                left = set()
                break
            # An archive may be of a query that this one has replaced.
            if written and of_query:
                # A move that names no topics may have moved all.
                moved = left & logs.topics.keys() if logs.topics else left
                moves.append((logs, moved, max(written)))
                left = left - moved
        root = self._execution.offsetLog().metadataPath()
        names = [str(each.getPath().getName()) for each in self._files.list(root)]
        kept = sorted(number for number in map(int, filter(str.isdecimal, names)) if number < batch)

        def plans(last: int) -> Iterator[OffsetLogEntry]:
            paths = (root.suffix(f"/{number}") for number in kept[-BATCHES_COMPARED:] if number > last)
            return (parse_offset_log(self._text(path), str(path)) for path in paths)

        moves.append((UNKNOWN_LOGS, left, -1))
        return [SinceMove(logs, moved, plans(last)) for logs, moved, last in moves]

    def moved_to(self, topics: Collection[str]) -> MovedTo | None:
        """Return the newest finished move of these topics that names its cluster; ``None`` without one."""
        for archive in islice(self._archives(), BATCHES_COMPARED):
            manifest = json.loads(self._text(archive.suffix(f"/{MANIFEST}")))
            logs = LogIds.parse(manifest["logs"])
            concerned = not logs.topics or not logs.topics.keys().isdisjoint(topics)
            if manifest["query_id"] != self.query_id or not (logs.cluster and concerned):
                continue
            if self._has(archive, DONE) and not self._has(archive, UNDONE):
                newest = newest_finished(manifest["newest_committed"], manifest["files"])
                return MovedTo(str(archive.getName()), logs.cluster, newest)
        return None

    def _has(self, archive: Any, mark: str) -> bool:
        return bool(self._files.exists(archive.suffix(f"/{mark}")))

    def newest_move(self) -> int | None:
        """Return the number of the checkpoint's newest move, 0 without a move; this lists the archive."""
        newest = next(self._archives(), None)
        return 0 if newest is None else archive_number(str(newest.getName()))

    def _archives(self) -> Iterator[Any]:
        """Return the Java paths of the archives of the checkpoint's moves, newest first."""
        log = self._execution.commitLog()
        # Not the parent's suffix(): Hadoop reads a colon in the parent's own name as the end of a scheme.
        files, archive = self._files, log.metadataPath().suffix(f"/../{DIRECTORY}")
        listed = files.list(archive) if files.exists(archive) else ()
        names = filter(ARCHIVE_NAME.fullmatch, [str(each.getPath().getName()) for each in listed])
        paths = (archive.suffix(f"/{name}") for name in sorted(names, key=archive_number, reverse=True))
        # Without a manifest the move never began.
        return (path for path in paths if files.exists(path.suffix(f"/{MANIFEST}")))

    def forget(self) -> None:
        """Shut down the socket of the query's start."""
        if self._called_on is not None:
            with contextlib.suppress(OSError):
                # Not close(): another thread waits in a read, which only a shutdown ends.
                self._called_on.shutdown(socket.SHUT_RDWR)
            self._called_on = None

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
    A query on a Spark Connect server, known only from its progress.

    :param given: the name that the user gave the query, if any.
    :param query: PySpark's query; ``None`` if it has ended and the server no longer returns it.
    :param server: makes the calls to the server; PySpark's own calls have no time limit, or one of ten
        minutes.
    """

    def __init__(self, query_id: str, given: str | None, query: Any | None, server: LimitedCalls) -> None:
        self.query_id = query_id
        self.name = _name(query_id, given)
        self._query = query
        self._server = server
        self._batch = -1
        self._states: list[SourceState] | None = None

    def is_active(self) -> bool:
        """Return whether the query runs; raise ``TimeoutError`` if the server does not answer."""
        query = self._query
        return query is not None and self._server(lambda: bool(query.isActive))

    def sources(self) -> list[SourceState]:
        """Return the finished offsets; empty before the first batch."""
        if self._states is None:
            # A run without new data has no event, but its progress has the offsets of earlier runs.
            self.ask_last_progress()
        return self._states or []

    def newest_batch(self) -> int | None:
        """Return the id of the newest batch with an event."""
        return None if self._batch < 0 else self._batch

    def planned(self, batch: int) -> OffsetLogEntry | None:
        """Return ``None``: Spark Connect does not show the checkpoint."""

    def since_moves(self, batch: int, topics: Iterable[str]) -> None:
        """Return ``None``, for the same reason."""

    def moved_to(self, topics: Collection[str]) -> None:
        """Return ``None``, for the same reason."""

    def newest_move(self) -> int | None:
        """Return ``None``, for the same reason."""
        return None

    def forget(self) -> None:
        """Do nothing: there are no resources to close."""

    def add_progress(self, progress: Any) -> None:
        """Record the progress of a batch, unless a newer one is known."""
        # An idle query shows the id of its next batch.
        batch = int(progress.batchId) - ("addBatch" not in progress.durationMs)
        # Events may arrive late: an older event must not move the group back.
        if batch >= self._batch:
            found = [source for source in progress.sources if str(source.description).startswith("Kafka")]
            states = [
                SourceState(name, {}, ends)
                for source in found
                if (ends := _ends(name := str(source.description), source.endOffset))
            ]
            # Without a Kafka source it is known that there are no offsets.
            if states or not found:
                self._batch, self._states = batch, states

    def ask_last_progress(self) -> None:
        """Ask for the last progress, because events may be lost; raise ``TimeoutError`` without an answer."""
        query = self._query
        progress = None if query is None else self._server(lambda: query.lastProgress)
        if progress is not None:
            self.add_progress(progress)


RunningQuery = ClassicQuery | ConnectQuery
"""A followed query, on either kind of session."""


def _name(query_id: str, given: str | None) -> str:
    return f"{given!r} ({query_id})" if given else query_id


def _leaves(plan: Any) -> Iterator[tuple[str, Any]]:
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        yield leaf.getClass().getSimpleName(), leaf


def _json(offset: Any) -> str | None:
    return offset.get().json() if offset.isDefined() else None


def _ends(name: str, text: str | None) -> Offsets:
    # A pattern that matches no topic has no partitions.
    if text in (None, "null", "None", "{}"):
        return {}
    # PySpark 4.0's Spark Connect client returns Python's text form of a dictionary.
    value = ast.literal_eval(text) if text.startswith("{'") else text
    return parse_offsets(value, f"offsets of {name}")
