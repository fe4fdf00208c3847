"""
Plans the failover of a checkpoint: other offsets, and other topics, in the newest batch.

Spark compares no names: it goes on from what the newest file in ``offsets/`` says, with its state (measured
with Spark 4.0 and 4.2). The batches before keep the offsets of the old cluster, so nothing goes back past a
failover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_kafka_offsets.checkpoint.archive import failover_after
from airflow_kafka_offsets.checkpoint.archive_names import next_name
from airflow_kafka_offsets.checkpoint.guards import (
    link_refusals,
    not_restartable,
    pending_refusals,
    take_survey,
)
from airflow_kafka_offsets.checkpoint.open_moves import resume, same_request
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import is_stateful
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, CheckpointPolicy, Step
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import Offsets


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
    Plan to let the query go on on another cluster.

    The file of the newest batch is written also if nothing changes in it: the archive says where it counts.

    :param targets: source -> all of its offsets there, under the names of the topics there.
    :param request: identifies what was asked for.
    :param log_ids: the cluster and the topics that the targets count in.
    :param left: those that the offsets have counted in.
    :param again: which records may be read again; empty if none are.
    :param refusals: reasons against it that are known already.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    survey = take_survey(checkpoint)
    earlier = same_request(checkpoint, survey, request)
    before = survey.state.kafka_offsets
    found = [*refusals, *not_restartable(survey), *pending_refusals(checkpoint, survey, policy)]
    if again and not policy.allow_stateful and is_stateful(checkpoint):
        found.append(
            f"{checkpoint.location}: the query keeps state (state/), and would count records twice: "
            f"{again}; let the mirror and the readiness check become exact, or set allow_stateful=True if "
            "that is right for this query"
        )
    steps = [Step(f"offsets/{number}", None) for number in reversed(survey.pending)]
    after = {source: targets.get(source, offsets) for source, offsets in before.items()}
    if not found:
        steps.append(Step(f"offsets/{survey.batch_id}", survey.entry.with_sources(after).encode()))
    plan = CheckpointPlan(
        kind="failover",
        location=checkpoint.location,
        query_id=survey.state.query_id,
        batch_id=survey.batch_id,
        before=before,
        after=after,
        steps=tuple(steps),
        found={step.path: checkpoint.read_file(step.path) for step in steps},
        discarded=survey.pending,
        batches=(frozenset(survey.planned), frozenset(survey.committed)),
        refusals=(*found, *link_refusals(checkpoint, [step.path for step in steps])),
        archive=next_name(checkpoint, "failover") if steps else None,
        request=request,
        log_ids=log_ids,
        left=left,
    )
    return resume(checkpoint, plan, earlier)


def failover_refusals(checkpoint: SparkCheckpoint, batch_id: int) -> list[str]:
    """Return why a query cannot go back to a batch: its offsets count on another cluster."""
    failover = failover_after(checkpoint, batch_id)
    if failover is None:
        return []
    return [
        f"{checkpoint.location}: failover {failover} has moved the query to another cluster after batch "
        f"{failover.batch_id - 1}, and the offsets of batch {batch_id} are other records there: give batch "
        f"{failover.batch_id} or a later one, or a time"
    ]
