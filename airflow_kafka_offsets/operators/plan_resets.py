"""Plans the resets of many pipelines in one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any, ClassVar

from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.checkpoint_policy import POLICY
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.parameters import exactly_one
from airflow_kafka_offsets.model.place import RESETS
from airflow_kafka_offsets.model.plan_markdown import plans_markdown
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.moves.fleet import plan_all
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.saved import save_plan
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.check_drift import named_pipelines, read_pipelines
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, KafkaPipeline
from airflow_kafka_offsets.readings.places import read_place
from airflow_kafka_offsets.readings.record_times import look_up_times


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
    parsers: ClassVar[Mapping[str, Parser]] = {
        **ResetOffsetsOperator.parsers,
        "pipelines": read_pipelines,
    }
    moves_on_purpose: ClassVar[bool] = False
    calls_timeout: ClassVar[float | None] = None

    def __init__(
        self,
        *,
        pipelines: Sequence[Mapping[str, Any]] | str | XComArg,
        max_active_tis_per_dag: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.pipelines: Any = pipelines
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)

    def check_parameters(self) -> None:
        """Also check that no parameter names a single pipeline, or applies a plan."""
        names = (*PIPELINE_PARAMETERS, "plan", "plan_only", "stop_after_failure")
        self.refuse_unused("with pipelines, also from default_args", *names)
        self.refuse_unused("by a plan: give it to the reset that applies it", "quiet_period")
        super().check_parameters()

    def check_checkpoint_parameters(self) -> None:
        """Check nothing: the checkpoint is a name of each pipeline."""

    def check_names(self) -> None:
        """Check nothing: each pipeline names its group and its checkpoint."""

    def execute(self, context: Context) -> Any:
        """Plan each pipeline, and return the plans."""
        with self.run_checked(), ExitStack() as clients:
            place = read_place(*exactly_one({name: getattr(self, name) for name in RESETS}))
            now, by = datetime.now(tz=timezone.utc), self.move_metadata(context)
            allowed = self._permissions()
            pipelines = named_pipelines(self, context)
            client_of = self.open_each(clients)
            checkpoints: dict[int, SparkCheckpoint | KafkaOffsetsError | None] = {}
            # Airflow's connections are looked up in the task's own thread.
            for pipeline in pipelines:
                location = pipeline.checkpoint_location
                try:
                    client_of(pipeline.kafka_config_id)
                    checkpoints[id(pipeline)] = (
                        spark_checkpoint(location, pipeline.checkpoint_conn_id) if location else None
                    )
                except KafkaOffsetsError as error:
                    checkpoints[id(pipeline)] = error

            def plan(pipeline: KafkaPipeline) -> SavedPlan:
                checkpoint = checkpoints[id(pipeline)]
                if isinstance(checkpoint, KafkaOffsetsError):
                    raise checkpoint
                client = client_of(pipeline.kafka_config_id)
                made = plan_reset(
                    client,
                    checkpoint,
                    GroupSelection.parse(pipeline.group_id, pipeline.topics),
                    place,
                    now=now,
                    metadata=by,
                    **allowed,
                )
                made.check()
                made = look_up_times(client, made)
                named: Mapping[str, Any] = {name: plain_names(value) for name, value in pipeline.items()}
                how = {name: allowed[name] for name in ("policy", "allow_new_cluster")}
                return save_plan(client, checkpoint, made, Names(**named), now=now, **how)

            plans = plan_all(pipelines, plan, lambda pipeline: f"group {shorten(pipeline.group_id)}")
            plans = [self.with_triggered(context, saved) for saved in plans]
            self.log.info("%s", plans_markdown(plans))
            return [dict(saved.value) for saved in plans]
