"""Moves a pipeline somewhere else on purpose: its consumer groups and its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.kafka.positions import group_positions, last_commits
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.offsets import Positions, offsets_json, parse_positions
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, OutOfRangePolicy, exactly_one, one_of
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.recovery import Work, is_finished
from airflow_kafka_offsets.moves.commit import plan_moves
from airflow_kafka_offsets.moves.group_reset import parse_scenario, plan_resets
from airflow_kafka_offsets.moves.reset import plan_pipeline_reset
from airflow_kafka_offsets.operators.base import MovingOperator, commit_metadata
from airflow_kafka_offsets.task.clears import clear_mark
from airflow_kafka_offsets.task.run_tasks import identities, tasks_that_move, work_between
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.commit_metadata import CommitMetadata

SCENARIOS = ("to_offset", "to_datetime", "shift_by", "by_duration", "from_file")


class ResetOffsetsOperator(MovingOperator):
    """
    Move a pipeline to other offsets: its consumer groups, and its Spark checkpoint with them.

    Exactly one of ``to_offset``, ``to_datetime``, ``shift_by``, ``by_duration`` and ``from_file`` says where to;
    empty text counts as not given, so that a DAG's ``params`` can drive it.

    With a ``checkpoint_location`` both move to the same offsets as one plan. Everything is checked and saved first;
    then the offsets are written into the checkpoint's newest batch (the query goes on from there, and no batch id
    occurs twice), then the groups are committed, and both are read back. The query must be stopped. What is
    overwritten is kept in an archive below the checkpoint. Without one only the groups move.

    Refused, with nothing changed: a group with members; a partition that the broker does not have; an offset
    outside the log, unless ``on_out_of_range`` says otherwise; a checkpoint that is being written to, has an
    unfinished batch (see ``pending_batch``), or belongs to a query that keeps state (see ``allow_state``).

    A retry does not move twice: what an earlier try of the same task run has moved is left alone by
    ``shift_by``, ``by_duration`` and ``to_offset="latest"``, and a move that was interrupted between checkpoint and
    groups is finished with the offsets it was planned with, also when the task was cleared.

    Clearing the task moves again, if what comes after it is cleared as well. Airflow also clears a setup with any task
    between it and its teardown: then nothing is moved if the work after the reset was finished by a commit and is not
    cleared, and the log says so. Refused, with nothing changed: tasks that have succeeded after it, and were not cleared
    although one before them was.

    What may happen to the checkpoint is said with the parameters of :class:`MovingOperator`: ``pending_batch``,
    ``sink``, ``sink_location``, ``allow_state`` and ``quiet_period``.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.receipt`): plain JSON with the offsets
    before and after. It is stored before the first write. On Airflow 3.3 and later a retry still shows the offsets
    from before the first try; earlier versions keep nothing of a task's own over a retry.

    :param to_offset: a number for every partition; offsets, ``{"topic": {"0": 42}}``; ``earliest``,
        ``latest`` or ``current``. (templated)
    :param to_datetime: each partition's first record at or after this time, else its log end; ISO 8601, UTC
        where no zone is given. (templated)
    :param shift_by: number of offsets to move by, negative for back. (templated)
    :param by_duration: as ``to_datetime``, for now less this duration: a timedelta, or ISO 8601 such as
        ``P1DT2H``. (templated)
    :param from_file: URI of a file in Kafka's CSV: ``topic,partition,offset``, or
        ``group,topic,partition,offset``. (templated)
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an offset outside the log or a time in the future. (templated)
    :param on_no_commit: where a partition without a commit stands, for ``shift_by`` and ``current``: ``fail``
        (default), ``earliest``, ``latest``, or ``skip`` the partition. (templated)
    :param plan_only: show the plan and return it, but change nothing. A plan that would be refused fails.
    """

    template_fields: Sequence[str] = (
        *MovingOperator.template_fields,
        *SCENARIOS,
        "on_out_of_range",
        "on_no_commit",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **MovingOperator.template_fields_renderers,
        "to_offset": "json",
    }

    def __init__(
        self,
        *,
        to_offset: int | str | Mapping[str, Mapping[str, int]] | None = None,
        to_datetime: datetime | str | None = None,
        shift_by: int | str | None = None,
        by_duration: timedelta | str | None = None,
        from_file: str | None = None,
        on_out_of_range: OutOfRangePolicy = "fail",
        on_no_commit: MissingCommitPolicy = "fail",
        plan_only: bool = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        # Two runs that move one group at once would each overwrite what the other is about to read.
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.to_offset = to_offset
        self.to_datetime = to_datetime
        self.shift_by = shift_by
        self.by_duration = by_duration
        self.from_file = from_file
        self.on_out_of_range = on_out_of_range
        self.on_no_commit = on_no_commit
        self.plan_only = plan_only

    def may_be_nothing(self, name: str, template: object) -> bool:  # noqa: ARG002
        """Whether it is a scenario: a DAG's ``params`` fill in one of them, see :func:`exactly_one`."""
        return name in SCENARIOS

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the group, and return the receipt."""
        with self.refusing():
            return self._execute(context)

    def _execute(self, context: Context) -> dict[str, Any]:
        work, has_work = self._cleared_work(context)
        scenario = parse_scenario(*exactly_one({name: getattr(self, name) for name in SCENARIOS}))
        named = Groups.parse(self.group_id, self.topics)
        metadata = commit_metadata(context)
        checkpoint = self.open_checkpoint()
        images = BeforeImages(context)
        with self.open_client() as client:
            if work is not None:
                receipt = self._kept(client, checkpoint, work, metadata)
                push_result(context, receipt)
                return receipt
            policies: dict[str, Any] = {
                "now": datetime.now(tz=timezone.utc),
                "on_out_of_range": one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range"),
                "on_no_commit": one_of(self.on_no_commit, MissingCommitPolicy, "on_no_commit"),
                "by": metadata,
                # Of a recovery that was cleared before its work was committed nobody has gone on from here.
                "interrupted": images.interrupted or has_work or None,
            }
            if checkpoint is None:
                plan = PipelinePlan(plan_resets(client, named.scopes(), scenario, **policies))
            else:
                plan = plan_pipeline_reset(
                    client, checkpoint, named, scenario, policy=self.checkpoint_policy(), **policies
                )
            moves = not (self.plan_only or plan.refused)
            if moves:
                plan = images.keep(plan, client, metadata, goes_on=has_work)
            receipt = self.carry_out(
                context,
                client,
                plan,
                metadata,
                checkpoint=checkpoint,
                quiet_period=self.quiet_period,
                plan_only=self.plan_only,
            )
            if moves:
                images.finish()
            return receipt

    def _cleared_work(self, context: Context) -> tuple[Work | None, bool]:
        """
        Return the tasks after this one, if some have succeeded already, and whether there are any.

        If some have succeeded, this one was cleared without them.

        :raises PlanRefusedError: if tasks are to be cleared as well.
        """
        if self.plan_only or not hasattr(context.get("ti"), "get_task_states") or not self.has_dag():  # type: ignore[no-untyped-call]
            return None, False
        work = work_between(context, self, None, without=self._movers())
        if not work.done:
            return None, bool(work.states)
        if work.cut_off:
            raise PlanRefusedError(
                [
                    f"{', '.join(work.cut_off)} succeeded in this run, and was not cleared with what comes before it: nobody "
                    "would read again what this task moves. Clear it as well (with Downstream), or trigger a new run"
                ]
            )
        return work, True

    def _kept(
        self, client: OffsetsClient, checkpoint: SparkCheckpoint | None, work: Work, metadata: CommitMetadata
    ) -> dict[str, Any]:
        """
        Return the receipt of a reset that moves nothing, because its work was done and is not cleared.

        :raises PlanRefusedError: if the work was not finished by a commit.
        """
        named = Groups.parse(self.group_id, self.topics)
        sources = None if checkpoint is None else checkpoint.read().kafka_offsets
        positions = {
            group: group_positions(client, group, partitions)
            for group, partitions in named.scopes(sources).items()
        }
        movers = identities(metadata, {self.task_id, *self._movers()})
        unfinished = [
            group
            for group, partitions in positions.items()
            if not is_finished(
                last_commits(client, group, (tp for tp, at in partitions.items() if at is not None)),
                {},
                movers,
            )
        ]
        if unfinished:
            raise PlanRefusedError(
                [
                    f"{', '.join(work.done)} succeeded in this run, and nothing was committed to group {', '.join(unfinished)} "
                    "since the reset, or it was taken back: clear "
                    f"{'it' if len(work.done) == 1 else 'them'} as well, or trigger a new run"
                ]
            )
        targets = {
            group: {tp: offset for tp, offset in partitions.items() if offset is not None}
            for group, partitions in positions.items()
        }
        plan = PipelinePlan(plan_moves(client, targets, source={"kept": work.done}, on_out_of_range="skip"))
        self.log.info(
            "Nothing is moved: %s succeeded in this run, was committed, and was not cleared with %s. To read it all again, "
            "clear it too",
            ", ".join(work.done),
            self.task_id,
        )
        return plan.receipt(verified=True)

    def _movers(self) -> list[str]:
        """Return the other tasks of the DAG that reset or restore."""
        return [name for name in tasks_that_move(self) if name != self.task_id]


class BeforeImages:
    """
    What the groups held before the first write, over retries and Clears of the task.

    Airflow forgets a task's XCom when it retries; what is to be restored is what was there at first. Airflow 3.3 keeps
    a task's state: there it is also known whether an earlier try has stopped half-way.

    :param context: of the task.
    """

    _KEY = "kafka_offsets.before"

    def __init__(self, context: Context) -> None:
        self._store: Any = context.get("task_state_store")
        self._mark = clear_mark(context)
        kept = self._store.get(self._KEY) if self._store is not None else None
        self._kept: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}

    @property
    def interrupted(self) -> bool | None:
        """Whether an earlier try has written and not come to its end; ``None`` if that is not known."""
        return None if self._store is None else bool(self._kept) and not self._kept.get("done")

    def keep(
        self, plan: PipelinePlan, client: OffsetsClient, by: CommitMetadata, *, goes_on: bool
    ) -> PipelinePlan:
        """
        Return the plan with what the groups held before the first write, which is kept from now on.

        :param goes_on: whether the task goes on from its move also after a Clear: tasks come after it.
        """
        if self._store is None:
            return plan
        if self._kept and (goes_on or self.interrupted or self._kept.get("mark") == self._mark):
            known = [group for group in plan.groups if group.group_id in self._kept["groups"]]
            plan = plan.with_before({group.group_id: self._before(group, client, by) for group in known})
        held: Any = {group.group_id: offsets_json(group.before) for group in plan.groups if group.before}
        self._kept = {"mark": self._mark, "groups": held, "done": False}
        self._store.set(self._KEY, self._kept)
        return plan

    def _before(self, plan: OffsetPlan, client: OffsetsClient, by: CommitMetadata) -> Positions:
        """Return what a group held in the partitions that an earlier try has written."""
        first = parse_positions(self._kept["groups"][plan.group_id])
        return {
            tp: first[tp]
            for tp, commit in last_commits(client, plan.group_id, plan.before).items()
            if tp in first and commit is not None and commit.by is not None and commit.by.same_task(by)
        }

    def finish(self) -> None:
        """Note that the task has done all of it."""
        if self._store is not None:
            self._store.set(self._KEY, {**self._kept, "mark": self._mark, "done": True})
