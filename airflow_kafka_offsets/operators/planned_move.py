"""Base of the moves that can be planned, approved and then applied: the reset and the failover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow.sdk import Context

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.approval import Approval
from airflow_kafka_offsets.model.checkpoint_policy import POLICY
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.parameters import parse_duration, parse_switch, timestamp_ms
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan_markdown import plan_markdown
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.moves.saved import read_saved_plan, save_plan
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.moving import MoveContext, PipelineMovingOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, parse_location
from airflow_kafka_offsets.task.outcome import push_result
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.triggered import triggered_by_commits


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

    def stamp(self, plan: PipelinePlan, metadata: CommitMetadata) -> tuple[PipelinePlan, CommitMetadata]:
        """Return the plan of the move and its commits' metadata with the saved plan and who approved it."""
        metadata = replace(metadata, plan=self.saved.digest)
        if self.approval is not None:
            plan = replace(plan, provenance={**plan.provenance, "approval": self.approval.as_json()})
            if self.approval.at is not None:
                at = timestamp_ms(self.approval.at) // 1000
                metadata = replace(metadata, approved_by=self.approval.user_name, approved_at=at)
        return plan, metadata


class PlannedMoveOperator(PipelineMovingOperator):
    """Base of the reset and the failover: the parameters of plans and approvals."""

    needs_group: ClassVar[bool] = False
    """A plan names the group itself; without one the constructor asks for it."""
    names_of_plan: ClassVar[Sequence[str]] = PIPELINE_PARAMETERS
    """The names that a plan has for a task without a group."""
    targets: ClassVar[Sequence[str]] = ()
    """The parameters that a plan replaces."""
    permissions: ClassVar[Sequence[str]]
    """The parameters that a plan has decided, besides :data:`POLICY`."""
    for_moves: ClassVar[Sequence[str]] = ("quiet_period",)
    """The parameters that are not used to plan."""
    parsers: ClassVar[Mapping[str, Parser]] = {
        **PipelineMovingOperator.parsers,
        "plan_only": parse_switch,
        "plan": check_plan,
        "max_age": parse_duration,
        "approval": Approval.parse,
        "allow_self_approval": parse_switch,
    }
    plan: Any
    plan_only: bool | str
    approval: Any

    def with_connections(self, plan: PipelinePlan) -> PipelinePlan:
        """Return a plan whose receipt also names the pipeline, for a restore that has no names."""
        plan = super().with_connections(plan)
        names = {name: plain_names(getattr(self, name)) for name in PIPELINE_PARAMETERS}
        names["kafka_config_id"] = self.groups_config_id
        return replace(plan, provenance={"names": names, **plan.provenance})

    def check_checkpoint_parameters(self) -> None:
        """Refuse parameters that a saved plan has decided."""
        if self.plan is None:
            super().check_checkpoint_parameters()
            return
        decided = (*POLICY, *self.permissions)
        self.refuse_unused_unless_default("with plan, which says what was allowed when it was made", *decided)
        if self.group_id is None:
            self.refuse_unused("without group_id: the plan names the pipeline then", *self.names_of_plan)

    def check_parameters(self) -> None:
        """Check also that no parameter is ignored with or without a plan, or without an approval."""
        super().check_parameters()
        if self.plan is None:
            self.refuse_unused("without plan", "approval", "allow_self_approval", "max_age")
            if not is_template(self.plan_only) and self.parse_parameter("plan_only"):
                self.refuse_unused_unless_default("with plan_only, which moves nothing", *self.for_moves)
        else:
            self.refuse_unused("with plan", *self.targets, "plan_only")
        if self.approval is None:
            self.refuse_unused("without approval", "allow_self_approval")

    def approved_plan(self, context: Context) -> ApprovedPlan | None:
        """Read ``plan`` and ``approval``, refuse them, or set the task's names; ``None`` without a plan."""
        if self.plan is None:
            return None
        saved = read_saved_plan(self.plan)
        self.take_names(saved.names._asdict(), context)
        PlanRefusedError.raise_if(saved.name_refusals(self.group_id, self.checkpoint_location, self.topics))
        if self.approval is None:
            return ApprovedPlan(saved)
        approval = Approval.parse(self.approval)
        allowed, run = self.parse_parameter("allow_self_approval"), context.get("dag_run")
        if not allowed and not hasattr(run, "triggering_user_name"):
            raise PlanRefusedError(
                "allow_self_approval=False cannot be checked: Airflow before 3.1.2 does not tell a task who "
                "triggered its run; upgrade Airflow, or leave allow_self_approval out"
            )
        triggered_by = getattr(run, "triggering_user_name", None)
        PlanRefusedError.raise_if(approval.refusals(saved.digest, triggered_by, allow_self_approval=allowed))
        return ApprovedPlan(saved, approval)

    def save_shown_plan(
        self, move: MoveContext, plan: PipelinePlan, mirror: Mapping[str, Any] | None = None, **allowed: Any
    ) -> dict[str, Any]:
        """Show a plan, with the mirror of a failover, and return it; refuse it as its move would be."""
        plan, _ = self._show_plan(move, plan, plan_only=True)
        plan.check()
        names = Names.of({name: getattr(self, name) for name in PIPELINE_PARAMETERS} | {"mirror": mirror})
        saved = save_plan(
            move.client, move.checkpoint, plan, names, policy=self.checkpoint_policy(), **allowed
        )
        # A failover undoes no commits.
        saved = saved if mirror else self.with_triggered(move.context, saved)
        push_result(move.context, saved.value)
        self.log.info("Plan %s:\n%s", saved.digest, saved.markdown)
        return dict(saved.value)

    def with_triggered(self, context: Context, saved: SavedPlan) -> SavedPlan:
        """Return a plan with the runs and events that depend on the commits it undoes."""
        found = triggered_by_commits(context, self, saved)
        if found is None:
            return saved
        saved = saved.with_notes(triggered=found)
        return saved.with_notes(markdown=plan_markdown(saved))
