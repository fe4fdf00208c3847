"""Takes a reset back, by itself if the recovery after it was not finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import XComArg

from airflow_kafka_offsets.checkpoint.archive import read_archives
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.checkpoint_plan import read_checkpoint_receipt
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.parameters import (
    OutOfRangePolicy,
    RestoreMissingCommitPolicy,
    choice,
    parse_switch,
    parse_text,
)
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.recovery import FAILED, Work
from airflow_kafka_offsets.moves.finished import finished_since
from airflow_kafka_offsets.moves.restore import plan_restore_file, plan_restore_receipt
from airflow_kafka_offsets.operators.base import MovingOperator, commit_metadata
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.task.run_tasks import identities, states_of, tasks_that_move, work_between
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from typing import Self

    from airflow.sdk import BaseOperator, Context

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.operators.base import Reader

When = Literal["failed", "always"]


class RestoreOffsetsOperator(MovingOperator):
    """
    Take a reset back: put groups and checkpoint to the offsets that they had before.

    Made to be the teardown of a reset, so that a recovery that fails leaves everything where it was::

        reset = ResetOffsetsOperator(task_id="reset", to_datetime="{{ params.since }}", **orders)
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, **orders)
        reset >> spark >> commit >> restore.as_teardown(setups=reset)

    As a teardown (``when="failed"``) it looks at the tasks between the reset and itself. If all of them have
    succeeded, there is nothing to restore. If not, because one has failed, was skipped, or the run was given
    up, the reset is taken back, unless the recovery was finished all the same: committed since the reset,
    past where the pipeline was before.

    A failed recovery stays a failed run: after it has restored, and whenever a task upstream has failed, this
    task fails, and the run with it (:meth:`as_teardown` sees to that). Its receipt is in XCom all the same.
    It does not run, and the run may end as a success, if the reset itself is given up half-way: then the
    reset is finished or taken back by whoever comes next.

    If the Spark query has not run since the reset, the checkpoint's files come back as they were; if it has,
    the checkpoint is moved to the offsets that it had. The same offsets come back, not the same bytes; what
    the job has written meanwhile stays written. A partition that had no commit cannot be made to have none
    again.

    Without a receipt (the reset was skipped, or only showed its plan) it does nothing and says so.

    What may happen to the checkpoint is decided by the parameters of :class:`MovingOperator`. A job that
    failed usually leaves an unfinished batch: ``pending_batch="discard"`` with the ``sink`` lets the restore
    remove it.

    Returns the receipt of the restore, or ``None`` if there was nothing to do.

    :param receipt: what the reset returned, usually ``reset.output``. All of it is restored, whatever
        ``topics`` says. (templated)
    :param from_file: in place of a receipt, URI of a file in Kafka's CSV with the offsets to put back, such
        as the ``before.csv`` of an archive or what ``group reset --save`` wrote. (templated)
    :param when: ``failed`` (default) restores only if the tasks since the reset have not all succeeded;
        ``always`` restores in any case, and does not fail for it. (templated)
    :param allow_stale: with ``when="always"``, whether a reset is taken back that others have followed since:
        a later move of the checkpoint, or batches and commits of other runs beyond it. (templated)
    :param on_no_commit: for a partition that had no commit: ``skip`` (default) leaves it where it is,
        ``earliest`` moves it to its log start; only with a receipt. (templated)
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an offset that is outside the log by now. (templated)
    """

    template_fields: Sequence[str] = (
        *MovingOperator.template_fields,
        "receipt",
        "from_file",
        "when",
        "on_no_commit",
        "on_out_of_range",
        "allow_stale",
    )
    readers: ClassVar[Mapping[str, Reader]] = {
        **MovingOperator.readers,
        "receipt": lambda value, name: read_receipt(
            load_json(parse_text(value, name), name) if isinstance(value, str) else value
        ),
        "from_file": partial(parse_location, conn_parameter=None),
        "when": choice(When),
        "on_no_commit": choice(RestoreMissingCommitPolicy),
        "on_out_of_range": choice(OutOfRangePolicy),
        "allow_stale": parse_switch,
    }

    def __init__(
        self,
        *,
        receipt: Mapping[str, Any] | str | XComArg | None = None,
        from_file: str | XComArg | None = None,
        when: When | str = "failed",
        on_no_commit: RestoreMissingCommitPolicy | str = "skip",
        on_out_of_range: OutOfRangePolicy | str = "fail",
        allow_stale: bool | str = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.receipt: Any = receipt
        self.from_file: Any = from_file
        self.when = when
        self.on_no_commit = on_no_commit
        self.on_out_of_range = on_out_of_range
        self.allow_stale = allow_stale
        if receipt is not None and from_file is not None:
            raise self.misused("receipt and from_file are both given: give one of them")
        if receipt is None and from_file is None and when == "always":
            raise self.misused("nothing to restore: give receipt, usually reset.output, or from_file")
        if from_file is not None:
            self.check_unused("with from_file, which has no partition without a commit", on_no_commit="skip")
            self.check_unused("with from_file, which is of no move", allow_stale=False)
        self.check_parameters()

    def may_be_nothing(self, name: str, template: object) -> bool:
        """Whether it is the output of a reset that was skipped, and so has none."""
        return name == "receipt" and isinstance(template, XComArg) and self.receipt is None

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Put back what was overwritten, and return the receipt of that."""
        with self.refusing():
            work = self._work(context) if self.read("when") == "failed" else None
            if work is not None and not work.not_done:
                self._check_not_taken_back(context)
                self.log.info("Nothing to restore: every task since the reset has succeeded (when='failed')")
                return None
            if self.is_teardown and not self.on_failure_fail_dagrun:
                self.log.warning(
                    "The run will not fail with this task: set on_failure_fail_dagrun=True, where "
                    "as_teardown() is that of a mapped task"
                )
            restored = self._restore(context, work)
            if work is not None and (restored is not None or work.failed):
                if restored is not None:
                    push_result(context, restored)
                raise AirflowFailException(
                    f"the recovery was not finished ({work.describe(work.not_done)}), so this task fails, "
                    "and the run with it: "
                    f"{'everything was put back' if restored else 'nothing was put back, see above'}"
                )
            return restored

    def as_teardown(
        self,
        *,
        setups: BaseOperator | Iterable[BaseOperator] | None = None,
        on_failure_fail_dagrun: bool | None = True,
    ) -> Self:
        """
        Make this the teardown of a reset.

        :param on_failure_fail_dagrun: the run fails with this task. Airflow's own default would let a run
            that was given up end as a success.
        """
        super().as_teardown(setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self

    def _restore(self, context: Context, work: Work | None) -> dict[str, Any] | None:
        receipt = self._loaded_receipt
        if receipt is None and self.from_file is None:
            self._check_nothing_moved(context)
            self.log.info("Nothing to restore: there is no receipt, so nothing was moved")
            return None
        if receipt is not None and any(group.plan_only for group in read_receipt(receipt)):
            self.log.info("Nothing to restore: the receipt is of a plan that was only shown (plan_only)")
            return None
        metadata = commit_metadata(context)
        checkpoint = self.open_checkpoint()
        movers = identities(metadata, {self.task_id, *tasks_that_move(self)})
        with self.open_client() as client:
            if work and receipt is not None and finished_since(client, checkpoint, receipt, movers):
                self.log.info(
                    "Nothing to restore: the pipeline was committed since the reset, past where it was "
                    "before (%s)",
                    work.describe(work.not_done),
                )
                return None
            # A teardown does not fail because there is nothing that it could put back.
            plan = replace(self._plan(client, checkpoint, receipt, metadata), may_be_empty=True)
            quiet_period = self.read("quiet_period")
            return self.carry_out(
                context, client, plan, metadata, checkpoint=checkpoint, quiet_period=quiet_period
            )

    @property
    def _loaded_receipt(self) -> Any:
        return load_json(self.receipt, "receipt") if isinstance(self.receipt, str) else self.receipt

    def _check_not_taken_back(self, context: Context) -> None:
        """Refuse a recovery that looks finished when it is cleared, although its reset was taken back."""
        moved = read_checkpoint_receipt(self._loaded_receipt)
        if moved is None or (getattr(context.get("ti"), "try_number", 1) or 1) < 2:
            return
        checkpoint = self.open_checkpoint()
        for archive in () if checkpoint is None else read_archives(checkpoint):
            if archive.name == moved.archive and archive.undone:
                raise PlanRefusedError(
                    f"{moved.location}: move {archive} was taken back, and the reset has not run since, so "
                    "that nothing was read again: clear the reset as well (with Downstream), or trigger a "
                    "new run"
                )

    def _check_nothing_moved(self, context: Context) -> None:
        """Refuse a missing receipt where the reset has succeeded: it has moved something."""
        resets = [
            name
            for name in tasks_that_move(self)
            if name in self.upstream_task_ids and self.dag.get_task(name).is_setup
        ]
        if done := states_of(context, self, resets).done:
            raise PlanRefusedError(
                f"{', '.join(done)} has succeeded and has left no receipt, so that nothing can be put back: "
                "give receipt=, the reset's output, and let the reset push its XCom (do_xcom_push); until "
                "then put the pipeline back with 'airflow-kafka-offsets group restore', from the archive "
                "below its checkpoint"
            )

    def _plan(
        self,
        client: OffsetsClient,
        checkpoint: SparkCheckpoint | None,
        receipt: object,
        metadata: CommitMetadata,
    ) -> PipelinePlan:
        allowed: dict[str, Any] = {
            "on_out_of_range": self.read("on_out_of_range"),
            "policy": self.checkpoint_policy(),
        }
        if self.from_file is not None:
            return plan_restore_file(client, self.from_file, checkpoint, self.named(), **allowed)
        allowed |= {"on_no_commit": self.read("on_no_commit"), "by": metadata}
        allowed["own"] = not self.upstream_task_ids.isdisjoint(tasks_that_move(self))
        # As the teardown of a recovery that has gone on and was not finished, it takes back just that.
        allowed["allow_stale"] = self.read("when") == "failed" or self.read("allow_stale")
        return plan_restore_receipt(client, receipt, checkpoint, self.named(), **allowed)

    def _work(self, context: Context) -> Work:
        """Return the tasks between the reset and this one, and those beside them that have failed."""
        upstream = work_between(context, None, self) if self.upstream_task_ids else Work({}, {})
        if not upstream.states:
            raise UsageError(
                f"task {self.task_id} has no task upstream that could have failed: make it the teardown of "
                "the reset, or set when='always'"
            )
        resets = [task for task in self.upstream_list if task.is_setup]
        between = {name for task in resets for name in task.get_flat_relative_ids(upstream=False)}
        states = {
            name: states
            for name, states in upstream.states.items()
            if not resets or name in between or FAILED.intersection(states)
        }
        return Work(states, upstream.downstream)
