"""Commits the end of an offset window, after the job has read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy, choice_parser, parse_switch, parse_text
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.moves.window_commit import apply_window, plan_window_commits, window_targets
from airflow_kafka_offsets.operators.moving import MovingOperator, commit_metadata
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.window_file import load_window, split_window
from airflow_kafka_offsets.task.window_memory import CommitMemory

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_offsets.operators.base import Parser


class CommitOffsetWindowOperator(MovingOperator):
    """
    Commit the end of an offset window to the groups that stand at its start.

    In each partition: where the group is at the window's start, its end is written; where it is at the end
    already, there is nothing to do. If it is anywhere else in one of them, nothing is written at all. A
    window that was planned without a commit in a partition needs that there is none still. All groups are
    compared before the first write, and each again as it is written.

    On Airflow 3.3 and later a task that is cleared after it has committed its window is done where the group
    has come to the window's end, or further, in every partition.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.make_receipt`): plain JSON with the
    offsets before and after.

    :param window: what ``PlanOffsetWindowOperator`` returned, its JSON, or the URI of its file. (templated)
    :param window_conn_id: Airflow connection of the window file's storage. (templated)
    :param fenced: join the group while it is compared and written, so that nobody else can commit in between.
        It takes as long as the broker lets the first member of a group wait
        (``group.initial.rebalance.delay.ms``, 3 seconds by default). Without it another commit may come
        between. (templated)
    :param allow_new_cluster: whether the window is known to be right on a cluster, or in a topic that was
        created again, that is not the one of the group's last commit. (templated)
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an end that is outside the log by now. (templated)
    """

    template_fields: Sequence[str] = (
        *MovingOperator.template_fields,
        "window",
        "window_conn_id",
        "fenced",
        "allow_new_cluster",
        "on_out_of_range",
    )
    parsers: ClassVar[Mapping[str, Parser]] = {
        "window": lambda value, _: split_window(value),
        "window_conn_id": parse_text,
        "fenced": parse_switch,
        "allow_new_cluster": parse_switch,
        "on_out_of_range": choice_parser(OutOfRangePolicy),
    }

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
            self.refuse_unused_unless_default(
                "window_conn_id", kwargs.get("default_args"), "with a window that is in no file"
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit the window's end, and return the receipt."""
        with self.run_checked():
            window = load_window(self.window, self.window_conn_id)
            self.committed_window = window
            targets = window_targets(window, self.selection())
            groups = {group: offsets_json(offsets) for group, offsets in targets.by_group.items()}
            # The same window for other groups, or on another cluster, is another commit.
            memory = CommitMemory(context, window, groups=groups, kafka_config_id=self.kafka_config_id)
            with self.open_client() as client:
                group_plans = plan_window_commits(
                    client,
                    window,
                    targets,
                    source={"window": dict(window.source)},
                    on_out_of_range=self.parse_parameter("on_out_of_range"),
                    committed_at=memory.committed_at,
                    allow_new_cluster=self.parse_parameter("allow_new_cluster"),
                )
                metadata = commit_metadata(context)
                fenced = self.parse_parameter("fenced")
                apply = partial(apply_window, client, metadata=metadata, window=window, fenced=fenced)
                receipt = self.apply_plan(context, client, PipelinePlan(group_plans), metadata, apply)
                # A group that was left alone (skip) is not at the window's end.
                if all(group_plan.after for group_plan in group_plans):
                    memory.keep()
                return receipt
