"""Takes a reset back; as a teardown, only if the recovery was not finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator, Context, XComArg

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.lineage import Operation
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.parameters import (
    OutOfRangePolicy,
    RestoreMissingCommitPolicy,
    choice_parser,
    parse_switch,
    parse_text,
)
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.recovery import Recovery
from airflow_kafka_offsets.model.recovery_tasks import RecoveryTasks
from airflow_kafka_offsets.moves.recovery import judge_recovery, plan_of_earlier_restore
from airflow_kafka_offsets.moves.restore import plan_restore_file, plan_restore_receipt
from airflow_kafka_offsets.moves.saved import has_moved
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.moving import MoveContext, PipelineMovingOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, parse_location
from airflow_kafka_offsets.readings.log_checks import current_logs_refusals
from airflow_kafka_offsets.task.outcome import push_result
from airflow_kafka_offsets.task.run_tasks import (
    check_restore,
    commit_identities,
    related_tasks,
    task_states,
    tasks_before_restore,
    tasks_that_move,
)

RestoreWhen = Literal["failed", "always"]

_NOT_RUN = frozenset({None, "skipped", "upstream_failed", "removed"})
"""States of a reset that has moved nothing."""


class RestoreOffsetsOperator(PipelineMovingOperator):
    """
    Take a reset back: move groups and checkpoint to the offsets from before the reset.

    The task is meant as the teardown of a reset, so that a failed recovery leaves all offsets unchanged::

        reset = ResetOffsetsOperator(task_id="reset", to_datetime="{{ params.since }}", **orders)
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, **orders)
        reset >> spark >> commit >> restore.as_teardown(setups=reset)

    As a teardown (``restore_when="failed"``), the task compares the current position of each group and
    checkpoint in the receipt with the position before the reset. The recovery is finished if both have passed
    that position, and if the reset's move is still the newest one. Only finished batches count, and only
    commits that are not from a reset or restore. If the recovery is not finished, the task restores each
    group and checkpoint that is still at the reset's move, lists those that it could not restore, and fails.
    The states of the tasks in between do not count, because users can mark and clear them in Airflow.

    The run of a failed recovery always fails: this task fails after it has restored, and whenever an upstream
    task has failed. :meth:`as_teardown` ensures that the run then fails too. The receipt is in XCom in
    either case. The task does not run if the reset itself is stopped half-way, after ``dagrun_timeout``, or
    if the run is deleted. Drift checks report the drift that remains in these cases.

    When the DAG is parsed, these teardowns are refused: a teardown whose failure would not fail the run, and
    a teardown of a reset that is not in its receipt.

    If the Spark query has not run since the reset, the checkpoint's files are restored unchanged. If the
    query has run, the checkpoint is moved to its earlier offsets: the offsets are the same, the files are
    not. The job's output stays written. A commit of a partition that had none before cannot be removed.

    Without a receipt (the reset was skipped, or only showed its plan) the task changes nothing and logs it.

    The parameters of :class:`PipelineMovingOperator` determine how the checkpoint may be changed. A failed
    job usually leaves an unfinished batch: ``on_pending_batch="discard"`` with the ``sink`` lets the restore
    remove it.

    Returns the receipt of the restore, or ``None`` if nothing had to be restored.

    :param receipt: result of the reset, usually ``reset.output``. The whole receipt is restored; ``topics``
        does not limit it. The receipt of a task names the pipeline, so ``group_id`` and the other names
        may be left out. (templated)
    :param from_file: instead of a receipt, URI of a file in Kafka's CSV with the offsets to restore, such as
        an archive's ``before.csv`` or a file from ``group reset --save``. (templated)
    :param restore_when: ``failed`` (default) restores only if the recovery is not finished, and then fails;
        ``always`` restores in any case, and fails only as a teardown after a failed task. (templated)
    :param allow_stale: with ``restore_when="always"``: whether to take back a reset that was followed by a
        later move of the checkpoint or group, or by batches and commits of other runs beyond the reset.
        (templated)
    :param on_no_commit: action for a partition that had no commit: ``skip`` (default) leaves its offset
        unchanged, ``earliest`` moves it to the log start; only with a receipt. (templated)
    :param on_out_of_range: action for an offset that is now outside the log: ``fail`` (default), ``clamp`` to
        the nearer end of the log, or ``skip`` the partition. (templated)
    :param allow_new_cluster: whether to restore although the receipt is of another cluster, or of a topic
        that was created again. Set this only if the offsets are right there. (templated)
    """

    operation: ClassVar[Operation] = "restore"
    needs_group: ClassVar[bool] = False
    """The receipt of a task names the group itself."""
    parsers: ClassVar[Mapping[str, Parser]] = {
        **PipelineMovingOperator.parsers,
        "receipt": lambda value, name: Receipt.parse(
            load_json(parse_text(value, name), name, "a receipt") if isinstance(value, str) else value
        ),
        "from_file": partial(parse_location, conn_parameter=None),
        "restore_when": choice_parser(RestoreWhen),
        "on_no_commit": choice_parser(RestoreMissingCommitPolicy),
        "on_out_of_range": choice_parser(OutOfRangePolicy),
        "allow_new_cluster": parse_switch,
        "allow_stale": parse_switch,
    }
    template_fields: Sequence[str] = (*PIPELINE_PARAMETERS, *parsers)

    def __init__(
        self,
        *,
        receipt: Mapping[str, Any] | str | XComArg | None = None,
        from_file: str | XComArg | None = None,
        restore_when: RestoreWhen | str = "failed",
        on_no_commit: RestoreMissingCommitPolicy | str = "skip",
        on_out_of_range: OutOfRangePolicy | str = "fail",
        allow_new_cluster: bool | str = False,
        allow_stale: bool | str = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.receipt: Any = receipt
        self.from_file: Any = from_file
        self.restore_when = restore_when
        self.on_no_commit = on_no_commit
        self.on_out_of_range = on_out_of_range
        self.allow_new_cluster = allow_new_cluster
        self.allow_stale = allow_stale
        if receipt is None and from_file is None:
            raise self.parameter_error("nothing to restore: give receipt, usually reset.output, or from_file")
        if receipt is not None and from_file is not None:
            raise self.parameter_error("receipt and from_file are both given: give only one")
        if self.group_id is None and receipt is None:
            raise self.missing_group()
        if from_file is not None:
            self.refuse_unused("with from_file, which has no partition without a commit", "on_no_commit")
            self.refuse_unused("with from_file, which does not record a move", "allow_stale")
        if restore_when == "failed":
            self.refuse_unused("with restore_when='failed', which needs no permission for it", "allow_stale")
        self.check_parameters()

    def check_checkpoint_parameters(self) -> None:
        """Check what concerns a checkpoint, unless the receipt names it."""
        if self.group_id is not None:
            super().check_checkpoint_parameters()

    def may_render_blank(self, name: str, template: object) -> bool:
        """Return whether the parameter is the receipt of a skipped reset, which has no output."""
        skipped = name == "receipt" and isinstance(template, XComArg) and self.receipt is None
        return skipped or super().may_render_blank(name, template)

    def prepare_template(self) -> None:
        """Check the whole DAG: Airflow has parsed it when it calls this method."""
        super().prepare_template()
        if self.is_teardown:
            check_restore(self)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Restore the overwritten offsets, and return the receipt of the restore."""
        with self.run_checked():
            always = self.parse_parameter("restore_when") == "always"
            restored = self._restore(context, None if always else tasks_before_restore(context, self))
            # Airflow takes the run's state from a teardown that can fail the run, and not from the tasks
            # before it. An instance of a mapped task does not know whether it can.
            decides = always and self.is_teardown and self.dag.get_task(self.task_id).on_failure_fail_dagrun
            if decides and (work := related_tasks(context, self, upstream=True)).failed:
                raise AirflowFailException(
                    f"a task before this one has failed ({work.describe(work.failed)}), so this task fails "
                    "after the restore (see above), and the run with it"
                )
            return restored

    def _restore(self, context: Context, work: RecoveryTasks | None) -> dict[str, Any] | None:
        """Restore, with ``work`` only a recovery that its tasks have not finished; return the receipt."""
        receipt = None if self.receipt is None else self.parse_parameter("receipt")
        if self._nothing_moved(context, receipt):
            if work is not None and work.failed:
                outcome = "nothing was put back: the receipt is of a plan that was only shown"
                if receipt is None:
                    outcome = (
                        "nothing was put back: there is no receipt, as if the reset has not run; if a reset "
                        "ran under an earlier name, a drift check names how to take its move back"
                    )
                raise self._failed(work.describe(work.failed), outcome)
            return None
        self.take_names({} if receipt is None else receipt.names, context)
        checkpoint, metadata = self.open_checkpoint(), self.move_metadata(context)
        with self.open_client() as client:
            move = MoveContext(context, client, checkpoint, metadata)
            if receipt is None:
                return self._restore_file(move, work)
            if work is None:
                return self._restore_receipt(move, receipt)
            self._restore_unfinished(move, receipt, work)
            return None

    def _restore_unfinished(self, move: MoveContext, receipt: Receipt, work: RecoveryTasks) -> None:
        """
        Restore a recovery that was not finished; leave a finished one unchanged.

        :raises AirflowFailException: if the recovery was not finished, or one of its tasks has failed.
        """
        if not self.parse_parameter("allow_new_cluster"):
            # The commits of another cluster do not show that this recovery was finished.
            moved_on = LogIds(receipt.log_ids.cluster)
            PlanRefusedError.raise_if(current_logs_refusals(move.client, "the receipt", moved_on))
        recovery = self._recovery(move.context, move.metadata)
        judged = judge_recovery(move.client, move.checkpoint, receipt, recovery)
        if judged.is_finished:
            passed = "; ".join(f"{name} has passed its earlier position" for name in judged.passed)
            passed = passed or "the reset moved nothing"
            self.log.info("Nothing to restore: %s", passed)
            if work.failed:
                raise AirflowFailException(
                    f"a task of the recovery has failed ({work.describe(work.failed)}), so this task fails, "
                    f"and the run with it: {passed}, and nothing was put back"
                )
            return
        restored = None
        if judged.to_restore:
            restored = self._restore_receipt(move, judged.receipt_to_restore(receipt))
        # An earlier try has restored everything: rebuild its receipt for this try's XCom.
        if restored is None and judged.restored:
            self._repeat_earlier_restore(move, receipt)
        states = [work.describe(work.not_succeeded)] if work.not_succeeded else []
        outcome = judged.describe_outcome(receipt, None if restored is None else Receipt.parse(restored))
        raise self._failed("; ".join([*judged.shortfalls, *states]), outcome)

    def _recovery(self, context: Context, metadata: CommitMetadata) -> Recovery:
        """Return how the commits of the recovery's tasks identify them."""
        moved_by = self._setups or set(tasks_that_move(self)) - {self.task_id}
        # A restore that is mapped over receipts is numbered by these: an instance of the reset that has
        # failed or was skipped has none.
        instances = max(map(len, task_states(context, self, moved_by).states.values()), default=0)
        resets = commit_identities(metadata, moved_by, instances)
        return Recovery(resets, metadata, self.selection().group_ids)

    def _nothing_moved(self, context: Context, receipt: Receipt | None) -> bool:
        """
        Return whether nothing was moved, and log the reason.

        :raises PlanRefusedError: if there is no receipt, although a reset has run.
        """
        if receipt is None and self.from_file is None:
            # A retry has lost the receipt of the try before it, so a failed reset may have moved too.
            named = XComArg.iter_xcom_references((self._templates or {}).get("receipt"))
            movers = {task.task_id for task, _ in named}.intersection(tasks_that_move(self))
            resets = task_states(context, self, {*self._setups, *movers})
            if done := [name for name, states in resets.states.items() if not _NOT_RUN.issuperset(states)]:
                raise PlanRefusedError(
                    f"{', '.join(done)} has run and has left no receipt ({resets.describe(done)}), so "
                    "nothing is put back. A reset that fails before its first write leaves none. If its log "
                    "shows a move, put this pipeline back with 'airflow-kafka-offsets group restore' and the "
                    "archive below its checkpoint, and let the reset push its XCom (do_xcom_push)"
                )
            self.log.info("Nothing to restore: there is no receipt, as if the reset has not run")
            return True
        if receipt is not None and receipt.plan_only:
            self.log.info("Nothing to restore: the receipt is of a plan that was only shown (plan_only)")
            return True
        return False

    def _failed(self, why: str, outcome: str) -> AirflowFailException:
        why = why and f" ({why})"
        return AirflowFailException(
            f"the recovery was not finished{why}, so this task fails, and the run with it: {outcome}"
        )

    def _restore_file(self, move: MoveContext, work: RecoveryTasks | None) -> dict[str, Any] | None:
        """Restore the offsets in ``from_file``; if it depends on tasks, only unless all have succeeded."""
        # A file does not record what was moved, so the states of the tasks decide.
        if work is not None and not work.not_succeeded:
            self.log.info("Nothing to restore: every task upstream has succeeded (restore_when='failed')")
            return None
        file = self.parse_parameter("from_file")
        plan = plan_restore_file(move.client, file, move.checkpoint, self.selection(), **self._permissions())
        restored = self._apply(move, plan)
        if work is not None:
            raise self._failed(work.describe(work.not_succeeded), f"{self.from_file} was put back")
        return restored

    def _restore_receipt(self, move: MoveContext, receipt: Receipt) -> dict[str, Any] | None:
        """Restore a receipt; return the receipt of the restore, ``None`` if nothing was moved."""
        if again := self._repeat_earlier_restore(move, receipt):
            return again
        if receipt.checkpoint is None:
            move = move._replace(checkpoint=None)
        always = self.parse_parameter("restore_when") == "always"
        # The receipt of a saved plan is stored before the first write: the plan may have moved nothing.
        unproven = always and receipt.plan and not receipt.verified
        if unproven and not has_moved(move.client, move.checkpoint, receipt):
            self.log.info("Nothing to restore: the receipt is of a plan that was not applied")
            return None
        plan = plan_restore_receipt(
            move.client,
            receipt,
            move.checkpoint,
            self.selection(),
            metadata=move.metadata,
            same_run=not self.upstream_task_ids.isdisjoint(tasks_that_move(self)),
            # A teardown must also take back a recovery that has made progress without finishing.
            allow_stale=not always or self.parse_parameter("allow_stale"),
            **self.parse_parameters("on_no_commit"),
            **self._permissions(),
        )
        return self._apply(move, plan)

    def _permissions(self) -> dict[str, Any]:
        """Return what the restore may do, whatever it restores."""
        allowed = self.parse_parameters("on_out_of_range", "allow_new_cluster")
        return {**allowed, "policy": self.checkpoint_policy()}

    def _apply(self, move: MoveContext, plan: PipelinePlan) -> dict[str, Any]:
        """Apply a plan, and push its receipt, which is then in XCom even if this task fails."""
        # A teardown does not fail if there is nothing to restore.
        restored = self.apply_pipeline_plan(move, replace(plan, may_be_empty=True))
        push_result(move.context, restored)
        return restored

    def _repeat_earlier_restore(self, move: MoveContext, receipt: Receipt) -> dict[str, Any] | None:
        """Return and push the receipt of an earlier try that has restored everything; nothing is written."""
        # A second restore could overwrite commits that other clients have made since the first one.
        done = plan_of_earlier_restore(move.client, move.checkpoint, receipt, move.metadata)
        if done is None:
            return None
        self.log.info("Nothing is changed: an earlier try of this task has already restored everything")
        return self.repeat_receipt(move.context, done)

    @property
    def _setups(self) -> list[str]:
        """The resets whose teardown this task is."""
        names = self.upstream_task_ids.intersection(tasks_that_move(self))
        return sorted(name for name in names if self.dag.get_task(name).is_setup)

    def as_teardown(
        self,
        *,
        setups: BaseOperator | Iterable[BaseOperator] | None = None,
        on_failure_fail_dagrun: bool | None = True,
    ) -> Self:
        """
        Make this the teardown of a reset.

        :param on_failure_fail_dagrun: whether the run fails if this task fails. With Airflow's default
            (``False``) the run of a failed recovery would succeed.
        """
        super().as_teardown(setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self
