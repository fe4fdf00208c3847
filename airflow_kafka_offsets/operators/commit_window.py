"""Commits the end of an offset window after the job has read the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import Context, TriggerRule, XComArg

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy, choice_parser, parse_switch, parse_text
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.window_commit import apply_window, plan_window_commits, window_targets
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.moving import MoveContext, MovingOperator
from airflow_kafka_offsets.task.identity import commit_metadata
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.windows import CommitMemory, load_window, split_window


class CommitOffsetWindowOperator(MovingOperator):
    """
    Commit the end of an offset window to the groups that are at its start.

    If the group is at the window's start in a partition, the window's end is committed there. If it is
    already at the end, the partition needs no commit. A window with ``start="committed"`` is refused if
    another run has committed this end, because that run has read the same records. If the group is at any
    other offset in any partition, nothing is committed at all. If a partition had no commit when the window
    was planned, it must still have none. All groups are compared before the first commit, and each group
    again when it is committed.

    The task refuses the window unless it, and every task between the plan and it, has the trigger rule
    ``all_success``: with another rule a task also runs if the job has failed or was skipped. It also refuses
    the window if no task is between, and another task after the plan runs beside it.

    On Airflow 3.3 and later, a task that is cleared after it has committed its window succeeds without a
    commit if the group is at the window's end, or beyond, in every partition.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.make_receipt`): plain JSON with the
    offsets before and after.

    :param window: the result of ``PlanOffsetWindowOperator``, its JSON, or the URI of its file. (templated)
    :param window_conn_id: Airflow connection of the window file's storage. (templated)
    :param fenced: whether to join the group while it is compared and committed, so that no other client can
        commit in between. Joining takes as long as the broker delays the first member of a group
        (``group.initial.rebalance.delay.ms``, 3 seconds by default). (templated)
    :param allow_new_cluster: whether to commit although the group's last commit was made on another cluster,
        or before a topic was created again. Set this only if the window is right there. (templated)
    :param on_out_of_range: action if the window's end is now outside the log: ``fail`` (default), ``clamp``
        to the nearer end of the log, or ``skip`` the partition. (templated)
    """

    parsers: ClassVar[Mapping[str, Parser]] = {
        "window": lambda value, _: split_window(value),
        "window_conn_id": parse_text,
        "fenced": parse_switch,
        "allow_new_cluster": parse_switch,
        "on_out_of_range": choice_parser(OutOfRangePolicy),
    }
    template_fields: Sequence[str] = (*MovingOperator.template_fields, *parsers)

    def __init__(
        self,
        *,
        window: Mapping[str, Any] | str | XComArg | None = None,
        window_conn_id: str | None = None,
        fenced: bool | str = True,
        allow_new_cluster: bool | str = False,
        on_out_of_range: OutOfRangePolicy | str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.window: Any = window
        self.window_conn_id = window_conn_id
        self.fenced = fenced
        self.allow_new_cluster = allow_new_cluster
        self.on_out_of_range = on_out_of_range
        if window is None:
            raise self.parameter_error("window is missing: give the output of PlanOffsetWindowOperator")
        self.check_parameters()
        if not is_template(window) and not split_window(window)[1]:
            self.refuse_unused_unless_default("with a window that is not in a file", "window_conn_id")

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit the window's end, and return the receipt."""
        with self.run_checked():
            window = load_window(self.window, self.window_conn_id)
            if window and self.upstream_task_ids:
                self._check_jobs(window)
            self.committed_window = window
            targets = window_targets(window, self.selection())
            groups = {group: offsets_json(offsets) for group, offsets in targets.items()}
            # For other groups, or on another cluster, the same window is a different commit.
            memory = CommitMemory(context, window, groups=groups, kafka_config_id=self.kafka_config_id)
            metadata = commit_metadata(context)
            with self.open_client() as client:
                group_plans = plan_window_commits(
                    client,
                    window,
                    targets,
                    source={"window": dict(window.source)},
                    committed_at=memory.committed_at,
                    **self.parse_parameters("on_out_of_range", "allow_new_cluster"),
                    run=metadata,
                )
                move = MoveContext(context, client, None, metadata)
                how = {"window": window, **self.parse_parameters("fenced")}
                receipt = self.apply_plan(move, PipelinePlan(group_plans), apply_window, **how)
                # A group whose partitions were all skipped is not at the window's end.
                if all(group_plan.after for group_plan in group_plans):
                    memory.keep()
                return receipt

    def _check_jobs(self, window: OffsetWindow) -> None:
        """Refuse a window if this task may run although a job has not read the window."""
        before: dict[str, Any] = {task.task_id: task for task in self.get_flat_relatives(upstream=True)}
        in_dag = self.dag.task_dict if window.source.get("dag_id") == self.dag_id else {}
        if (plan := in_dag.get(str(window.source.get("task_id")))) is not None:
            after_plan = plan.get_flat_relative_ids()
            between = {name: task for name, task in before.items() if name in after_plan}
            beside = plan.downstream_task_ids - {self.task_id} - self.get_flat_relative_ids() - set(before)
            if beside and all(task.is_setup for task in between.values()):
                raise PlanRefusedError(
                    f"no job of the window is before this task, and {min(beside)!r} runs beside it. If the "
                    "window's job fails, the commit has skipped its records: order the job before "
                    f"{self.task_id!r}, and a task that does not read the window after it"
                )
            before = between if plan.task_id in before else before
        tasks: dict[str, Any] = {self.task_id: self, **before}
        for name, task in sorted(tasks.items()):
            if (rule := TriggerRule(task.trigger_rule)) != TriggerRule.ALL_SUCCESS:
                raise PlanRefusedError(
                    f"{name!r} has trigger_rule={rule.value!r}, so {self.task_id!r} may run although no job "
                    "has read the window, and the commit would skip its records; "
                    f"expected 'all_success' for {self.task_id!r} and every task between the plan and it: "
                    "order a task that always runs, such as a clean-up, beside or after "
                    f"{self.task_id!r}, and a task that may be skipped before the plan, which may have any "
                    "rule; give each of several jobs after a branch its own commit"
                )
