"""
Plans the failover of a checkpoint: the newest batch gets the offsets and topics of the mirror.

Spark does not compare topic names: it continues with the offsets of the newest file in ``offsets/``, and with
its state (measured with Spark 4.0 and 4.2). Earlier batches keep the offsets of the old cluster, so no move
can go back past a failover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_kafka_offsets.checkpoint.archive import failover_after
from airflow_kafka_offsets.checkpoint.archive_names import next_archive_name
from airflow_kafka_offsets.checkpoint.guards import (
    link_refusals,
    pending_refusals,
    read_checkpoint_batches,
    restart_refusals,
)
from airflow_kafka_offsets.checkpoint.open_moves import resume_plan, unfinished_move_of_request
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import is_stateful
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, Step
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.wording import parameter_text


def plan_checkpoint_failover(
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy,
    *,
    request: str,
    log_ids: LogIds,
    left: LogIds = UNKNOWN_LOGS,
    again: str = "",
    refusals: Sequence[str] = (),
) -> CheckpointPlan:
    """
    Plan to continue the query on another cluster.

    The plan writes the file of the newest batch even if its content stays the same, because the archive of
    the move records the new cluster.

    :param targets: source -> all of its offsets on the new cluster, with the topic names of that cluster.
    :param request: identifies the request of the failover.
    :param log_ids: ids of the new cluster and its topics.
    :param left: ids of the old cluster and its topics.
    :param again: sentence about the records that may be read again; empty if no record may be.
    :param refusals: reasons for a refusal that are already known.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another request has started a move and not finished it.
    """
    batches = read_checkpoint_batches(checkpoint)
    earlier = unfinished_move_of_request(checkpoint, batches, request)
    before = batches.state.kafka_offsets
    found = [*refusals, *restart_refusals(batches), *pending_refusals(checkpoint, batches, policy)]
    if again and not policy.allow_stateful and is_stateful(checkpoint):
        found.append(
            f"{checkpoint.location}: the query keeps state (state/), and would count records twice: {again}; "
            "let commits with a mirror keep the data for an exact translation, or set "
            f"{parameter_text('allow_stateful', True)} if that is right for this query"
        )
    steps = [Step(f"offsets/{number}", None) for number in reversed(batches.pending)]
    after = {source: targets.get(source, offsets) for source, offsets in before.items()}
    if not found:
        steps.append(Step(f"offsets/{batches.batch_id}", batches.entry.with_sources(after).encode()))
    plan = CheckpointPlan(
        kind="failover",
        location=checkpoint.location,
        query_id=batches.state.query_id,
        batch_id=batches.batch_id,
        before=before,
        after=after,
        steps=tuple(steps),
        file_contents={step.path: checkpoint.read_file(step.path) for step in steps},
        discarded=batches.pending,
        batches=(frozenset(batches.planned), frozenset(batches.committed)),
        refusals=(*found, *link_refusals(checkpoint, [step.path for step in steps])),
        archive=next_archive_name(checkpoint, "failover") if steps else None,
        request=request,
        log_ids=log_ids,
        left=left,
    )
    return resume_plan(checkpoint, plan, earlier)


def failover_refusals(checkpoint: SparkCheckpoint, batch_id: int) -> list[str]:
    """Return why a query cannot go back to a batch: the offsets of the batch are of another cluster."""
    failover = failover_after(checkpoint, batch_id)
    if failover is None:
        return []
    return [
        f"{checkpoint.location}: failover {failover} has moved the query to another cluster or topic after "
        f"batch {failover.batch_id - 1}, where the offsets of batch {batch_id} are other records: give batch "
        f"{failover.batch_id} or a later one, or a time"
    ]
