"""The runs of a session's queries, as the committer follows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.listener.queries import RunningQuery, Settings, Target
from airflow_kafka_offsets.spark.listener.refusals import MOVED_WHILE_RUNNING, moved_since_error

log = logging.getLogger(__name__)

T = TypeVar("T")

REFRESH = 3_600.0
"""Maximum seconds until a query without new data commits again: Kafka forgets groups without commits."""

REFRESHES = 4
"""Number of commits within the time after which the broker would forget the group."""


@dataclass
class Run:
    """A run of a query: the commits that were made for it, and the next one."""

    query: RunningQuery
    checkpoint_move: int | None
    """Number of the checkpoint's newest move that came before or during the run; ``None`` if unknown."""
    batch: int | None = None
    """Id of the newest finished batch; ``None`` if it must be read from the query."""
    finished: bool = False
    """Whether a batch is known to have finished."""
    wanted: bool = False
    """Whether a commit is needed."""
    busy: bool = False
    """Whether a commit is in progress."""
    due: float = 0.0
    attempts: int = 0
    ended: float | None = None
    committed: float | None = None
    idle: bool = False
    retention: float | None = None
    """Seconds that brokers keep the groups' offsets: ``None`` before asking, infinite if unknown."""
    claims: dict[Target, set[TopicPartition]] = field(default_factory=dict)
    clients: set[Settings] = field(default_factory=set)
    log_ids: dict[tuple[Target, frozenset[str]], LogIds] = field(default_factory=dict)
    """Ids of each target's topics, read once: a query ends when a topic that it reads is deleted."""
    group_moves: dict[Target, int] = field(default_factory=dict)
    """Number of the checkpoint's newest move that a group had at its first commit in this run."""

    @property
    def refresh(self) -> float:
        """Seconds after a commit until the next one is due without new data."""
        return REFRESH if self.retention is None else min(REFRESH, self.retention / REFRESHES)

    def refuse_overtaken(self, target: Target, newest: int) -> None:
        """
        Refuse the last offsets of a query whose checkpoint was moved after the query's end.

        :param newest: number of the newest move of the checkpoint that has committed to the group.
        """
        query = self.query
        self._note_passed_move()
        ended = not answer_of(query.is_active)
        # If the first attempt after the end has failed, the group may have been moved since.
        known = self.group_moves.setdefault(target, 0 if ended and self.attempts else newest)
        # Later commits of other runs hide a move from the group, but not from the checkpoint.
        archived = answer_of(query.newest_move) if ended else None
        if archived is not None and self.checkpoint_move is not None:
            newest, known = archived, self.checkpoint_move
        if newest <= known:
            return
        if ended:
            raise moved_since_error(target.group_id, query.name)
        # The query writes its own position into the checkpoint with its next batch.
        self.group_moves[target], self.checkpoint_move = newest, answer_of(query.newest_move)
        log.warning("Kafka offsets: query %s: %s", query.name, MOVED_WHILE_RUNNING)

    def _note_passed_move(self) -> None:
        """Note a move of the checkpoint while the query was idle: its next batch goes past the move."""
        # A checkpoint is moved after a time without batches, so a busy query need not list the archive.
        paused = self.committed is not None and self.committed + QUIET_PERIOD <= time.monotonic()
        # After a failed attempt the batch may be older than the move.
        if paused and self.batch is not None and not self.attempts:
            newest = answer_of(self.query.newest_move)
            # In this order: a move that is seen before the query is active was made while it ran.
            if newest is not None and answer_of(self.query.is_active):
                self.checkpoint_move = newest


def answer_of(function: Callable[[], T]) -> T | None:
    """Return a function's result, or ``None`` if the JVM, the server or the broker does not answer."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001  # py4j, or a Spark that shuts down, may raise anything
        log.debug("No answer: %s", error)
        return None
