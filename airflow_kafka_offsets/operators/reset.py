"""Moves a pipeline somewhere else on purpose: its consumer groups and its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.approval import Approval
from airflow_kafka_offsets.model.move_lineage import Operation
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    OutOfRangePolicy,
    choice_parser,
    exactly_one,
    is_nothing,
    parse_duration,
    parse_switch,
)
from airflow_kafka_offsets.model.place import RESETS, Place
from airflow_kafka_offsets.model.saved_plan import MAX_AGE, Names
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.saved import save_plan
from airflow_kafka_offsets.operators.approved_plan import (
    ApprovedPlan,
    check_decided,
    check_plan,
    check_plan_parameters,
    names_of,
    skip_after_failure,
    with_triggered,
)
from airflow_kafka_offsets.operators.kept_work import cleared_work, receipt_of_kept
from airflow_kafka_offsets.operators.moving import PipelineMovingOperator
from airflow_kafka_offsets.readings.places import read_place
from airflow_kafka_offsets.task.before_images import BeforeImages
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.teardowns import check_restore, restores_of
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.operators.base import Parser


class ResetOffsetsOperator(PipelineMovingOperator):
    """
    Move a pipeline to other offsets: its consumer groups, and its Spark checkpoint with them.

    Exactly one of ``to_offset``, ``to_datetime``, ``shift_by``, ``by_duration``, ``to_batch``, ``to_group``
    and ``from_file`` says where to; empty text counts as not given, so that a DAG's ``params`` can drive it.

    With a ``checkpoint_location`` both move to the same offsets as one plan. Everything is checked and saved
    first; then the offsets are written into the checkpoint's newest batch (the query goes on from there, and
    no batch id occurs twice), then the groups are committed, and both are read back. The query must be
    stopped. What is overwritten is kept in an archive below the checkpoint. Without one only the groups move.

    Refused, with nothing changed: a group whose last commit was made on another Kafka cluster; ``shift_by``,
    ``to_batch`` and ``committed`` in a topic that was created again; a group with members; a partition that
    the broker does not have; an offset outside the log, unless ``on_out_of_range`` says otherwise; a
    checkpoint that is being written to, has an unfinished batch (see ``on_pending_batch``), or belongs to a
    query that keeps state (see ``allow_stateful``).

    A retry does not move twice: what an earlier try of the same task run has moved is left alone by
    ``shift_by``, ``by_duration``, ``to_group`` and ``to_offset="latest"``, and a move that was interrupted
    between checkpoint and groups is finished with the offsets it was planned with, also when the task was
    cleared.

    Clearing the task moves again, if what comes after it is cleared as well. Airflow also clears a setup with
    any task between it and its teardown: then nothing is moved if the work after the reset was finished by a
    commit and is not cleared, and the log says so. Refused, with nothing changed: tasks that have succeeded
    after it, and were not cleared although one before them was.

    What may happen to the checkpoint is decided by the parameters of :class:`PipelineMovingOperator`:
    ``on_pending_batch``, ``sink``, ``idempotent_sink``, ``sink_location``, ``allow_stateful`` and
    ``quiet_period``.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.make_receipt`): plain JSON with the
    offsets before and after. It is stored before the first write. On Airflow 3.3 and later a retry still
    shows the
    offsets from before the first try; earlier versions keep nothing of a task's own over a retry.

    :param to_offset: a number for every partition; offsets, ``{"topic": {"0": 42}}``; ``earliest``,
        ``latest`` or ``committed``. (templated)
    :param to_datetime: each partition's first record at or after this time, else its log end; ISO 8601, UTC
        where no zone is given. (templated)
    :param shift_by: number of offsets to move by, negative for back. (templated)
    :param by_duration: as ``to_datetime``, for now less this duration: a timedelta, seconds, or text such
        as ``2h`` or ``P1DT2H``. (templated)
    :param to_batch: the end of this batch of the checkpoint, which must be finished and still there: Spark
        keeps the last 100 (``spark.sql.streaming.minBatchesToRetain``). Only with a ``checkpoint_location``.
        The end is what the batch's file in ``offsets`` says: where the next batch begins, also after a move
        that has rewritten that file. A partition that was added after the batch is refused, unless ``topics``
        leaves it out. (templated)
    :param to_group: what another group of the cluster has committed, such as the one that this group takes
        over from. Without ``topics`` or a checkpoint these are all topics of that group; ``on_no_commit``
        decides about a partition that it has not committed. (templated)
    :param from_file: URI of a file in Kafka's CSV: ``topic,partition,offset``, or
        ``group,topic,partition,offset``. (templated)
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an offset outside the log or a time in the future. (templated)
    :param on_no_commit: where a partition without a commit starts from, for ``shift_by`` and ``committed``,
        or goes to, for ``to_group``: ``fail`` (default), ``earliest``, ``latest``, or ``skip`` the partition.
        With a ``checkpoint_location`` it starts where the checkpoint is. (templated)
    :param allow_new_cluster: whether the offsets are known to be right on a cluster, or in a topic that was
        created again, that is not the one of the group's last commit. (templated)
    :param plan_only: show the plan and return it, but change nothing. A plan that would be refused fails.
        The plan has a ``digest`` of the planned writes, ``markdown`` for people, and an ``estimate``. With
        the group's asset in ``inlets`` it also lists the runs, and the queued events, that are based on
        commits which the plan takes back. (templated)
    :param plan: instead of a target: the plan of a task with ``plan_only``, or of ``group reset
        --save-plan``. A dict, JSON text, or the URI of a file. The task writes the plan's offsets, with the
        plan's permissions. It refuses the plan if group, checkpoint, cluster or topic have changed since; a
        log start that has moved does not matter while the log has every offset. Without ``group_id`` the plan
        also names the pipeline. (templated)
    :param max_age: largest age of ``plan``: a timedelta, seconds, or text such as ``8h``; a day by default.
        (templated)
    :param approval: the output of an :class:`~airflow_kafka_offsets.operators.approve.ApprovePlanOperator`
        for ``plan``. The plan is refused unless a person has approved it. Receipt and commits have the user
        and the time. (templated)
    :param allow_self_approval: whether the user who triggered the run may also approve the plan; by default
        yes. (templated)
    :param stop_after_failure: only for a mapped task: whether an index that has not begun is skipped if
        another index has failed in this run. (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineMovingOperator.template_fields,
        *RESETS,
        "on_out_of_range",
        "on_no_commit",
        "allow_new_cluster",
        "plan_only",
        "plan",
        "max_age",
        "approval",
        "allow_self_approval",
        "stop_after_failure",
    )
    operation: ClassVar[Operation] = "reset"
    needs_group: ClassVar[bool] = False
    """A plan names the group itself; without one :meth:`check_parameters` asks for it."""
    parsers: ClassVar[Mapping[str, Parser]] = {
        **PipelineMovingOperator.parsers,
        "on_out_of_range": choice_parser(OutOfRangePolicy),
        "on_no_commit": choice_parser(MissingCommitPolicy),
        "allow_new_cluster": parse_switch,
        "plan_only": parse_switch,
        "plan": check_plan,
        "max_age": parse_duration,
        "approval": Approval.parse,
        "allow_self_approval": parse_switch,
        "stop_after_failure": parse_switch,
    }

    def __init__(
        self,
        *,
        to_offset: int | str | Mapping[str, Mapping[str, int]] | XComArg | None = None,
        to_datetime: datetime | str | XComArg | None = None,
        shift_by: int | str | XComArg | None = None,
        by_duration: timedelta | float | str | XComArg | None = None,
        to_batch: int | str | XComArg | None = None,
        to_group: str | XComArg | None = None,
        from_file: str | XComArg | None = None,
        on_out_of_range: OutOfRangePolicy | str = "fail",
        on_no_commit: MissingCommitPolicy | str = "fail",
        allow_new_cluster: bool | str = False,
        plan_only: bool | str = False,
        plan: Mapping[str, Any] | str | XComArg | None = None,
        max_age: timedelta | float | str = MAX_AGE,
        approval: Mapping[str, Any] | str | XComArg | None = None,
        allow_self_approval: bool | str = True,
        stop_after_failure: bool | str = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        # Two runs that move one group at once would each overwrite what the other is about to read.
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.to_offset = to_offset
        self.to_datetime = to_datetime
        self.shift_by = shift_by
        self.by_duration = by_duration
        self.to_batch = to_batch
        self.to_group = to_group
        self.from_file = from_file
        self.on_out_of_range = on_out_of_range
        self.on_no_commit = on_no_commit
        self.allow_new_cluster = allow_new_cluster
        self.plan_only = plan_only
        self.plan: Any = plan
        self.max_age = max_age
        self.approval: Any = approval
        self.allow_self_approval = allow_self_approval
        self.stop_after_failure = stop_after_failure
        self.check_parameters()

    def check_group_named(self) -> None:
        """Check that a parameter names the group, or a plan does."""
        if self.plan is None and self.group_id is None:
            raise self.missing_group()

    def check_checkpoint_parameters(self) -> None:
        """Check that what a saved plan has decided is not given as well."""
        if self.plan is None:
            super().check_checkpoint_parameters()
            return
        check_decided(self)

    def check_parameters(self) -> None:
        """Check also that one scenario is given, or that templates may fill one in."""
        super().check_parameters()
        self.check_group_named()
        check_plan_parameters(self)
        if self.plan is not None:
            self.refuse_unused("with plan", **dict.fromkeys(RESETS), plan_only=False)
            return
        given = {name: value for name in RESETS if not is_nothing(value := getattr(self, name))}
        literals = {name: value for name, value in given.items() if not is_template(value)}
        try:
            if not given or len(literals) > 1:
                exactly_one({name: getattr(self, name) for name in RESETS})
            places = {name: Place.parse(value, name) for name, value in literals.items()}
        except (UsageError, OffsetsFormatError) as error:
            raise self.parameter_error(str(error)) from None
        if "to_batch" in given and self.checkpoint_location is None:
            raise self.parameter_error(
                "to_batch is a batch of a Spark checkpoint, and checkpoint_location is missing: "
                "give it as well"
            )
        with_checkpoint = self.checkpoint_location is not None
        if not any(
            places[name].uses_on_no_commit(with_checkpoint=with_checkpoint)
            if name in places
            else RESETS[name].may_use_on_no_commit(with_checkpoint=with_checkpoint)
            for name in given
        ):
            why = f"with {', '.join(given)}, which does not start from a commit"
            if with_checkpoint:
                why = "with checkpoint_location: a partition without a commit starts where the checkpoint is"
            self.refuse_unused(why, on_no_commit="fail")

    def may_render_to_nothing(self, name: str, template: object) -> bool:
        """Whether it is a scenario: a DAG's ``params`` fill in one of them, see :func:`exactly_one`."""
        return name in RESETS or super().may_render_to_nothing(name, template)

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the group, and return the receipt."""
        with self.run_checked():
            plan_only = self.parse_parameter("plan_only")
            restores = restores_of(self) if self.has_dag() else []  # type: ignore[no-untyped-call]
            for restore in restores:
                # Before anything is moved: such a restore would not take it back.
                check_restore(restore)
            work, has_work = (None, False) if plan_only else cleared_work(self, context)
            approved = None if self.plan is None else ApprovedPlan.of(self, context)
            scenarios = {name: getattr(self, name) for name in RESETS}
            place = None if approved else read_place(*exactly_one(scenarios))
            metadata = self.move_metadata(context)
            checkpoint = self.open_checkpoint()
            images = BeforeImages(context)
            with self.open_client() as client:
                if work is not None:
                    receipt = receipt_of_kept(self, client, checkpoint, work, metadata)
                    # Also here, since a teardown reads it to know what there is to take back.
                    push_result(context, receipt)
                    self.keep_move(receipt)
                    return receipt
                now = datetime.now(tz=timezone.utc)
                if approved is not None:
                    metadata = approved.stamp(metadata)
                    max_age = self.parse_parameter("max_age")
                    plan = approved.plan_again(
                        client, checkpoint, now=now, metadata=metadata, max_age=max_age
                    )
                elif place is not None:
                    plan = plan_reset(
                        client,
                        checkpoint,
                        self.selection(),
                        place,
                        now=now,
                        on_out_of_range=self.parse_parameter("on_out_of_range"),
                        on_no_commit=self.parse_parameter("on_no_commit"),
                        allow_new_cluster=self.parse_parameter("allow_new_cluster"),
                        policy=self.checkpoint_policy(),
                        metadata=metadata,
                        # If a recovery is cleared before its work was committed, nobody has gone on from
                        # here.
                        interrupted=images.interrupted or has_work or None,
                    )
                if restores and plan.checkpoint_plan is not None:
                    plan = replace(plan, checkpoint_plan=replace(plan.checkpoint_plan, recovery=True))
                if plan_only:
                    return self._save_plan(context, client, plan, checkpoint)
                if self.parse_parameter("stop_after_failure"):
                    skip_after_failure(context, self, plan)
                # A plan that is refused writes nothing, and must not replace what an earlier try has kept.
                if not plan.is_refused:
                    plan = images.keep(plan, client, metadata, goes_on=has_work)
                receipt = self.apply_pipeline_plan(context, client, plan, metadata, checkpoint)
                # After the receipt: a try that dies before this counts as interrupted.
                images.finish()
                return receipt

    def _save_plan(
        self,
        context: Context,
        client: OffsetsClient,
        plan: PipelinePlan,
        checkpoint: SparkCheckpoint | None,
    ) -> dict[str, Any]:
        """Show a plan, and return it so that it can be approved and carried out."""
        plan = self.show_plan(context, client, plan)
        saved = save_plan(
            client,
            checkpoint,
            plan,
            Names(**names_of(self)),
            policy=self.checkpoint_policy(),
            allow_new_cluster=self.parse_parameter("allow_new_cluster"),
        )
        saved = with_triggered(context, self, saved)
        push_result(context, saved.value)
        self.log.info("Plan %s:\n%s", saved.digest, saved.markdown)
        return dict(saved.value)
