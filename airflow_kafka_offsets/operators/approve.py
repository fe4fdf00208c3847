"""Asks a user to approve the plan of a move, and accepts the approval for this plan only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.approval import APPROVE, SHOWN_DIGITS, approve_option, digest_of_all
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.plan_markdown import plans_markdown
from airflow_kafka_offsets.model.saved_plan import FORM, SavedPlan
from airflow_kafka_offsets.model.text import join_first, shorten
from airflow_kafka_offsets.task.outcome import fail_without_retry
from airflow_kafka_offsets.task.parameter_checks import is_template


class ApprovePlanOperator(ApprovalOperator):
    """
    Show one or several plans of resets or failovers, and wait until a user approves or rejects them.

    This is Airflow's ``ApprovalOperator`` with the plan's table as its text. The option that approves is
    ``Approve`` with the first digits of the plan's digest, so that the response names its plan. When tasks
    are cleared, Airflow may show the text and the options of an earlier plan (apache/airflow#73235): this
    task fails if a user approves that plan, and a reset or failover refuses the approval.

    A rejection skips the tasks after this one, as with Airflow's operator. A request that times out fails, or
    takes ``defaults="Reject"``. ``defaults="Approve"`` is refused: a timeout must not approve a plan.

    Returns the response (``chosen_options``, ``responded_by_user``, ``responded_at``, ``params_input``) with
    ``digests``, for ``ResetOffsetsOperator(approval=...)`` or ``FailOverOperator(approval=...)``.

    :param plan: the plan, or a list of plans, as ``ResetOffsetsOperator(plan_only=True)``,
        ``FailOverOperator(plan_only=True)`` and
        :class:`~airflow_kafka_offsets.operators.plan_resets.PlanResetsOperator` return them. (templated)
    :param subject: the headline; default: the groups and the digest. (templated)
    :param body: the text in Markdown; default: the table of the plan. (templated)
    :param kwargs: parameters of ``ApprovalOperator``, such as ``assigned_users``, ``notifiers`` and
        ``response_timeout``.
    """

    template_fields: Collection[str] = (*ApprovalOperator.template_fields, "plan")

    def __init__(
        self,
        *,
        plan: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | XComArg,
        subject: str = "",
        body: str | None = None,
        **kwargs: Any,
    ) -> None:
        defaults = kwargs.get("defaults")
        if APPROVE in ([defaults] if isinstance(defaults, str) else defaults or []):
            raise UsageError(
                f"task {kwargs.get('task_id')}: defaults={shorten(defaults)} would approve the plan "
                "after a timeout: expected 'Reject', or no defaults"
            )
        super().__init__(subject=subject, body=body, **kwargs)
        self.plan: Any = plan
        if not is_template(plan):
            read_plans(plan)

    def execute(self, context: Context) -> Any:
        """Write the request, and wait for the response."""
        with fail_without_retry():
            plans, shown = self._offer()
            groups = [group.group_id for saved in plans for group in saved.groups]
            self.subject = self.subject or f"Move {join_first(groups, 3)}? Plan {shown[:SHOWN_DIGITS]}"
            self.body = self.body or plans_markdown(plans)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the response if it is for the present plan."""
        with fail_without_retry():
            plans, _ = self._offer()
            chosen = (event.get("chosen_options") or [""])[0]
            if "error" not in event and chosen not in self.options:
                raise UsageError(
                    f"the response {shorten(repr(chosen))} is for another plan; expected {self.APPROVE!r}, "
                    "the present plan: Airflow shows the text of the first request again when a task is "
                    "cleared; trigger a new run"
                )
        response = super().execute_complete(context, event)
        return {**response, "digests": [saved.digest for saved in plans]}

    def _offer(self) -> tuple[list[SavedPlan], str]:
        """Offer the present plans for approval; return them and their common digest."""
        plans = read_plans(self.plan)
        shown = digest_of_all([saved.digest for saved in plans])
        # Airflow's operator compares the response with this attribute.
        self.APPROVE = approve_option(shown)
        self.options = [self.APPROVE, self.REJECT]
        return plans, shown


def read_plans(value: object) -> list[SavedPlan]:
    """Read a plan, or a list of different plans that are approved together."""
    if isinstance(value, str):
        value = load_json(value, "plan", FORM)
    entries = value if isinstance(value, Sequence) else [value]
    # The XComs of a mapped task are a sequence, but not a list.
    plans = [SavedPlan.parse(entry) for entry in entries]
    if not plans:
        raise UsageError("plan is empty: expected a plan, or a list of plans")
    digests = [saved.digest for saved in plans]
    if twice := sorted({digest for digest in digests if digests.count(digest) > 1}):
        raise UsageError(f"plan has {twice[0][:SHOWN_DIGITS]} twice: expected each plan once")
    return plans
