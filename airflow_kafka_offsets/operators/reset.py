"""How is a consumer group moved somewhere else on purpose?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.hooks.failures import failing_at_once
from airflow_kafka_offsets.kafka.resets import plan_resets
from airflow_kafka_offsets.model.plan import OutOfRangePolicy, one_of
from airflow_kafka_offsets.model.scenarios import ToDatetime, ToOffset, exactly_one
from airflow_kafka_offsets.model.scope import TopicScope, group_scopes, parse_group_id
from airflow_kafka_offsets.operators.base import OffsetsOperator, commit_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context


class ResetOffsetsOperator(OffsetsOperator):
    """
    Move the offsets of a consumer group.

    Exactly one of ``to_offset`` and ``to_datetime`` says where to; empty text counts as not given, so that a
    DAG's ``params`` can drive it. Only the group moves: a Spark query reads its checkpoint and never the
    group. A pipeline with a ``checkpoint_location`` is therefore refused; give ``checkpoint_location=None`` to
    move the group alone.

    Refused, with nothing changed: a group with members; a partition that the broker does not have; an offset
    outside the log, unless ``on_out_of_range`` says otherwise.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.plan.receipt`): plain JSON with the offsets
    before and after. It is stored before the first write.

    :param to_offset: a number for every partition; offsets, ``{"topic": {"0": 42}}``; ``earliest``,
        ``latest`` or ``current``. (templated)
    :param to_datetime: each partition's first record at or after this time, else its log end; ISO 8601, UTC
        where no zone is given. (templated)
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an offset outside the log or a time in the future. (templated)
    :param plan_only: show the plan and return it, but change nothing. A plan that would be refused fails.
    """

    template_fields: Sequence[str] = (
        *OffsetsOperator.template_fields,
        "to_offset",
        "to_datetime",
        "on_out_of_range",
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
        on_out_of_range: OutOfRangePolicy = "fail",
        plan_only: bool = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        # Two runs that move one group at once would each overwrite what the other is about to read.
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.to_offset = to_offset
        self.to_datetime = to_datetime
        self.on_out_of_range = on_out_of_range
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
        policy = one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range")
        name, value = exactly_one({"to_offset": self.to_offset, "to_datetime": self.to_datetime})
        scenario = ToOffset.parse(value) if name == "to_offset" else ToDatetime.parse(value)
        scopes = group_scopes(parse_group_id(self.group_id), TopicScope.parse(self.topics))
        with self.open_client() as client:
            plans = plan_resets(
                client, scopes, scenario, now=datetime.now(tz=timezone.utc), on_out_of_range=policy
            )
            return self.carry_out(context, client, plans, commit_metadata(context), plan_only=self.plan_only)
