"""Moves a pipeline, its consumer groups and its checkpoint, to other offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.errors import GroupMovedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.lineage import Operation
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    OutOfRangePolicy,
    choice_parser,
    exactly_one,
    is_blank,
    parse_switch,
)
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import RESETS, Place
from airflow_kafka_offsets.model.recovery_tasks import RecoveryTasks
from airflow_kafka_offsets.model.saved_plan import MAX_AGE
from airflow_kafka_offsets.moves.recovery import plan_without_move
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.saved import plan_saved
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.moving import MoveContext
from airflow_kafka_offsets.operators.planned_move import ApprovedPlan, PlannedMoveOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS
from airflow_kafka_offsets.readings.places import read_place
from airflow_kafka_offsets.task.mapped import is_being_mapped
from airflow_kafka_offsets.task.move_memory import MoveMemory
from airflow_kafka_offsets.task.parameter_checks import is_template, with_task_name
from airflow_kafka_offsets.task.run_tasks import (
    check_restore,
    commit_identities,
    refuse_after_failure,
    refuse_renamed,
    restores_of,
    tasks_after_reset,
    tasks_that_move,
)


class ResetOffsetsOperator(PlannedMoveOperator):
    """
    Move a pipeline to other offsets: its consumer groups, and its Spark checkpoint with them.

    Give exactly one target, from ``to_offset`` to ``from_file``. Empty text counts as not given, so that a
    DAG's ``params`` can select one.

    With a ``checkpoint_location``, the groups and the checkpoint move to the same offsets as one plan. The
    query must be stopped. The task first checks and saves everything. It then writes the offsets into the
    checkpoint's newest batch, so that the query continues from there and no batch id occurs twice. It then
    commits the groups, and reads both back. The overwritten files are kept in an archive below the
    checkpoint. Without a ``checkpoint_location`` only the groups move.

    The task refuses, and changes nothing, in these cases:

    - The group's last commit was made on another Kafka cluster.
    - ``shift_by``, ``to_batch`` or ``committed`` is used for a topic that was created again.
    - The group has members.
    - The broker does not have a partition.
    - An offset is outside the log (see ``on_out_of_range``).
    - The checkpoint is being written to, has an unfinished batch (see ``on_pending_batch``), or belongs to a
      query that keeps state (see ``allow_stateful``).

    A retry does not move twice: with a target that is elsewhere the next time, such as ``shift_by`` or
    ``by_duration``, it keeps the offsets to which an earlier try of the same task run has moved. A move that
    was interrupted between checkpoint and groups is finished with its planned offsets, even after the task
    was cleared.

    A cleared task moves again if the tasks after it are cleared as well. Airflow also clears a setup together
    with any task between the setup and its teardown. In this case nothing is moved, and the log says so, if
    the work after the reset was finished by a commit and is not cleared. The task refuses, and changes
    nothing, if a task after it has succeeded and was not cleared although a task before that one was.

    These parameters of :class:`PipelineMovingOperator` determine how the checkpoint may be changed:
    ``on_pending_batch``, ``sink``, ``idempotent_sink``, ``sink_location``, ``allow_stateful`` and
    ``quiet_period``.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.make_receipt`): plain JSON with the
    offsets before and after. It is stored before the first write. The receipt of a retry still shows the
    offsets from before the first try; without a checkpoint and with more than 100 partitions, only on Airflow
    3.3 and later.

    :param to_offset: a number for every partition; offsets as ``{"topic": {"0": 42}}``; ``earliest``,
        ``latest`` or ``committed``. (templated)
    :param to_datetime: each partition's first record at or after this time, or its log end if there is no
        such record. ISO 8601; UTC if the time has no zone. (templated)
    :param shift_by: number of offsets to move by; a negative number moves back. (templated)
    :param by_duration: like ``to_datetime``, for the current time minus this duration: a timedelta, seconds,
        or text such as ``2h`` or ``P1DT2H``. (templated)
    :param to_batch: the end of this batch of the checkpoint. The batch must be finished and still be in the
        checkpoint: Spark keeps the last 100 (``spark.sql.streaming.minBatchesToRetain``). Only with a
        ``checkpoint_location``. The end is taken from the batch's file in ``offsets``: the next batch begins
        there, even if a move has rewritten that file. A partition that was added after the batch is refused,
        unless ``topics`` leaves it out. (templated)
    :param to_group: the committed offsets of another group of the cluster, such as a group that this group
        replaces. Without ``topics`` or a checkpoint, these are all topics of that group. ``on_no_commit``
        applies to partitions that the other group has not committed. (templated)
    :param from_file: URI of a file in Kafka's CSV: ``topic,partition,offset``, or
        ``group,topic,partition,offset``. (templated)
    :param on_out_of_range: action for an offset outside the log or a time in the future: ``fail`` (default),
        ``clamp`` to the nearer end of the log, or ``skip`` the partition. (templated)
    :param on_no_commit: for a partition without a commit: the offset from which ``shift_by`` and
        ``committed`` start, or to which ``to_group`` moves: ``fail`` (default), ``earliest``, ``latest``, or
        ``skip`` the partition. With a ``checkpoint_location`` the partition starts at the checkpoint's
        offset. (templated)
    :param allow_new_cluster: whether to move although the group's last commit was made on another cluster, or
        before a topic was created again. Set this only if the offsets are right there. (templated)
    :param plan_only: whether to show and return the plan only, without changes. The task fails if the move
        would be refused. The plan has a ``digest`` of the planned writes, ``markdown`` for people, and an
        ``estimate``. With the group's asset in ``inlets`` the plan also lists the runs and the queued events
        that are based on commits that it takes back. (templated)
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
    :param stop_after_failure: only for a mapped task: whether an index that has not begun fails too, without
        a change, if another index has failed in this run. (templated)
    """

    operation: ClassVar[Operation] = "reset"
    targets: ClassVar[Sequence[str]] = tuple(RESETS)
    permissions: ClassVar[Sequence[str]] = ("on_out_of_range", "on_no_commit", "allow_new_cluster")
    for_moves: ClassVar[Sequence[str]] = ("quiet_period", "stop_after_failure")
    parsers: ClassVar[Mapping[str, Parser]] = {
        **PlannedMoveOperator.parsers,
        "on_out_of_range": choice_parser(OutOfRangePolicy),
        "on_no_commit": choice_parser(MissingCommitPolicy),
        "allow_new_cluster": parse_switch,
        "stop_after_failure": parse_switch,
    }
    template_fields: Sequence[str] = (*PIPELINE_PARAMETERS, *RESETS, *parsers)

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
        # Two runs that move the same group at once would each overwrite the offsets that the other reads.
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

    def check_names(self) -> None:
        """Check that the group is named, by a parameter or a plan, and the checkpoint of a batch."""
        if self.plan is None and self.group_id is None:
            raise self.missing_group()
        if not is_blank(self.to_batch) and self.checkpoint_location is None:
            raise self.parameter_error(
                "to_batch is a batch of a Spark checkpoint, and checkpoint_location is missing: "
                "give it as well"
            )

    def check_parameters(self) -> None:
        """Check also that one scenario is given, or that templates may render to one."""
        super().check_parameters()
        self.check_names()
        mapped = is_being_mapped(self) or self.get_closest_mapped_task_group()
        if self.stop_after_failure is True and not mapped:
            self.refuse_unused("by a task that is not mapped", "stop_after_failure")
        if self.plan is not None:
            return
        given = {name: value for name in RESETS if not is_blank(value := getattr(self, name))}
        literals = {name: value for name, value in given.items() if not is_template(value)}
        with with_task_name(self):
            if not given or len(literals) > 1:
                exactly_one({name: getattr(self, name) for name in RESETS})
            places = {name: Place.parse(value, name) for name, value in literals.items()}
        with_checkpoint = self.checkpoint_location is not None
        if not any(
            places[name].traits.uses_on_no_commit(with_checkpoint=with_checkpoint)
            if name in places
            else RESETS[name].may_use_on_no_commit(with_checkpoint=with_checkpoint)
            for name in given
        ):
            why = f"with {', '.join(given)}, which does not start from a commit"
            if with_checkpoint:
                why = "with checkpoint_location: a partition without a commit starts where the checkpoint is"
            self.refuse_unused(why, "on_no_commit")

    def _permissions(self) -> dict[str, Any]:
        """Return the parameters of :func:`plan_reset` that say what the reset may do."""
        return {**self.parse_parameters(*self.permissions), "policy": self.checkpoint_policy()}

    def may_render_blank(self, name: str, template: object) -> bool:
        """Return whether the parameter is a scenario: ``params`` may select one, see :func:`exactly_one`."""
        return name in RESETS or super().may_render_blank(name, template)

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the group, and return the receipt."""
        with self.run_checked():
            plan_only = self.parse_parameter("plan_only")
            restores = restores_of(self) if self.has_dag() else []  # type: ignore[no-untyped-call]
            for restore in restores:
                # Checked before anything is moved: an invalid restore would not take the move back.
                check_restore(restore)
            memory = MoveMemory(context)
            work = RecoveryTasks({}, {})
            if not plan_only:
                work = tasks_after_reset(context, self, moved=memory.moved)
            target = self.approved_plan(context) or read_place(
                *exactly_one({name: getattr(self, name) for name in RESETS})
            )
            metadata, checkpoint = self.move_metadata(context), self.open_checkpoint()
            with self.open_client() as client:
                move = MoveContext(context, client, checkpoint, metadata)
                if work.succeeded:
                    return self._move_nothing(move, work.succeeded, memory.moved_checkpoint)
                # If a recovery is cleared before its work was committed, the pipeline is still at the offsets
                # of its reset.
                interrupted = memory.interrupted or bool(work.states)
                plan, metadata = self._plan(move, target, interrupted)
                if restores and plan.checkpoint_plan is not None:
                    plan = replace(plan, checkpoint_plan=replace(plan.checkpoint_plan, recovery=True))
                if plan_only:
                    return self.save_shown_plan(move, plan, **self.parse_parameters("allow_new_cluster"))
                refuse_renamed(self, plan, metadata)
                plan = memory.with_first_offsets(plan, client, metadata, has_followers=bool(work.states))
                # A checkpoint's archive shows whether an earlier try has moved.
                if checkpoint is None and isinstance(target, Place) and target.traits.relative:
                    plan = memory.refuse_unknown(plan, client, metadata)
                if self.parse_parameter("stop_after_failure") and not plan.begun:
                    refuse_after_failure(context)
                return self._apply(move._replace(metadata=metadata), plan, memory)

    def _move_nothing(self, move: MoveContext, done: Sequence[str], moved: str | None) -> dict[str, Any]:
        """Return the receipt of a cleared reset whose records were read by tasks that were not cleared."""
        movers = commit_identities(move.metadata, {self.task_id, *tasks_that_move(self)})
        pipeline = move.client, move.checkpoint, self.selection()
        plan = plan_without_move(*pipeline, movers, done, moved=moved)
        self.log.info(
            "Nothing is moved: %s succeeded in this run, was committed, and was not cleared with %s. To read "
            "the records again, clear it too",
            *(", ".join(done), self.task_id),
        )
        # The teardown reads this receipt to determine what to take back.
        return self.repeat_receipt(move.context, plan)

    def _plan(
        self, move: MoveContext, target: ApprovedPlan | Place, interrupted: bool
    ) -> tuple[PipelinePlan, CommitMetadata]:
        """Return the plan of the move, and the metadata of its commits."""
        _, client, checkpoint, metadata = move
        now = datetime.now(tz=timezone.utc)
        if isinstance(target, ApprovedPlan):
            max_age = self.parse_parameter("max_age")
            plan = plan_saved(client, checkpoint, target.saved, now=now, metadata=metadata, max_age=max_age)
            return target.stamp(plan, metadata)
        metadata = replace(metadata, request=digest(repr(target), length=12))
        plan = plan_reset(
            client,
            checkpoint,
            self.selection(),
            target,
            now=now,
            metadata=metadata,
            interrupted=interrupted,
            **self._permissions(),
        )
        return plan, metadata

    def _apply(self, move: MoveContext, plan: PipelinePlan, memory: MoveMemory) -> dict[str, Any]:
        """Apply a plan, and keep the overwritten offsets for later tries of the task."""
        # A refused plan writes nothing, and must not replace offsets that an earlier try has kept.
        if not plan.refusals:
            memory.keep(plan)
        try:
            receipt = self.apply_pipeline_plan(move, plan)
        except GroupMovedError as error:
            if move.checkpoint is None and not (error.progress and error.progress.written):
                memory.forget()  # nothing was written
            raise
        # After the receipt, so that a try that dies before this line counts as interrupted.
        memory.finish()
        return receipt
