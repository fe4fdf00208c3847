"""Plans the resets of many pipelines in one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.checkpoint_policy import POLICY
from airflow_kafka_offsets.model.parameters import exactly_one
from airflow_kafka_offsets.model.place import RESETS
from airflow_kafka_offsets.model.plan_markdown import plans_markdown
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.check_drift import named_pipelines, plain_pipelines, read_pipelines
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS
from airflow_kafka_offsets.readings.places import read_place


class PlanResetsOperator(ResetOffsetsOperator):
    """
    Plan to move each of many pipelines to the same target. Nothing is moved.

    Each plan is like one of ``ResetOffsetsOperator(plan_only=True)``, and names its pipeline.
    ``ResetOffsetsOperator.partial(...).expand(plan=plans.output)`` applies the plans, each index with its own
    receipt. The task tries all pipelines before it fails. The error names each pipeline that cannot be moved,
    with the reason.

    :class:`~airflow_kafka_offsets.operators.approve.ApprovePlanOperator` shows all plans in one table with
    one digest.

    Returns the list of plans.

    :param pipelines: a list of :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline`, or of dicts with the
        same keys; planned in one task with one client for each Kafka connection. (templated)
    :param kwargs: the target and the permissions: parameters of
        :class:`~airflow_kafka_offsets.operators.reset.ResetOffsetsOperator`.
    """

    template_fields: Sequence[str] = ("pipelines", *RESETS, *ResetOffsetsOperator.permissions, *POLICY)
    parsers: ClassVar[Mapping[str, Parser]] = {**ResetOffsetsOperator.parsers, "pipelines": read_pipelines}
    moves_on_purpose: ClassVar[bool] = False
    one_at_a_time: ClassVar[bool] = False
    calls_timeout: ClassVar[float | None] = None

    def __init__(
        self,
        *,
        pipelines: Sequence[Mapping[str, Any]] | str | XComArg,
        max_active_tis_per_dag: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.pipelines: Any = plain_pipelines(pipelines)
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)

    def check_parameters(self) -> None:
        """Also check that no parameter names a single pipeline, or applies a plan."""
        names = (*PIPELINE_PARAMETERS, "plan", "plan_only", "stop_after_failure")
        self.refuse_unused("with pipelines, also from default_args", *names)
        self.refuse_unused_unless_default("by a plan: give it to the reset that applies it", "quiet_period")
        super().check_parameters()

    def check_checkpoint_parameters(self) -> None:
        """Check nothing: the checkpoint is a name of each pipeline."""

    def check_names(self) -> None:
        """Check nothing: each pipeline names its group and its checkpoint."""

    def execute(self, context: Context) -> Any:
        """Plan each pipeline, and return the plans."""
        # It also plans failovers, which need the Kafka client: a DAG file must not load it.
        from airflow_kafka_offsets.moves.fleet import plan_fleet_resets

        with self.run_checked(), ExitStack() as clients:
            place = read_place(*exactly_one({name: getattr(self, name) for name in RESETS}))
            client_of = self.open_each(clients)

            def open_one(names: Names) -> tuple[OffsetsClient, SparkCheckpoint | None]:
                location, conn_id = names.checkpoint_location, names.checkpoint_conn_id
                client = client_of(str(names.kafka_config_id))
                return client, spark_checkpoint(location, conn_id) if location else None

            plans = plan_fleet_resets(
                [Names.of(pipeline) for pipeline in named_pipelines(self)],
                open_one,
                place,
                metadata=self.move_metadata(context),
                **self._permissions(),
            )
            plans = [self.with_triggered(context, saved) for saved in plans]
            self.log.info("%s", plans_markdown(plans))
            return [dict(saved.value) for saved in plans]
