"""What the committer knows: each run of a query, how many commits there were, and their errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    CommitError,
    KafkaOffsetsError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, furthest_behind, summarize
from airflow_kafka_offsets.moves.write import AHEAD
from airflow_kafka_offsets.spark.listener.queries import RunningQuery, SourceState
from airflow_kafka_offsets.spark.listener.targets import Settings, Target

log = logging.getLogger(__name__)

T = TypeVar("T")

REFRESH = 3_600.0
"""Maximum seconds until a query without new data commits again: Kafka forgets groups without commits."""

REFRESHES = 4
"""Number of commits within the time after which the broker would forget the group."""

_MOVED_WHILE_RUNNING = (
    "its checkpoint and its group were moved while it runs, which it does not notice: it continues at its "
    "own offsets, and its next batch moves the group there; stop the query, then move both again"
)
_GROUP_MOVED = (
    "its group was moved away from the query's offsets, and the query's next batch moves it back there; if a "
    "reset has moved both while the query runs, stop the query, then move both again; if only the checkpoint "
    "was moved since, do nothing"
)
"""Used if the checkpoint cannot be read, as with Spark Connect."""

_WHOLE_QUERY = ""
"""Used instead of a target for an error of the whole query."""

Subject = Target | str
"""What an error is about: a group of a cluster, the whole query, or a topic without a group (the text)."""


@dataclass
class Run:
    """A run of a query: the commits that were made for it, and the next one."""

    query: RunningQuery
    checkpoint_move: int | None
    """Number of the checkpoint's newest move that came before or during the run; ``None`` if unknown."""
    began: float = field(default_factory=lambda: int(time.time()))
    """When the listener began to follow it, in seconds since 1970."""
    batch: int | None = None
    """Id of the newest finished batch; ``None`` if it must be read from the query."""
    first_batch: int | None = None
    """Id of the first batch that is known to have finished."""
    wanted: bool = False
    """Whether a commit is needed."""
    busy: bool = False
    """Whether a commit is in progress."""
    due_at: float = 0.0
    """When the next commit is due; this and the other times are of the monotonic clock."""
    attempts: int = 0
    """Number of attempts that have failed since the last commit."""
    ended_at: float | None = None
    committed_at: float | None = None
    sources: list[SourceState] | None = None
    """The offsets of the last attempt to commit."""
    idle: bool = False
    """Whether the query has waited for data."""
    retention: float | None = None
    """Seconds that brokers keep the groups' offsets: ``None`` before asking, infinite if unknown."""
    claims: dict[Target, set[TopicPartition]] = field(default_factory=dict)
    """Partitions of each group that the run has committed, which no other query may commit."""
    clients: set[Settings] = field(default_factory=set)
    """Settings of the clients that the run uses."""
    log_ids: dict[Target, tuple[set[str], LogIds]] = field(default_factory=dict)
    """Topics of each target's last commit, and their ids from when the query began to read them."""
    group_moves: dict[Target, int] = field(default_factory=dict)
    """Number of the checkpoint's newest move that a group had at its first commit in this run."""

    @property
    def refresh(self) -> float:
        """Seconds after a commit until the next one is due without new data."""
        return REFRESH if self.retention is None else min(REFRESH, self.retention / REFRESHES)

    def is_superseded(self, target: Target, runs: Sequence[Run]) -> bool:
        """Whether a later run of the query has committed: it continues from there, or from a reset."""
        later = runs[runs.index(self) + 1 :] if self in runs else ()
        return any(each.query.query_id == self.query.query_id and target in each.claims for each in later)

    def refuse_second(self, target: Target, offsets: Offsets, runs: Iterable[Run]) -> None:
        """Refuse partitions of a group that another query follows already."""
        for other in (each for each in runs if each.query.query_id != self.query.query_id):
            if shared := other.claims.get(target, set()) & offsets.keys():
                raise PlanRefusedError(
                    f"query {self.query.name} names group {target.group_id!r} for {summarize(shared)}, which "
                    f"query {other.query.name} follows already: give each query a separate group"
                )

    def is_at_checkpoint(self, batch: int | None, ends: Offsets) -> bool:
        """Whether the checkpoint has these ends of a batch: no move has changed them since the run began."""
        plan = None if batch is None else answer_or_none(partial(self.query.planned, batch))
        kept = {} if plan is None else furthest_behind(plan.kafka_offsets.values())
        return all(kept.get(tp) == end for tp, end in ends.items())

    def refuse_overtaken(self, target: Target, newest: int, *, elsewhere: bool) -> None:
        """
        Refuse offsets of batches before a move of the checkpoint, whether or not the query still runs.

        :param newest: number of the newest move of the checkpoint before the group's commits.
        :param elsewhere: whether this move went to other offsets than the ends of the query's newest batch,
            and the checkpoint is not known to be at these ends.
        """
        query = self.query
        self._note_passed_move()
        ended = not answer_or_none(query.is_active)
        # Later commits of other tools hide a move from the group, but not from the checkpoint.
        archived = answer_or_none(query.newest_move) if ended else None
        # If the first attempt after the end has failed, the group may have been moved since.
        unknown = elsewhere or (ended and self.attempts)
        known = self.group_moves.setdefault(target, 0 if unknown else max(newest, self.checkpoint_move or 0))
        if archived is not None and self.checkpoint_move is not None and not elsewhere:
            newest, known = archived, self.checkpoint_move
        if newest <= known and not elsewhere:
            return
        if ended:
            raise PlanRefusedError(
                f"the checkpoint of query {query.name} was moved after its last batch, so its last offsets "
                f"are not committed to group {target.group_id!r}: its next run continues from the move"
            )
        text = f"query {query.name}: {_GROUP_MOVED if self.checkpoint_move is None else _MOVED_WHILE_RUNNING}"
        if self.batch is None or self.attempts or elsewhere:
            raise PlanRefusedError(text)
        # The query writes its own position into the checkpoint with its next batch.
        self.group_moves[target], self.checkpoint_move = newest, answer_or_none(query.newest_move)
        log.warning("Kafka offsets: %s", text)

    def _note_passed_move(self) -> None:
        """Note a move of the checkpoint while the query was idle: its next batch goes past the move."""
        # A checkpoint is moved after a time without batches, so a busy query need not list the archive.
        paused = self.committed_at is not None and self.committed_at + QUIET_PERIOD <= time.monotonic()
        # After a failed attempt the batch may be older than the move.
        if paused and self.batch is not None and not self.attempts:
            newest = answer_or_none(self.query.newest_move)
            # In this order: a move that is seen before the query is active was made while it ran.
            if newest is not None and answer_or_none(self.query.is_active):
                self.checkpoint_move = newest


class Attempt(NamedTuple):
    """An attempt to commit the finished offsets of a run to one group."""

    run: Run
    target: Target
    client: CommitPort
    offsets: Offsets
    batch: int | None
    """Id of the newest batch that the run has finished."""


def answer_or_none(function: Callable[[], T]) -> T | None:
    """Return a function's result, or ``None`` if the JVM, the server or the broker does not answer."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001  # py4j, or a Spark that shuts down, may raise anything
        log.debug("No answer: %s", error)
        return None


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
        """Raise the only error, or one that names all: a PlanRefusedError if all are refusals."""
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
