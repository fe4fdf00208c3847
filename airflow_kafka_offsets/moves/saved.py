"""Saves plans, and plans their moves again; refuses a plan if something has changed since."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_failover
from airflow_kafka_offsets.checkpoint.state_store import is_stateful
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.failover_plan import FailoverPlan
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Commits, Positions, committed_offsets
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.plan_markdown import plan_markdown
from airflow_kafka_offsets.model.receipt import GroupReceipt, Receipt
from airflow_kafka_offsets.model.saved_plan import FORM, MAX_AGE, Names, SavedPlan
from airflow_kafka_offsets.model.text import describe_type, shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import dag_text
from airflow_kafka_offsets.moves.failover import begun_failover, known_group_plans, resume_failover
from airflow_kafka_offsets.moves.reset import plan_reset_to
from airflow_kafka_offsets.readings.estimate import estimate
from airflow_kafka_offsets.readings.failover import left_out_refusals
from airflow_kafka_offsets.readings.log_checks import known_log_ids
from airflow_kafka_offsets.readings.mirror import running_mirror
from airflow_kafka_offsets.readings.pipeline_state import newest_move_of, pipeline_state
from airflow_kafka_offsets.readings.renamed_topics import unread_refusals
from airflow_kafka_offsets.storage import read_named_text


def save_plan(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    plan: PipelinePlan,
    names: Names,
    *,
    policy: CheckpointPolicy | None = None,
    allow_new_cluster: bool = False,
    allow_running_mirror: bool = False,
    now: datetime | None = None,
) -> SavedPlan:
    """
    Return a plan that can be applied later, with an estimate and a table for reviewers.

    :param plan: a plan without refusals, with the timestamps of its records.
    :param policy: permissions of the plan, with ``allow_new_cluster`` and ``allow_running_mirror``.
    :raises PlanRefusedError: if the move has begun: the saved plan would be another request.
    """
    if plan.begun:
        raise PlanRefusedError(
            "an earlier task or command has begun this move, and a saved plan cannot continue it: run that "
            "one again to finish it, or leave the pipeline out"
        )
    saved = SavedPlan.make(
        plan.make_receipt(plan_only=True),
        names,
        policy or CheckpointPolicy(),
        allow_new_cluster=allow_new_cluster,
        allow_running_mirror=allow_running_mirror,
        now=now,
    )
    saved = saved.with_notes(
        estimate=estimate(client, plan, checkpoint).as_json(),
        stateful=checkpoint is not None and is_stateful(checkpoint),
    )
    return saved.with_notes(markdown=plan_markdown(saved))


def read_saved_plan(value: object, what: str = "plan") -> SavedPlan:
    """Read a plan: the return value of an operator, its JSON text, or the path of a file."""
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return SavedPlan.parse(value, what)
    text = read_named_text(value.strip(), what, f"give {FORM}")
    return SavedPlan.parse(text, f"{what} {shorten(value)}", describe=describe_type)


def offsets_before(plan_digest: str, group: GroupReceipt, commits: Commits) -> Positions:
    """Return a group's offsets before a plan, in the partitions where the plan's commit is the newest one."""
    found: Positions = {}
    for tp, commit in commits.items():
        made = CommitMetadata.of(commit)
        if commit and made.plan == plan_digest and commit.offset == group.after.get(tp):
            found[tp] = group.before.get(tp)
    return found


def has_moved(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, receipt: Receipt, *, begun: bool = True
) -> bool:
    """
    Return whether a saved plan has made a move that was not undone.

    The archives and the commits show this. The receipt does not, because it is stored before the first write.

    :param receipt: receipt of the plan's application.
    :param begun: whether it is known that the plan was begun. What cannot be seen any more counts as moved
        then, or is refused: another checkpoint, or a group that was committed since.
    """
    moved = receipt.checkpoint
    if moved is not None:
        # Another checkpoint does not show it, and a restore there is refused.
        if checkpoint is None or checkpoint.query_id() != moved.query_id:
            return begun
        # The same plan may have been made and applied before, and then has the same digest.
        moves = (each for each in ArchivedMoves(checkpoint) if each.number >= (moved.number or 0))
        if any(each.made_by.plan == receipt.plan and not (each.undone or each.abandoned) for each in moves):
            return True
    elsewhere: list[str] = []
    for group in receipt.groups:
        commits = client.committed(group.group_id, group.after)
        if offsets_before(receipt.plan, group, commits):
            return True
        now = committed_offsets(commits).items()
        if (moved is None or moved.archive is None) and any(at != group.before.get(tp) for tp, at in now):
            elsewhere.append(group.group_id)
    if elsewhere and begun:
        raise PlanRefusedError(
            f"group {', '.join(map(repr, elsewhere))} was committed since plan {receipt.plan[:8]} began, "
            "so it is unknown whether the plan has moved it: reset it to the position that you want"
        )
    return False


def with_saved_parts(group: OffsetPlan, saved: SavedPlan) -> OffsetPlan:
    """Return a group's plan with the exceptions and the source of the saved plan that it applies."""
    then = saved.receipt.group(group.group_id)
    return replace(
        group,
        skipped=then.skipped,
        clamped=then.clamped,
        source={**saved.receipt.source, "plan": saved.digest},
    )


def plan_saved(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    saved: SavedPlan,
    *,
    now: datetime,
    metadata: CommitMetadata,
    max_age: timedelta | None = MAX_AGE,
) -> PipelinePlan:
    """
    Plan to apply a saved plan, with exactly its offsets.

    If an earlier try of the plan was interrupted, any later try of it finishes the move.

    :param max_age: largest age of the plan; a plan whose move has started is finished at any age.
    :raises PlanRefusedError: if the plan is too old, or something has changed, see :meth:`SavedPlan.check`.
    """
    if saved.left_logs is not None:
        raise PlanRefusedError(
            f"plan {saved.digest[:8]} is of a failover, and not of a reset: "
            f"{dag_text('give it to FailOverOperator', 'apply it with failover apply --plan')}"
        )
    _refuse_committed_since(client, checkpoint, saved, metadata)
    metadata = replace(metadata, plan=saved.digest)
    selection = GroupSelection.parse(
        saved.names.group_id, saved.names.topics, required=checkpoint is not None
    )
    plan = plan_reset_to(
        client,
        checkpoint,
        selection,
        saved.targets,
        metadata=metadata,
        policy=saved.policy,
        allow_new_cluster=saved.allow_new_cluster,
    )
    groups, begun = [], plan.checkpoint_plan is not None and plan.checkpoint_plan.resumes
    for group in plan.group_plans:
        mine = offsets_before(saved.digest, saved.receipt.group(group.group_id), group.commits)
        begun = begun or bool(mine)
        group = group if plan.archive else group.with_before(mine)
        groups.append(with_saved_parts(group, saved))
    plan = replace(
        plan, group_plans=groups, provenance={"plan": saved.digest, "names": saved.names.as_json()}
    )
    saved.check(plan, now, max_age, begun=begun)
    return plan


def plan_saved_failover(
    target: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    saved: SavedPlan,
    *,
    now: datetime,
    metadata: CommitMetadata = NO_METADATA,
    max_age: timedelta | None = MAX_AGE,
) -> FailoverPlan:
    """
    Plan to apply the saved plan of a failover, with exactly its offsets.

    The old cluster is not asked: the plan has the translated offsets. Any later try of the plan finishes a
    failover that was interrupted.

    :param metadata: of the task that applies the plan.
    :param max_age: as in :func:`plan_saved`, also the error.
    """
    if saved.left_logs is None or saved.checkpoint is None or checkpoint is None:
        raise PlanRefusedError(
            f"plan {saved.digest[:8]} is of a reset, and not of a failover: "
            f"{dag_text('give it to ResetOffsetsOperator', 'apply it with group reset --plan')}"
        )
    _refuse_committed_since(target, checkpoint, saved, metadata)
    request = digest("failover", "plan", saved.digest)
    begun = begun_failover(checkpoint, request)
    if begun is None:
        plan = _plan_failover_again(target, checkpoint, saved, saved.checkpoint, saved.left_logs, request)
    else:
        plan = resume_failover(begun, target, checkpoint, saved.policy)
    groups = [with_saved_parts(group, saved) for group in plan.group_plans]
    named = saved.target_names.as_json()  # for a restore
    plan = replace(plan, group_plans=groups, provenance={"plan": saved.digest, "names": named})
    saved.check(plan, now, max_age, begun=begun is not None)
    return plan


def _refuse_committed_since(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    saved: SavedPlan,
    metadata: CommitMetadata,
) -> None:
    """Refuse a plan that was applied, and after which others have committed: only a retry overwrites that."""
    made = newest_move_of(saved, checkpoint)
    retried = made is not None and metadata.is_same_instance(made.made_by)
    if made is None or not made.done or made.undone or retried:
        return
    state, _ = pipeline_state(client, checkpoint, saved)
    if state != "moved":
        raise PlanRefusedError(
            f"plan {saved.digest[:8]} is no longer valid: it was applied (move {made}), and the pipeline was "
            f"committed or moved since (found {state!r}, expected 'moved'): plan again"
        )


def _plan_failover_again(
    target: OffsetsClient,
    checkpoint: SparkCheckpoint,
    saved: SavedPlan,
    move: CheckpointPlan,
    left_logs: LogIds,
    request: str,
) -> FailoverPlan:
    ids = known_log_ids(target, set(saved.log_ids.topics))
    refusals = []
    running = running_mirror(target, tuple(saved.targets), left_logs.cluster, ids.cluster)
    if running and not saved.allow_running_mirror:
        refusals.append(running)
    if left_logs.cluster and left_logs.cluster == ids.cluster:
        refusals += _unread_topic_refusals(target, saved, move)
    else:
        refusals += left_out_refusals(target, move.before, TopicScope.parse(saved.names.topics))
    moved = plan_checkpoint_failover(
        checkpoint,
        move.after,
        # The plan was made with what is read again, and with the permission for it.
        replace(saved.policy, allow_stateful=True),
        request=request,
        log_ids=ids,
        left_logs=left_logs,
        refusals=refusals,
    )
    groups = known_group_plans(target, saved.targets, left_logs, remedy="plan again")
    plan = FailoverPlan.combine(groups, moved)
    return replace(plan, was=saved.value["failover"])


def _unread_topic_refusals(target: OffsetsClient, saved: SavedPlan, move: CheckpointPlan) -> list[str]:
    """Return why a move to other topics of the cluster would lose records written since the plan."""
    mirror = Mirror(topics=(saved.names.mirror or {}).get("topics", {}))
    for source, offsets in move.before.items():
        for tp in offsets:
            if not {tp, mirror.partition(tp)} & move.after[source].keys():
                return [f"plan {saved.digest[:8]} does not name the new topic of {tp}: plan the move again"]
    return unread_refusals(target, mirror, move.before, move.after)
