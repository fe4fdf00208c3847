"""The runs of a session's queries, as the committer follows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.listener.queries import RunningQuery, Settings, Target

REFRESH = 3_600.0
"""Maximum seconds until a query without new data commits again: Kafka forgets groups without commits."""

REFRESHES = 4
"""Number of commits within the time after which the broker would forget the group."""


@dataclass
class Run:
    """What was committed for a run of a query, and what is due."""

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
