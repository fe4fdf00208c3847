"""Plans to apply a saved failover plan; refuses it if something has changed since."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_failover
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.failover_plan import FailoverPlan
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.saved_plan import MAX_AGE, SavedPlan
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import dag_text
from airflow_kafka_offsets.moves.failover import begun_failover, known_group_plans, resume_failover
from airflow_kafka_offsets.moves.saved import with_saved_parts
from airflow_kafka_offsets.readings.failover import left_out_refusals
from airflow_kafka_offsets.readings.log_checks import known_log_ids
from airflow_kafka_offsets.readings.mirror import running_mirror
from airflow_kafka_offsets.readings.renamed_topics import unread_refusals


def plan_saved_failover(
    target: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    saved: SavedPlan,
    *,
    now: datetime,
    max_age: timedelta | None = MAX_AGE,
) -> FailoverPlan:
    """
    Plan to apply the saved plan of a failover, with exactly its offsets.

    The old cluster is not asked: the plan has the translated offsets. Any later try of the plan finishes a
    failover that was interrupted.

    :param max_age: largest age of the plan; a plan whose move has started is finished at any age.
    :raises PlanRefusedError: if the checkpoint, a group, the mirror or one of its topics have changed, or the
        plan is too old.
    """
    if saved.left is None or saved.checkpoint is None or checkpoint is None:
        raise PlanRefusedError(
            f"plan {saved.digest[:8]} is of a reset, and not of a failover: "
            f"{dag_text('give it to ResetOffsetsOperator', 'apply it with group reset --plan')}"
        )
    request = digest("failover", "plan", saved.digest)
    begun = begun_failover(checkpoint, request)
    if begun is None:
        plan = _plan(target, checkpoint, saved, saved.checkpoint, saved.left, request)
    else:
        plan = resume_failover(begun, target, checkpoint, saved.policy)
    groups = [
        with_saved_parts(group, saved, target.committed(group.group_id, group.after))
        for group in plan.group_plans
    ]
    named = saved.target_names.as_json()  # for a restore
    plan = replace(plan, group_plans=groups, provenance={"plan": saved.digest, "names": named})
    saved.check(plan, now, max_age, begun=begun is not None)
    return plan


def _plan(
    target: OffsetsClient,
    checkpoint: SparkCheckpoint,
    saved: SavedPlan,
    move: CheckpointPlan,
    left: LogIds,
    request: str,
) -> FailoverPlan:
    ids = known_log_ids(target, set(saved.log_ids.topics))
    refusals = []
    running = running_mirror(target, tuple(saved.targets), left.cluster, ids.cluster)
    if running and not saved.allow_running_mirror:
        refusals.append(running)
    if left.cluster and left.cluster == ids.cluster:
        refusals += _unread(target, saved, move)
    else:
        refusals += left_out_refusals(target, move.before, TopicScope.parse(saved.names.topics))
    moved = plan_checkpoint_failover(
        checkpoint,
        move.after,
        # The plan was made with what is read again, and with the permission for it.
        replace(saved.policy, allow_stateful=True),
        request=request,
        log_ids=ids,
        left=left,
        refusals=refusals,
    )
    plan = FailoverPlan.combine(known_group_plans(target, saved.targets, left), moved)
    return replace(plan, was=saved.value["failover"])


def _unread(target: OffsetsClient, saved: SavedPlan, move: CheckpointPlan) -> list[str]:
    """Return why a move to other topics of the cluster would lose records written since the plan."""
    mirror = Mirror(topics=(saved.names.mirror or {}).get("topics", {}))
    for source, offsets in move.before.items():
        for tp in offsets:
            if not {tp, mirror.partition(tp)} & move.after[source].keys():
                return [f"plan {saved.digest[:8]} does not name the new topic of {tp}: plan the move again"]
    return unread_refusals(target, mirror, move.before, move.after)
