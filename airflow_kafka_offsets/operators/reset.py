"""How is a pipeline moved somewhere else on purpose, its consumer groups and its checkpoint?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.hooks.clears import clear_mark
from airflow_kafka_offsets.joint.reset import plan_joint_reset
from airflow_kafka_offsets.kafka.resets import parse_scenario, plan_resets
from airflow_kafka_offsets.model.joint import JointPlan
from airflow_kafka_offsets.model.offsets import offsets_json, parse_positions
from airflow_kafka_offsets.model.plan import OutOfRangePolicy, one_of
from airflow_kafka_offsets.model.scenarios import NoCommit, exactly_one
from airflow_kafka_offsets.model.scope import TopicScope, group_scopes, parse_group_id
from airflow_kafka_offsets.operators.base import RewindingOperator, commit_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context

SCENARIOS = ("to_offset", "to_datetime", "shift_by", "by_duration", "from_file")


class ResetOffsetsOperator(RewindingOperator):
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
    groups is finished with the offsets it was planned with. Clearing the task moves again.

    What may happen to the checkpoint is said with the parameters of :class:`RewindingOperator`: ``pending_batch``,
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
        *RewindingOperator.template_fields,
        *SCENARIOS,
        "on_out_of_range",
        "on_no_commit",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **RewindingOperator.template_fields_renderers,
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
        on_no_commit: NoCommit = "fail",
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
        scenario = parse_scenario(*exactly_one({name: getattr(self, name) for name in SCENARIOS}))
        group_id, scope = parse_group_id(self.group_id), TopicScope.parse(self.topics)
        metadata = commit_metadata(context)
        checkpoint = self.open_checkpoint()
        with self.open_client() as client:
            policies: dict[str, Any] = {
                "now": datetime.now(tz=timezone.utc),
                "on_out_of_range": one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range"),
                "on_no_commit": one_of(self.on_no_commit, NoCommit, "on_no_commit"),
                "token": metadata.token,
            }
            if checkpoint is None:
                plan = JointPlan(plan_resets(client, group_scopes(group_id, scope), scenario, **policies))
            else:
                plan = plan_joint_reset(
                    client, checkpoint, group_id, scope, scenario, policy=self.rewind_policy(), **policies
                )
            if not (self.plan_only or plan.refused):
                plan = keep_first_before(context, plan)
            return self.carry_out(
                context,
                client,
                plan,
                metadata,
                checkpoint=checkpoint,
                quiet_period=self.quiet_period,
                plan_only=self.plan_only,
            )


def keep_first_before(context: Context, plan: JointPlan) -> JointPlan:
    """
    Keep what the groups held before the first try, and give it to the plan of a retry.

    Airflow forgets a task's XCom when it retries; what is to be restored is what was there at first.
    """
    store = context.get("task_state_store")
    if store is None:
        return plan
    key = f"kafka_offsets.before.{clear_mark(context)}"
    kept: Any = store.get(key)
    if not isinstance(kept, Mapping):
        held: Any = {group.group_id: offsets_json(group.before) for group in plan.groups if group.before}
        store.set(key, held)
        return plan
    return plan.with_before({group: parse_positions(before) for group, before in kept.items()})
