"""Reads and checks ``plan`` and ``approval`` of a reset or a failover, and plans the move again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import Context

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.approval import Approval
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.parameters import parse_switch, timestamp_ms
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan_markdown import plan_markdown
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.saved import has_moved, read_saved_plan, save_plan
from airflow_kafka_offsets.operators.moving import DECIDED
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, parse_location
from airflow_kafka_offsets.task.run_tasks import failed_indexes
from airflow_kafka_offsets.task.triggered import triggered_by_commits
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def check_plan(value: Any, parameter: str) -> Any:
    """Check a plan in the DAG file; if the value is a path, the task reads the file when it runs."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return parse_location(value, parameter, None)
    return SavedPlan.parse(value, parameter)


@dataclass(frozen=True)
class ApprovedPlan:
    """A saved plan and its approval, if the task needs one."""

    saved: SavedPlan
    approval: Approval | None = None

    @classmethod
    def of(cls, task: Any, context: Context) -> ApprovedPlan:
        """Read a task's ``plan`` and ``approval``, refuse them, or set the task's names from the plan."""
        saved = read_saved_plan(task.plan)
        take_names(task, saved.names._asdict(), context)
        if refusals := saved.name_refusals(task.group_id, task.checkpoint_location, task.topics):
            raise PlanRefusedError(refusals)
        if task.approval is None:
            return cls(saved)
        approval = Approval.parse(task.approval)
        allowed = parse_switch(task.allow_self_approval, "allow_self_approval")
        triggered_by = getattr(context.get("dag_run"), "triggering_user_name", None)
        if refusals := approval.refusals(saved.digest, triggered_by, allow_self_approval=allowed):
            raise PlanRefusedError(refusals)
        return cls(saved, approval)

    def stamp(self, metadata: CommitMetadata) -> CommitMetadata:
        """Return metadata for the commits that also has the plan and its approver."""
        if self.approval is None or self.approval.at is None:
            return replace(metadata, plan=self.saved.digest)
        at = timestamp_ms(self.approval.at) // 1000
        return replace(metadata, plan=self.saved.digest, approved_by=self.approval.user_name, approved_at=at)

    def with_approval(self, plan: PipelinePlan) -> PipelinePlan:
        """Return a plan whose receipt names the user who has approved it."""
        if self.approval is None:
            return plan
        return replace(plan, provenance={**plan.provenance, "approval": self.approval.as_json()})


def skip_after_failure(context: Context, task: Any, plan: PipelinePlan) -> None:
    """Skip a mapped index that has not started its move, if another index has failed in this run."""
    if plan.begun:
        return
    if failed := failed_indexes(context):
        raise AirflowSkipException(
            f"nothing was changed: map index {', '.join(failed)} of {task.task_id} has failed in this run, "
            "and stop_after_failure is True. Clear that index and this one to continue"
        )


def take_names(task: Any, names: Mapping[str, Any], context: Context) -> None:
    """Set the names of a task without names from its plan or receipt, which must have a group."""
    if task.group_id is None:
        given = {name: getattr(task, name) for name in PIPELINE_PARAMETERS}
        for name, value in given.items():
            # The default of kafka_config_id shows no wish.
            if value not in (None, "kafka_default") and plain_names(value) != names.get(name):
                raise UsageError(
                    f"{parameter_text(name, value)} is not that of the plan ({shorten(names.get(name))}), "
                    f"which names the pipeline without {parameter_text('group_id')}: leave it out",
                    parameter=name,
                )
        for name in PIPELINE_PARAMETERS:
            if names.get(name) is not None:
                setattr(task, name, names[name])
        if task.group_id is None:
            raise task.missing_group()
        task.name_mapped(context)


def check_plan_parameters(task: Any, *targets: str) -> None:
    """Check that a task is not given what has no effect with or without a plan, or without an approval."""
    if task.plan is None:
        task.refuse_unused("without plan", "approval", "allow_self_approval", "max_age")
    else:
        task.refuse_unused("with plan", *targets, "plan_only")
    if task.approval is None:
        task.refuse_unused("without approval", "allow_self_approval")


def check_decided(task: Any, *decided: str) -> None:
    """Check that a task with a plan is not given what the plan has decided: :data:`DECIDED` and others."""
    task.refuse_unused("with plan, which says what was allowed when it was made", *DECIDED, *decided)
    if task.group_id is None:
        task.refuse_unused("without group_id: the plan names the pipeline then", *PIPELINE_PARAMETERS)


def was_not_applied(
    task: Any, client: OffsetsClient, checkpoint: SparkCheckpoint | None, receipt: Mapping[str, Any]
) -> bool:
    """Whether the saved plan of a receipt has moved nothing; the receipt is stored before the first write."""
    plan = receipt.get("plan")
    judged = task.parse_parameter("restore_when") == "failed"
    if not isinstance(plan, str) or receipt.get("verified") or judged:
        return False
    return not has_moved(client, checkpoint, plan, read_receipt(receipt))


def with_triggered(context: Context, task: Any, saved: SavedPlan) -> SavedPlan:
    """Return a plan with the runs and events that depend on the commits it undoes."""
    found = triggered_by_commits(context, task, saved)
    if found is None:
        return saved
    saved = saved.with_notes(triggered=found)
    return saved.with_notes(markdown=plan_markdown(saved))


def save_shown_plan(
    task: Any,
    context: Context,
    client: OffsetsClient,
    plan: PipelinePlan,
    checkpoint: SparkCheckpoint | None,
    *,
    mirror: Mapping[str, Any] | None = None,
    **allowed: Any,
) -> dict[str, Any]:
    """Show a plan, with the mirror if it is a failover's, and return it for an approval and a later move."""
    plan = task.show_plan(context, client, plan)
    names: dict[str, Any] = {name: plain_names(getattr(task, name)) for name in PIPELINE_PARAMETERS}
    policy = task.checkpoint_policy()
    saved = save_plan(client, checkpoint, plan, Names(**names, mirror=mirror), policy=policy, **allowed)
    # A failover undoes no commits.
    saved = saved if mirror else with_triggered(context, task, saved)
    push_result(context, saved.value)
    task.log.info("Plan %s:\n%s", saved.digest, saved.markdown)
    return dict(saved.value)
