"""Moves a pipeline to a mirror of its Kafka cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.model.failover_plan import DeletedPolicy, FailoverPolicy, UnknownPolicy
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.move_lineage import Operation
from airflow_kafka_offsets.model.parameters import choice_parser, parse_switch
from airflow_kafka_offsets.operators.moving import PipelineMovingOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.operators.base import Parser

_SOURCE_TIMEOUT = 10.0
"""Seconds in which the old cluster must answer; otherwise the failover uses what commits have kept."""


class FailOverOperator(PipelineMovingOperator):
    """
    Move a pipeline to a mirror of its Kafka cluster: its Spark checkpoint, and its groups.

    The task translates the position of the newest committed batch by MirrorMaker's offset syncs, and by the
    last record that the query read, which it finds on the mirror. The log and the receipt show for each
    partition whether the translation is ``exact``, ``safe`` (the query may read some records again; the plan
    shows at most how many), or ``unknown``. The old cluster may be gone: with ``mirror`` in a
    :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline` each commit keeps what the failover needs.

    The move works like a reset: the task checks everything first, keeps what it overwrites in an archive,
    writes the checkpoint before the groups, and reads both back. A retry finishes an interrupted move with
    its planned offsets. Stop the query before the move, and start it with the mirror's brokers and topics.

    Refused, with nothing changed: an unknown position (see ``on_unknown``); a pending batch (see
    ``on_pending_batch``); a query with state, if a partition is not exact (see ``allow_stateful``); a running
    mirror that copies the group's offsets (see ``allow_running_mirror``); a position that the mirror has
    deleted (see ``on_out_of_range``); a group with members.

    To go back, swap the clusters: ``kafka_config_id`` names the cluster to leave, and ``mirror`` the cluster
    to go to.

    Returns the receipt, with the translation under ``failover``, see
    :meth:`~airflow_kafka_offsets.model.failover_plan.FailoverPlan.as_json`.

    :param on_unknown: for a partition whose position on the mirror is unknown: ``fail`` (default), or
        ``earliest`` to read the mirror's whole log of the partition. (templated)
    :param on_out_of_range: for a position that the mirror has deleted: ``fail`` (default), or ``clamp`` to
        continue from the mirror's log start. (templated)
    :param allow_running_mirror: move groups although a running mirror copies their offsets. (templated)
    :param ask_source: whether to ask the old cluster; ``False`` saves the wait if you know that it is gone.
        (templated)
    :param plan_only: show the plan and return it, but change nothing. A plan that would be refused fails.
        (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineMovingOperator.template_fields,
        "on_unknown",
        "on_out_of_range",
        "allow_running_mirror",
        "ask_source",
        "plan_only",
    )
    operation: ClassVar[Operation] = "failover"
    parsers: ClassVar[Mapping[str, Parser]] = {
        **PipelineMovingOperator.parsers,
        "on_unknown": choice_parser(UnknownPolicy),
        "on_out_of_range": choice_parser(DeletedPolicy),
        "allow_running_mirror": parse_switch,
        "ask_source": parse_switch,
        "plan_only": parse_switch,
    }
    calls_timeout: ClassVar[float] = 600.0

    def __init__(
        self,
        *,
        on_unknown: UnknownPolicy | str = "fail",
        on_out_of_range: DeletedPolicy | str = "fail",
        allow_running_mirror: bool | str = False,
        ask_source: bool | str = True,
        plan_only: bool | str = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.on_unknown = on_unknown
        self.on_out_of_range = on_out_of_range
        self.allow_running_mirror = allow_running_mirror
        self.ask_source = ask_source
        self.plan_only = plan_only
        if self.checkpoint_location is None or self.mirror is None:
            missing = "checkpoint_location" if self.checkpoint_location is None else "mirror"
            raise self.parameter_error(
                f"{missing} is missing: give it, or **pipeline of a KafkaPipeline that has both"
            )
        self.check_parameters()

    @property
    def groups_config_id(self) -> str:
        """The connection of the mirror, where the groups are committed."""
        return Mirror.parse(self.mirror).kafka_config_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the pipeline, and return the receipt."""
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
        from airflow_kafka_offsets.moves.failover import plan_failover

        with self.run_checked(), ExitStack() as clients:
            mirror = Mirror.parse(self.mirror)
            metadata = self.move_metadata(context)
            checkpoint = self.open_checkpoint()
            if checkpoint is None:
                raise self.parameter_error("checkpoint_location is missing")
            hook = KafkaOffsetsHook(mirror.kafka_config_id)
            target = clients.enter_context(hook.get_offsets_client(total=self.calls_timeout))
            source = self._source(clients) if self.parse_parameter("ask_source") else None
            policy = FailoverPolicy(
                on_unknown=self.parse_parameter("on_unknown"),
                on_out_of_range=self.parse_parameter("on_out_of_range"),
                allow_running_mirror=self.parse_parameter("allow_running_mirror"),
                checkpoint=self.checkpoint_policy(),
            )
            plan = plan_failover(source, target, checkpoint, self.selection(), mirror, policy=policy)
            if self.parse_parameter("plan_only"):
                return self.show_plan(context, target, plan).make_receipt(plan_only=True)
            return self.apply_pipeline_plan(context, target, plan, metadata, checkpoint)

    def _source(self, clients: ExitStack) -> OffsetsClient | None:
        """Return a client of the old cluster; ``None`` if the cluster does not answer."""
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

        hook = KafkaOffsetsHook(self.kafka_config_id, timeout=_SOURCE_TIMEOUT)
        source = clients.enter_context(hook.get_offsets_client(total=self.calls_timeout))
        try:
            source.cluster_id()
        except BrokerUnavailableError as error:
            self.log.warning("The old cluster does not answer: %s", error)
            return None
        return source
