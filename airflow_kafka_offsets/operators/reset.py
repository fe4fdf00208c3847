"""Moves a pipeline somewhere else on purpose: its consumer groups and its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.move_lineage import Operation
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    OutOfRangePolicy,
    choice_parser,
    exactly_one,
    is_nothing,
    parse_switch,
)
from airflow_kafka_offsets.model.place import RESETS, Place
from airflow_kafka_offsets.model.recovery import RecoveryTasks
from airflow_kafka_offsets.moves.recovery import plan_without_move
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.operators.moving import PipelineMovingOperator
from airflow_kafka_offsets.readings.places import read_place
from airflow_kafka_offsets.task.before_images import BeforeImages
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.run_tasks import commit_identities, tasks_between, tasks_that_move
from airflow_kafka_offsets.task.teardowns import check_restore, restores_of
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
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
        (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineMovingOperator.template_fields,
        *RESETS,
        "on_out_of_range",
        "on_no_commit",
        "allow_new_cluster",
        "plan_only",
    )
    operation: ClassVar[Operation] = "reset"
    parsers: ClassVar[Mapping[str, Parser]] = {
        **PipelineMovingOperator.parsers,
        "on_out_of_range": choice_parser(OutOfRangePolicy),
        "on_no_commit": choice_parser(MissingCommitPolicy),
        "allow_new_cluster": parse_switch,
        "plan_only": parse_switch,
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
        self.check_parameters()

    def check_parameters(self) -> None:
        """Check also that one scenario is given, or that templates may fill one in."""
        super().check_parameters()
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
            work, has_work = (None, False) if plan_only else self._cleared_work(context)
            place = read_place(*exactly_one({name: getattr(self, name) for name in RESETS}))
            metadata = self.move_metadata(context)
            checkpoint = self.open_checkpoint()
            images = BeforeImages(context)
            with self.open_client() as client:
                if work is not None:
                    receipt = self._kept(client, checkpoint, work, metadata)
                    # Also here, since a teardown reads it to know what there is to take back.
                    push_result(context, receipt)
                    self.keep_move(receipt)
                    return receipt
                plan = plan_reset(
                    client,
                    checkpoint,
                    self.selection(),
                    place,
                    now=datetime.now(tz=timezone.utc),
                    on_out_of_range=self.parse_parameter("on_out_of_range"),
                    on_no_commit=self.parse_parameter("on_no_commit"),
                    allow_new_cluster=self.parse_parameter("allow_new_cluster"),
                    policy=self.checkpoint_policy(),
                    metadata=metadata,
                    # If a recovery is cleared before its work was committed, nobody has gone on from here.
                    interrupted=images.interrupted or has_work or None,
                )
                if restores and plan.checkpoint_plan is not None:
                    plan = replace(plan, checkpoint_plan=replace(plan.checkpoint_plan, recovery=True))
                if plan_only:
                    return self.show_plan(context, client, plan)
                # A plan that is refused writes nothing, and must not replace what an earlier try has kept.
                if not plan.is_refused:
                    plan = images.keep(plan, client, metadata, goes_on=has_work)
                receipt = self.apply_pipeline_plan(context, client, plan, metadata, checkpoint)
                # After the receipt: a try that dies before this counts as interrupted.
                images.finish()
                return receipt

    def _cleared_work(self, context: Context) -> tuple[RecoveryTasks | None, bool]:
        """
        Return the tasks after this one, if some have succeeded already, and whether there are any.

        If some have succeeded, this one was cleared without them; refused where those must be cleared as
        well.
        """
        if not hasattr(context.get("ti"), "get_task_states") or not self.has_dag():  # type: ignore[no-untyped-call]
            return None, False
        work = tasks_between(context, self, None, without=self._movers())
        mapped = (getattr(context["ti"], "map_index", -1) or 0) >= 0
        if mapped and (parts := work.partly_succeeded):
            raise PlanRefusedError(
                f"{', '.join(parts)} succeeded for some of its map indexes in this run, and those were not "
                "cleared: which of them read again what this index moves is not known. Clear all of them "
                "(with Downstream), or trigger a new run"
            )
        if not work.succeeded:
            return None, bool(work.states)
        if work.outdated:
            raise PlanRefusedError(
                f"{', '.join(work.outdated)} succeeded in this run, and was not cleared with what comes "
                "before it: nobody would read again what this task moves. Clear it as well (with "
                "Downstream), or trigger a new run"
            )
        return work, True

    def _kept(
        self,
        client: OffsetsClient,
        checkpoint: SparkCheckpoint | None,
        work: RecoveryTasks,
        metadata: CommitMetadata,
    ) -> dict[str, Any]:
        """Return the receipt of a reset that moves nothing, because its work was done and is not cleared."""
        movers = commit_identities(metadata, {self.task_id, *self._movers()})
        plan, unfinished = plan_without_move(client, checkpoint, self.selection(), movers, work.succeeded)
        if unfinished:
            raise PlanRefusedError(
                f"{', '.join(work.succeeded)} succeeded in this run, and nothing was committed to group "
                f"{', '.join(unfinished)} since the reset, or it was taken back: clear "
                f"{'it' if len(work.succeeded) == 1 else 'them'} as well, or trigger a new run"
            )
        self.log.info(
            "Nothing is moved: %s succeeded in this run, was committed, and was not cleared with %s. To read "
            "it all again, clear it too",
            ", ".join(work.succeeded),
            self.task_id,
        )
        return self.with_connections(plan).make_receipt(verified=True)

    def _movers(self) -> list[str]:
        return [name for name in tasks_that_move(self) if name != self.task_id]
