"""How is a reset taken back, by itself when what came after it failed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import XComArg

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.joint.restore import plan_restore_file, plan_restore_receipt
from airflow_kafka_offsets.model.joint import JointPlan
from airflow_kafka_offsets.model.offsets import load_json
from airflow_kafka_offsets.model.plan import OutOfRangePolicy, one_of
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.scenarios import RestoreNoCommit
from airflow_kafka_offsets.model.scope import TopicScope, parse_group_id
from airflow_kafka_offsets.operators.base import RewindingOperator, commit_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

When = Literal["failed", "always"]


class RestoreOffsetsOperator(RewindingOperator):
    """
    Take a reset back: put groups and checkpoint to the offsets that they had before.

    Made to be the teardown of a reset, so that a recovery that fails leaves everything where it was::

        reset = ResetOffsetsOperator(task_id="reset", to_datetime="{{ params.since }}", **orders)
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, **orders)
        reset >> spark >> commit >> restore.as_teardown(setups=reset)

    A failed run stays a failed run: Airflow leaves teardowns out when it looks at how a run ended. (A plain task
    with ``trigger_rule="one_failed"`` at the end would turn it green.)

    If the Spark query has not run since the reset, the checkpoint's files come back as they were; if it has, the
    checkpoint is moved to the offsets that it had. The same offsets come back, not the same bytes; what the job has
    written meanwhile stays written. A partition that had no commit cannot be made to have none again.

    Without a receipt (the reset was skipped, or only showed its plan) it does nothing and says so.

    What may happen to the checkpoint is said with the parameters of :class:`RewindingOperator`. A job that failed
    usually leaves an unfinished batch: ``pending_batch="discard"`` with the ``sink`` lets the restore remove it.

    Returns the receipt of the restore, or ``None`` if there was nothing to do.

    :param receipt: what the reset returned, usually ``reset.output``. (templated)
    :param from_file: in place of a receipt, URI of a file in Kafka's CSV with the offsets to put back, such as the
        ``before.csv`` of an archive or what ``group reset --save`` wrote. (templated)
    :param when: ``failed`` (default) restores only if a task upstream of this one failed in this run; ``always``
        restores in any case. (templated)
    :param on_no_commit: for a partition that had no commit: ``skip`` (default) leaves it where it is, ``earliest``
        moves it to its log start. (templated)
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an offset that is outside the log by now. (templated)
    """

    template_fields: Sequence[str] = (
        *RewindingOperator.template_fields,
        "receipt",
        "from_file",
        "when",
        "on_no_commit",
        "on_out_of_range",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **RewindingOperator.template_fields_renderers,
        "receipt": "json",
    }

    def __init__(
        self,
        *,
        receipt: Mapping[str, Any] | str | None = None,
        from_file: str | None = None,
        when: When = "failed",
        on_no_commit: RestoreNoCommit = "skip",
        on_out_of_range: OutOfRangePolicy = "fail",
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.receipt = receipt
        self.from_file = from_file
        self.when = when
        self.on_no_commit = on_no_commit
        self.on_out_of_range = on_out_of_range

    def may_be_nothing(self, name: str, template: object) -> bool:
        """Whether it is the output of a reset that was skipped, and so has none."""
        return name == "receipt" and isinstance(template, XComArg) and self.receipt is None

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Put back what was overwritten, and return the receipt of that."""
        with self.refusing():
            return self._execute(context)

    def _execute(self, context: Context) -> dict[str, Any] | None:
        when = one_of(self.when, When, "when")
        if self.receipt is not None and self.from_file is not None:
            raise UsageError("receipt and from_file are both given: give one of them")
        if self.receipt is None and self.from_file is None:
            self.log.info("Nothing to restore: there is no receipt, so nothing was moved")
            return None
        if when == "failed" and not self._something_failed(context):
            self.log.info("Nothing to restore: no task upstream has failed (when='failed')")
            return None
        metadata = commit_metadata(context)
        checkpoint = self.open_checkpoint()
        with self.open_client() as client:
            plan = self._plan(client, checkpoint)
            if plan is None:
                return None
            return self.carry_out(
                context, client, plan, metadata, checkpoint=checkpoint, quiet_period=self.quiet_period
            )

    def _plan(self, client: OffsetsClient, checkpoint: SparkCheckpoint | None) -> JointPlan | None:
        group_id, policy = parse_group_id(self.group_id), self.rewind_policy()
        on_out_of_range = one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range")
        if self.from_file is not None:
            return plan_restore_file(
                client,
                self.from_file,
                checkpoint,
                group_id,
                scope=TopicScope.parse(self.topics),
                on_out_of_range=on_out_of_range,
                policy=policy,
            )
        receipt = load_json(self.receipt, "receipt") if isinstance(self.receipt, str) else self.receipt
        if any(group.plan_only for group in read_receipt(receipt)):
            self.log.info("Nothing to restore: the receipt is of a plan that was only shown (plan_only)")
            return None
        return plan_restore_receipt(
            client,
            receipt,
            checkpoint,
            group_id,
            on_out_of_range=on_out_of_range,
            on_no_commit=one_of(self.on_no_commit, RestoreNoCommit, "on_no_commit"),
            policy=policy,
        )

    def _something_failed(self, context: Context) -> bool:
        """Whether a task upstream of this one has failed in this run, or could not run for that reason."""
        ti = context["ti"]
        upstream = sorted(self.get_flat_relative_ids(upstream=True))
        if not upstream:
            raise UsageError(
                f"task {self.task_id} has no task upstream that could have failed: make it the teardown of the reset, or set "
                "when='always'"
            )
        count = ti.get_ti_count(
            dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=upstream, states=["failed", "upstream_failed"]
        )
        return bool(count)
