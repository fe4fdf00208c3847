"""How is a consumer group moved somewhere else on purpose?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.hooks.failures import failing_at_once
from airflow_kafka_offsets.kafka.resets import parse_scenario, plan_resets
from airflow_kafka_offsets.model.offsets import offsets_json, parse_positions
from airflow_kafka_offsets.model.plan import OffsetPlan, OutOfRangePolicy, one_of
from airflow_kafka_offsets.model.scenarios import NoCommit, exactly_one
from airflow_kafka_offsets.model.scope import TopicScope, group_scopes, parse_group_id
from airflow_kafka_offsets.operators.base import OffsetsOperator, commit_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context

SCENARIOS = ("to_offset", "to_datetime", "shift_by", "by_duration", "from_file")


class ResetOffsetsOperator(OffsetsOperator):
    """
    Move the offsets of a consumer group.

    Exactly one of ``to_offset``, ``to_datetime``, ``shift_by``, ``by_duration`` and ``from_file`` says where to;
    empty text counts as not given, so that a DAG's ``params`` can drive it. Only the group moves: a Spark query
    reads its checkpoint and never the group. A pipeline with a ``checkpoint_location`` is therefore refused; give
    ``checkpoint_location=None`` to move the group alone.

    Refused, with nothing changed: a group with members; a partition that the broker does not have; an offset
    outside the log, unless ``on_out_of_range`` says otherwise.

    A retry does not move twice: what an earlier try of the same task run has moved is left alone by
    ``shift_by``, ``by_duration`` and ``to_offset="latest"``. Clearing the task moves again.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.plan.receipt`): plain JSON with the offsets
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
        *OffsetsOperator.template_fields,
        *SCENARIOS,
        "on_out_of_range",
        "on_no_commit",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **OffsetsOperator.template_fields_renderers,
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

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the group, and return the receipt."""
        with failing_at_once():
            return self._execute(context)

    def _execute(self, context: Context) -> dict[str, Any]:
        if self.checkpoint_location:
            raise UsageError(
                "checkpoint_location is given, and only the group can be moved: the Spark query would go on from its "
                "checkpoint as if nothing had happened; give checkpoint_location=None to move the group alone"
            )
        scenario = parse_scenario(*exactly_one({name: getattr(self, name) for name in SCENARIOS}))
        scopes = group_scopes(parse_group_id(self.group_id), TopicScope.parse(self.topics))
        metadata = commit_metadata(context)
        with self.open_client() as client:
            plans = plan_resets(
                client,
                scopes,
                scenario,
                now=datetime.now(tz=timezone.utc),
                on_out_of_range=one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range"),
                on_no_commit=one_of(self.on_no_commit, NoCommit, "on_no_commit"),
                token=metadata.token,
            )
            if not self.plan_only and not any(plan.refusals for plan in plans):
                plans = keep_first_before(context, plans)
            return self.carry_out(context, client, plans, metadata, plan_only=self.plan_only)


def keep_first_before(context: Context, plans: Sequence[OffsetPlan]) -> list[OffsetPlan]:
    """
    Keep what the groups held before the first try, and give it to the plans of a retry.

    Airflow forgets a task's XCom when it retries; what is to be restored is what was there at first.
    """
    store = context.get("task_state_store")
    if store is None:
        return list(plans)
    key = f"kafka_offsets.before.{getattr(context.get('dag_run'), 'clear_number', 0) or 0}"
    kept: Any = store.get(key)
    if not isinstance(kept, Mapping):
        held: Any = {plan.group_id: offsets_json(plan.before) for plan in plans if plan.before}
        store.set(key, held)
        return list(plans)
    result = []
    for plan in plans:
        before = parse_positions(kept[plan.group_id]) if plan.group_id in kept else {}
        moves = tuple(
            replace(move, before=before.get(move.topic_partition, move.before)) for move in plan.moves
        )
        result.append(replace(plan, moves=moves))
    return result
