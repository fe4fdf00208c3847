"""Bases of the operators that move offsets: they show a plan, apply it and keep its receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow.sdk import Context

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import (
    POLICY,
    QUIET_PERIOD,
    CheckpointPolicy,
    PendingBatch,
    Sink,
    parse_quiet_period,
    parse_sink,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.parameters import choice_parser, parse_switch
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.operators.base import OffsetsOperator, Parser
from airflow_kafka_offsets.operators.outlets import event_extra
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, parse_location
from airflow_kafka_offsets.task.identity import commit_metadata
from airflow_kafka_offsets.task.metrics import count, report_lag
from airflow_kafka_offsets.task.outcome import push_result
from airflow_kafka_offsets.task.parameter_checks import is_template, with_task_name

if TYPE_CHECKING:
    from airflow_kafka_offsets.model.lineage import Operation
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.window import OffsetWindow


class MoveContext(NamedTuple):
    """Airflow's context of a task that moves offsets, and what the task has opened for the move."""

    context: Context
    client: OffsetsClient
    checkpoint: SparkCheckpoint | None
    metadata: CommitMetadata
    """The metadata of the commits."""


class MovingOperator(OffsetsOperator):
    """
    Base of the operators that move or commit groups: plan, receipt, asset events and counters.

    ``outlets`` may contain assets of groups (:attr:`~airflow_kafka_offsets.pipeline.KafkaPipeline.assets`). A
    task sends events only for the groups that it has moved or committed. A mapped task may name the assets of
    all pipelines; any other task is refused if it names the asset of another group. An ``AssetAlias``
    represents the groups that are committed.
    """

    moves_on_purpose: ClassVar[bool] = False
    """Whether the task moves a group to other offsets than those that its job has read."""

    @property
    def groups_config_id(self) -> str:
        """The connection of the cluster on which groups are committed."""
        return self.kafka_config_id

    reports_lag: bool = True
    """Whether the operator commits all partitions that its groups read, so that their lag is known."""
    operation: ClassVar[Operation] = "commit"
    """Operation in lineage events and in the metadata of the commits."""
    committed_window: OffsetWindow | None = None
    """The window whose end the operator commits."""

    def with_connections(self, plan: PipelinePlan) -> PipelinePlan:
        """Return a plan whose receipt names the connections of this task."""
        ids = {"kafka_config_id": self.groups_config_id, "checkpoint_conn_id": self.checkpoint_conn_id}
        given = {name: conn_id for name, conn_id in ids.items() if conn_id}
        return replace(plan, provenance={**plan.provenance, **given})

    def apply_plan(
        self, move: MoveContext, plan: PipelinePlan, apply: Callable[..., dict[str, Any]], **how: Any
    ) -> dict[str, Any]:
        """
        Show a plan, store its receipt, apply it with a function of ``moves``, and return the receipt.

        The receipt is in XCom before the first write, and stays there if the task then fails.
        """
        plan, planned = self._show_plan(move, plan)
        batch_id = plan.stamp(move.metadata).batch
        planned_extras = self._event_extras(planned, batch_id)
        self._group_outlets.set_events(move.context, self.groups_config_id, planned_extras)
        self.keep_move(planned, begun=True)
        try:
            receipt = apply(move.client, plan, move.metadata, **how)
        except KafkaOffsetsError as error:
            self.keep_move(planned, begun=True, error=error)
            raise
        self.keep_move(receipt)
        if plan.is_empty:
            self.log.warning("Nothing was written: the plan has no partitions left")
        if (extras := self._event_extras(receipt, batch_id)) != planned_extras:
            self._group_outlets.set_events(move.context, self.groups_config_id, extras)
        count("reset" if self.moves_on_purpose else "commit", self._topics_by_group)
        if self.reports_lag:
            report_lag(group_plan.lag for group_plan in plan.to_write)
        self.outlets = self._group_outlets.outlets_with_events
        return receipt

    def _show_plan(
        self, move: MoveContext, plan: PipelinePlan, *, plan_only: bool = False
    ) -> tuple[PipelinePlan, dict[str, Any]]:
        """Check the outlets, log the plan and push its receipt; return both."""
        plan = self.with_connections(plan)
        groups = {*self._named_groups(), *(group_plan.group_id for group_plan in plan.group_plans)}
        self._group_outlets.check_groups(move.context, self.groups_config_id, groups)
        self._topics_by_group = {
            group_plan.group_id: {tp.topic for tp in group_plan.after} for group_plan in plan.to_write
        }
        # A commit does not wait the few seconds that the times of records may take.
        if plan_only or self.moves_on_purpose:
            from airflow_kafka_offsets.readings.topic_times import look_up_times

            plan = look_up_times(move.client, plan)
        for table in plan.tables():
            self.log.info("%s", table)
        # A refused plan moves nothing, so its receipt must not take anything back.
        planned = plan.make_receipt(plan_only=plan_only or (bool(plan.refusals) and not plan.begun))
        push_result(move.context, planned)
        self.keep_move(planned)
        return plan, planned

    def repeat_receipt(self, context: Context, plan: PipelinePlan) -> dict[str, Any]:
        """Push and return the receipt of a plan that needs no write, because its work was done before."""
        receipt = self.with_connections(plan).make_receipt(verified=True)
        push_result(context, receipt)
        self.keep_move(receipt)
        return receipt

    def keep_move(
        self, receipt: Mapping[str, Any], *, begun: bool = False, error: KafkaOffsetsError | None = None
    ) -> None:
        """Keep a receipt for lineage, whether a write may have begun, and the error that ended the move."""
        from airflow_kafka_offsets.model.lineage import MoveRecord

        record = MoveRecord(
            self.operation,
            receipt,
            self.servers.get(self.groups_config_id),
            begun=begun,
            error=error,
            # Offsets from a user or a reset do not show which records were read.
            reads=self.reports_lag,
            window=self.committed_window,
        )
        self.keep_lineage(record.lineage)

    def _event_extras(self, receipt: Mapping[str, Any], batch_id: int | None) -> list[dict[str, Any]]:
        groups = receipt.get("groups", [receipt])
        return [
            event_extra(group, batch_id) for group in groups if group["group_id"] in self._topics_by_group
        ]


class PipelineMovingOperator(MovingOperator):
    """
    Base of the operators that may also move a checkpoint: the reset and the restore.

    These parameters are allowed only with a ``checkpoint_location``:

    :param on_pending_batch: action if Spark began a batch and did not finish it: ``fail`` (default) refuses
        the move, ``discard`` archives and removes the batch, which needs ``sink`` or ``idempotent_sink``.
        (templated)
    :param sink: the query's sink, which the checkpoint does not record: ``kafka``, ``noop``, ``file``,
        ``delta``, ``iceberg`` or ``hudi``, see
        :data:`~airflow_kafka_offsets.model.checkpoint_policy.Sink`. (templated)
    :param idempotent_sink: for any other sink: whether it is a ``foreachBatch`` that overwrites rows by a
        key of the records and does not pass the batch id on. (templated)
    :param sink_location: directory of the ``file`` sink or of the ``delta``, ``iceberg`` or ``hudi`` table.
        A batch that is recorded there is not discarded. (templated)
    :param allow_stateful: whether to move a query that keeps state; its state stays unchanged. (templated)
    :param quiet_period: time without a write to the checkpoint after which the query counts as stopped:
        seconds (10 by default), a timedelta or text such as ``30s``. If necessary, the task waits until
        this time has passed. (templated)
    """

    moves_on_purpose: ClassVar[bool] = True
    one_at_a_time: ClassVar[bool] = True
    reports_lag = False
    parsers: ClassVar[Mapping[str, Parser]] = {
        "on_pending_batch": choice_parser(PendingBatch),
        "sink": parse_sink,
        "idempotent_sink": parse_switch,
        "sink_location": parse_location,
        "allow_stateful": parse_switch,
        "quiet_period": parse_quiet_period,
    }
    template_fields: Sequence[str] = (*PIPELINE_PARAMETERS, *parsers)

    def __init__(
        self,
        *,
        on_pending_batch: PendingBatch | str = "fail",
        sink: Sink | str | None = None,
        idempotent_sink: bool | str = False,
        sink_location: str | None = None,
        allow_stateful: bool | str = False,
        quiet_period: timedelta | float | str = QUIET_PERIOD,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.on_pending_batch = on_pending_batch
        self.sink = sink
        self.idempotent_sink = idempotent_sink
        self.sink_location = sink_location
        self.allow_stateful = allow_stateful
        self.quiet_period = quiet_period

    def check_parameters(self) -> None:
        """Check also that parameters of a checkpoint are given only with a checkpoint."""
        super().check_parameters()
        self.check_checkpoint_parameters()
        if not any(is_template(getattr(self, name)) for name in POLICY):
            with with_task_name(self):
                self.checkpoint_policy()

    def check_checkpoint_parameters(self) -> None:
        """Check that what concerns a checkpoint is given only with one."""
        if self.checkpoint_location is None:
            self.refuse_unused_unless_default("without checkpoint_location", *PipelineMovingOperator.parsers)

    def take_names(self, names: Mapping[str, Any], context: Context) -> None:
        """Take the names of a task without names from its plan or receipt, which must have a group."""
        if self.group_id is not None:
            return
        if names.get("group_id") is None:
            raise self.missing_group()
        for name in PIPELINE_PARAMETERS:
            value = getattr(self, name)
            # The default of kafka_config_id shows no wish.
            if value not in (None, "kafka_default") and plain_names(value) != names.get(name):
                raise UsageError(
                    f"{parameter_text(name, value)} is not that of the plan or receipt "
                    f"({shorten(names.get(name))}), which names the pipeline without "
                    f"{parameter_text('group_id')}: leave it out",
                    parameter=name,
                )
        for name in PIPELINE_PARAMETERS:
            if names.get(name) is not None:
                setattr(self, name, names[name])
        self.name_mapped(context)

    def move_metadata(self, context: Context) -> CommitMetadata:
        """Return the metadata of this task run's commits, which marks them as a deliberate move."""
        return replace(commit_metadata(context), tool=self.operation)

    def checkpoint_policy(self) -> CheckpointPolicy:
        """Return the checkpoint policy that the parameters describe."""
        return CheckpointPolicy.parse(**{name: getattr(self, name) for name in POLICY})

    def apply_pipeline_plan(self, move: MoveContext, plan: PipelinePlan) -> dict[str, Any]:
        """Apply a plan of groups and checkpoint, see :meth:`apply_plan`."""
        from airflow_kafka_offsets.moves.apply import apply_pipeline

        quiet_period = self.parse_parameter("quiet_period")
        return self.apply_plan(
            move, plan, apply_pipeline, checkpoint=move.checkpoint, quiet_period=quiet_period
        )
