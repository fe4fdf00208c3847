"""Moves a pipeline to a mirror of its Kafka cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.errors import BrokerUnavailableError, TokenUnavailableError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.failover_plan import DeletedPolicy, FailoverPolicy, UnknownPolicy
from airflow_kafka_offsets.model.lineage import Operation
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.parameters import choice_parser, parse_switch
from airflow_kafka_offsets.model.saved_plan import MAX_AGE
from airflow_kafka_offsets.moves.failover import plan_failover
from airflow_kafka_offsets.moves.saved import plan_saved_failover
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.moving import MoveContext
from airflow_kafka_offsets.operators.planned_move import PlannedMoveOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS


class FailOverOperator(PlannedMoveOperator):
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

    The mirror may be the pipeline's own cluster, if it names other topics: the task finds the position in a
    copied topic by records alone. It refuses to leave records that are neither read nor copied.

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
        The plan has a ``digest`` of the planned writes, and ``markdown`` for people. (templated)
    :param plan: the plan of a task with ``plan_only``, or of ``failover plan --save-plan``. A dict, JSON
        text, or the URI of a file. The task writes the plan's offsets, with the plan's permissions, and does
        not ask the old cluster. It refuses the plan if the checkpoint, a group, or a topic of the mirror has
        changed since. Without ``group_id`` the plan also names the pipeline and the mirror. (templated)
    :param max_age: largest age of ``plan``: a timedelta, seconds, or text such as ``8h``; a day by default.
        (templated)
    :param approval: the output of an :class:`~airflow_kafka_offsets.operators.approve.ApprovePlanOperator`
        for ``plan``. The plan is refused unless a person has approved it. Receipt and commits have the user
        and the time. (templated)
    :param allow_self_approval: whether the user who triggered the run may also approve the plan; by default
        yes. (templated)
    """

    operation: ClassVar[Operation] = "failover"
    names_of_plan: ClassVar[Sequence[str]] = (*PIPELINE_PARAMETERS, "mirror")
    _own: ClassVar[Mapping[str, Parser]] = {
        "on_unknown": choice_parser(UnknownPolicy),
        "on_out_of_range": choice_parser(DeletedPolicy),
        "allow_running_mirror": parse_switch,
        "ask_source": parse_switch,
    }
    permissions: ClassVar[Sequence[str]] = tuple(_own)
    parsers: ClassVar[Mapping[str, Parser]] = {**PlannedMoveOperator.parsers, **_own}
    template_fields: Sequence[str] = (*PIPELINE_PARAMETERS, *parsers)
    calls_timeout: ClassVar[float | None] = 600.0

    def __init__(
        self,
        *,
        on_unknown: UnknownPolicy | str = "fail",
        on_out_of_range: DeletedPolicy | str = "fail",
        allow_running_mirror: bool | str = False,
        ask_source: bool | str = True,
        plan_only: bool | str = False,
        plan: Mapping[str, Any] | str | XComArg | None = None,
        max_age: timedelta | float | str = MAX_AGE,
        approval: Mapping[str, Any] | str | XComArg | None = None,
        allow_self_approval: bool | str = True,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.on_unknown = on_unknown
        self.on_out_of_range = on_out_of_range
        self.allow_running_mirror = allow_running_mirror
        self.ask_source = ask_source
        self.plan_only = plan_only
        self.plan: Any = plan
        self.max_age = max_age
        self.approval: Any = approval
        self.allow_self_approval = allow_self_approval
        if self.group_id is not None:
            self.check_mirrored()
        elif self.plan is None:
            raise self.missing_group()
        self.check_parameters()

    @property
    def groups_config_id(self) -> str:
        """The connection of the mirror, where the groups are committed."""
        return Mirror.parse(self.mirror).kafka_config_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the pipeline, and return the receipt."""
        with self.run_checked(), ExitStack() as clients:
            approved = self.approved_plan(context)
            if approved is not None and self.mirror is None:
                self.mirror = approved.saved.names.mirror
            mirror = Mirror.parse(self.mirror)
            metadata = self.move_metadata(context)
            checkpoint = spark_checkpoint(self.checkpoint_location, self.checkpoint_conn_id)
            ArchivedMoves(checkpoint).refuse_taken_back(metadata)
            target = clients.enter_context(self.open_client(mirror.kafka_config_id))
            move = MoveContext(context, target, checkpoint, metadata)
            if approved is not None:
                now, max_age = datetime.now(tz=timezone.utc), self.parse_parameter("max_age")
                plan = plan_saved_failover(
                    target, checkpoint, approved.saved, now=now, metadata=metadata, max_age=max_age
                )
                stamped, metadata = approved.stamp(plan, metadata)
                return self.apply_pipeline_plan(move._replace(metadata=metadata), stamped)
            source = self._source(clients) if self.parse_parameter("ask_source") else None
            allowed = self.parse_parameters("on_unknown", "on_out_of_range", "allow_running_mirror")
            policy = FailoverPolicy(**allowed, checkpoint=self.checkpoint_policy())
            plan = plan_failover(source, target, checkpoint, self.selection(), mirror, policy=policy)
            if self.parse_parameter("plan_only"):
                how, named = self.parse_parameters("allow_running_mirror"), mirror.as_json()
                return self.save_shown_plan(move, plan, mirror=named, **how)
            return self.apply_pipeline_plan(move, plan)

    def _source(self, clients: ExitStack) -> OffsetsClient | None:
        """Return a client of the old cluster; ``None`` if the cluster does not answer."""
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

        # A cluster that does not answer in 10 seconds is gone: the failover uses what commits have kept.
        hook = KafkaOffsetsHook(self.kafka_config_id, timeout=10.0)
        source = clients.enter_context(hook.get_offsets_client(total=self.calls_timeout))
        try:
            source.cluster_id()
        except TokenUnavailableError as error:
            error.append("set ask_source=False if the old cluster is gone")
            raise
        except BrokerUnavailableError as error:
            self.log.warning("The old cluster does not answer: %s", error)
            return None
        return source
