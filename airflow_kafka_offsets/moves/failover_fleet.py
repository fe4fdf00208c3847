"""Fails over many pipelines: several at a time, each with its own outcome."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.errors import KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.failover import failover_request, plan_failover

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

State = Literal["planned", "moved", "moved before", "refused", "failed"]


@dataclass(frozen=True)
class FleetMember:
    """A pipeline to fail over, with the topic names of the old cluster."""

    checkpoint: SparkCheckpoint
    selection: GroupSelection
    mirror: Mirror

    @property
    def name(self) -> str:
        """The names of its groups."""
        return ", ".join(self.selection.group_ids)


@dataclass(frozen=True)
class Outcome:
    """
    The outcome of a pipeline's failover.

    :param again: most records that may be read again.
    :param exact: whether every position is known, and no record is read again.
    :param error: reason for the refusal or failure; empty otherwise.
    """

    name: str
    state: State
    again: int = 0
    exact: bool = False
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**vars(self)}

    def __str__(self) -> str:
        how = "exact" if self.exact else f"safe: at most {self.again} again"
        return f"{self.name}: {self.state}" + (
            f": {self.error}" if self.error else f", {how}" if self.state in ("planned", "moved") else ""
        )


Clients = tuple["OffsetsClient | None", "OffsetsClient"]
"""Clients of the old cluster (``None`` if it does not answer) and of the mirror."""


def fail_over_fleet(
    members: Sequence[FleetMember],
    clients: Sequence[Clients],
    *,
    policy: FailoverPolicy,
    metadata: CommitMetadata,
    quiet_period: float,
    execute: bool,
) -> Iterator[Outcome]:
    """
    Fail over pipelines, or only plan it; yield each outcome when it is known.

    Each checkpoint's archive records its move. After a kill, the same call finishes the moves that have
    started, and skips the finished ones.

    :param clients: a pair of clients for each worker; each worker moves one pipeline at a time.
    """
    free: queue.SimpleQueue[Clients] = queue.SimpleQueue()
    for each in clients:
        free.put(each)

    def run(member: FleetMember) -> Outcome:
        source, target = pair = free.get()
        try:
            if _was_moved_before(member, target):
                return Outcome(member.name, "moved before")
            plan = plan_failover(
                source, target, member.checkpoint, member.selection, member.mirror, policy=policy
            )
            plan.check()
            if execute:
                apply_pipeline(target, plan, metadata, member.checkpoint, quiet_period)
        except PlanRefusedError as error:
            return Outcome(member.name, "refused", error=str(error))
        except KafkaOffsetsError as error:
            return Outcome(member.name, "failed", error=str(error))
        finally:
            free.put(pair)
        was = plan.as_json()
        return Outcome(
            member.name, "moved" if execute else "planned", was.get("again", 0), was.get("exact", False)
        )

    with ThreadPoolExecutor(len(clients), "failover") as threads:
        futures = [threads.submit(run, member) for member in members]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _was_moved_before(member: FleetMember, target: OffsetsClient) -> bool:
    """Return whether the same request has moved the checkpoint to the mirror, and is finished."""
    moved = ArchivedMoves(member.checkpoint).on_cluster
    request = failover_request(target.cluster_id(), member.selection, member.mirror)
    return moved is not None and moved.fails_over and moved.done and moved.request == request


def outcome_counts(outcomes: Sequence[Outcome]) -> str:
    """Return the number of pipelines in each state, as text."""
    states = Counter(each.state for each in outcomes)
    listed = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return (
        f"{plural(len(outcomes), 'pipeline')}: {listed}; at most "
        f"{plural(sum(each.again for each in outcomes), 'record')} again"
    )
