"""Plans again what a saved plan says, and refuses it where the world is not as it was then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.offsets import committed_texts
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.saved_plan import MAX_AGE, SavedPlan
from airflow_kafka_offsets.moves.reset import plan_reset

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_saved(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    saved: SavedPlan,
    *,
    now: datetime,
    by: CommitMetadata,
    max_age: timedelta | None = MAX_AGE,
) -> PipelinePlan:
    """
    Plan to carry out a saved plan: to the offsets that it holds, and to nothing else.

    What an earlier, interrupted try of the same plan has moved is where the plan put it, and is finished by
    whoever carries the plan out again.

    :param checkpoint: that of the plan.
    :param by: who carries it out.
    :param max_age: how old it may be; a plan that was begun is finished at any age.
    :raises PlanRefusedError: if the groups, the checkpoint, the cluster or a topic are not what they were, or
        the plan is too old.
    """
    by = replace(by, plan=saved.digest)
    selection = Groups.parse(saved.names.group_id, saved.names.topics, required=checkpoint is not None)
    plan = plan_reset(
        client,
        checkpoint,
        selection,
        Place("offsets", {}),
        now=now,
        policy=saved.policy,
        by=by,
        allow_new_cluster=saved.allow_new_cluster,
        saved=saved.targets,
    )
    kept = {group.group_id: group for group in saved.groups}
    groups, begun = [], plan.checkpoint is not None and plan.checkpoint.resumes
    for group in plan.groups:
        commits = client.committed(group.group_id, group.after)
        mine = saved.moved_by_it(kept[group.group_id], commits) if group.group_id in kept else {}
        begun = begun or bool(mine)
        # With a checkpoint its archive knows where the groups were.
        group = group if plan.checkpoint is not None else group.with_before(mine)
        source = {name: value for name, value in group.source.items() if name != "to_offset"}
        groups.append(
            replace(
                group,
                **saved.left_out(group.group_id),
                metadata=committed_texts(commits),
                source={**saved.source, **source, "plan": saved.digest},
            )
        )
    plan = replace(plan, groups=groups, provenance={**plan.provenance, "plan": saved.digest})
    saved.check(plan)
    if not begun and (refusals := saved.age_refusals(now, max_age)):
        raise PlanRefusedError(refusals)
    return plan
