"""Bases of the operators that move offsets: the pipeline's names, the checks, and the way of a plan."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.kafka.worker import started_early
from airflow_kafka_offsets.model.checkpoint_plan import (
    QUIET_PERIOD,
    RECORDING_SINKS,
    CheckpointPolicy,
    PendingBatch,
    Sink,
    parse_quiet_period,
    parse_sink,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.parameters import choice, parse_switch
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.moves.apply import apply, look_up_times
from airflow_kafka_offsets.operators.outlets import GroupMove, GroupOutlets
from airflow_kafka_offsets.pipeline import NAME_READERS, PIPELINE_PARAMETERS, parse_location
from airflow_kafka_offsets.task.failures import failing_at_once
from airflow_kafka_offsets.task.given import GivenOptions, check_literals, is_template
from airflow_kafka_offsets.task.identity import clear_mark, iteration, map_index, run_start
from airflow_kafka_offsets.task.metrics import count_commit, count_refused, count_reset, report_lag
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    Reader = Callable[[Any, str], Any]
    """Reads a parameter from its value and name."""


_CHECKPOINT_DEFAULTS: Mapping[str, object] = {
    "pending_batch": "fail",
    "sink": None,
    "sink_location": None,
    "allow_state": False,
    "quiet_period": QUIET_PERIOD,
}
"""The parameters that concern a checkpoint, each with its default."""


class OffsetsOperator(GivenOptions, BaseOperator):
    """
    Base of the operators that move a pipeline's offsets.

    Of the groups' assets in ``outlets`` (:attr:`~airflow_kafka_offsets.pipeline.KafkaPipeline.assets`) a task
    sends events for those whose group it has moved or committed. A mapped task may name the assets of all
    pipelines; elsewhere the asset of another group is refused. An ``AssetAlias`` represents the groups that
    are committed.

    Every name selects something, see :mod:`airflow_kafka_offsets.model.groups`; and an option that is given
    must not render to nothing, see :mod:`airflow_kafka_offsets.task.given`.

    :param group_id: the consumer group, or ``{topic: group}``; a key ``"source:<index or name>"`` tells two
        sources of one topic apart. (templated, the mapping's keys are not)
    :param topics: allow-list of topics or ``topic:0,1``; by default all Kafka topics of the checkpoint, or
        all that the group has commits for and the connection's user may see. What it leaves out is named in
        the log. (templated)
    :param checkpoint_location: URI of the Spark checkpoint, exactly as the Spark job has it. (templated)
    :param checkpoint_conn_id: Airflow connection of that storage; without it fsspec's own defaults.
        (templated)
    :param kafka_config_id: Airflow connection of the Kafka cluster. (templated)
    """

    template_fields: Sequence[str] = PIPELINE_PARAMETERS
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(
        ("group_id", "topics", "offsets", "to_offset", "window", "start", "end", "receipt"), "json"
    )
    readers: ClassVar[Mapping[str, Reader]] = {}
    """Read the parameters with a fixed form: literals at parse time, templates when the task runs."""
    ui_color = "#e8f4ea"
    needs_group: ClassVar[bool] = True
    calls_timeout: ClassVar[float] = 120.0
    """Seconds for all calls to the broker together."""
    shows_times: ClassVar[bool] = False
    """Whether log and receipt have the times of the records, for which a move waits some seconds at most."""
    count_move = staticmethod(count_commit)
    """Counts what was carried out, for each group and its topics."""
    reports_lag: bool = True
    """Whether it commits all partitions that its groups read, so that their lag is known."""

    def __init__(
        self,
        *,
        group_id: str | Mapping[str, str] | XComArg | None = None,
        topics: str | Sequence[str] | XComArg | None = None,
        checkpoint_location: str | XComArg | None = None,
        checkpoint_conn_id: str | None = None,
        kafka_config_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id: Any = group_id
        self.topics: Any = topics
        self.checkpoint_location: Any = checkpoint_location
        self.checkpoint_conn_id = checkpoint_conn_id
        self.kafka_config_id = kafka_config_id
        self._moving: dict[str, set[str]] = {}
        self._group_outlets = GroupOutlets(())
        if group_id is None and self.needs_group:
            raise self.misused("group_id is missing: name the consumer group, or **pipeline")
        if checkpoint_location is None:
            self.check_own("checkpoint_conn_id", kwargs.get("default_args"), "without checkpoint_location")

    def check_parameters(self) -> None:
        """Check the parameters that are literals in the DAG's file; each constructor ends with this."""
        check_literals(self, **NAME_READERS, **self.readers)

    def misused(self, text: str) -> UsageError:
        """Return the error for parameters that do not go together."""
        return UsageError(f"task {self.task_id}: {text}")

    def check_unused(self, why: str, **defaults: object) -> None:
        """
        Refuse parameters that nothing would read.

        :param why: such as ``without window_file``.
        :param defaults: the parameters, each with its default.
        """
        given = [name for name, default in defaults.items() if getattr(self, name) != default]
        if given:
            raise self.misused(f"{' and '.join(given)} would be ignored {why}: leave it out")

    def read(self, name: str) -> Any:
        """Return a parameter as its reader gives it."""
        return self.readers[name](getattr(self, name), name)

    def named(self) -> Groups:
        """Return the groups and topics that the parameters name."""
        return Groups.parse(self.group_id, self.topics, required=self.needs_group)

    def open_client(self) -> OffsetsClient:
        """Return a client for the connection, to be closed by the caller."""
        # Here, so that a DAG file does not load the Kafka client, which Airflow's own hook imports.
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

        return KafkaOffsetsHook(self.kafka_config_id).get_offsets_client(total=self.calls_timeout)

    def open_checkpoint(self) -> SparkCheckpoint | None:
        """Return the pipeline's checkpoint, ``None`` if it names none."""
        if self.checkpoint_location is None:
            return None
        return spark_checkpoint(self.checkpoint_location, self.checkpoint_conn_id)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Check rendered options, count what is refused, and let Airflow retry only what may pass."""
        # Until there is a plan only the groups are known, if any is named.
        self._moving = {group: set() for group in self._named_groups()}
        # A task that runs twice in one process has lost some of its outlets by then.
        self._group_outlets = GroupOutlets(self._group_outlets.declared or self.outlets)
        self.outlets = self._group_outlets.present
        # A Kafka client for the ids of topics takes some time to start.
        with started_early(), failing_at_once():
            try:
                self.check_given()
                yield
            except KafkaOffsetsError as error:
                count_refused(self._moving, error)
                raise
        self._group_outlets.log_unsent()

    def carry_out(
        self,
        context: Context,
        client: OffsetsClient,
        plan: PipelinePlan,
        metadata: CommitMetadata,
        *,
        plan_only: bool = False,
        **how: Any,
    ) -> dict[str, Any]:
        """
        Show a plan, store its receipt, and apply it.

        The receipt is in XCom before the first write, and stays there when the task then fails.

        :param how: see :func:`~airflow_kafka_offsets.moves.apply.apply`.
        :return: the receipt.
        """
        groups = {*self._named_groups(), *(group.group_id for group in plan.groups)}
        self._group_outlets.check(context, self.kafka_config_id, groups)
        written = [group for group in plan.groups if group.after and not group.done]
        self._moving = {group.group_id: {tp.topic for tp in group.after} for group in written}
        if plan_only or self.shows_times:
            plan = look_up_times(client, plan)
        for table in plan.tables():
            self.log.info("%s", table)
        planned = plan.receipt(plan_only=plan_only)
        push_result(context, planned)
        batch_id = plan.stamped(metadata).batch
        if not plan_only:
            self._group_outlets.send(context, self.kafka_config_id, self._moves(planned), batch_id)
        receipt = apply(client, plan, metadata, plan_only=plan_only, **how)
        if plan.empty:
            self.log.warning("Nothing was written: no partition is left of the plan")
        if not plan_only:
            if self._moves(receipt) != self._moves(planned):
                self._group_outlets.send(context, self.kafka_config_id, self._moves(receipt), batch_id)
            self.count_move(self._moving)
            if self.reports_lag:
                report_lag(group.lag for group in written)
            self.outlets = self._group_outlets.present
        return receipt

    def _moves(self, receipt: Mapping[str, Any]) -> list[GroupMove]:
        """Return what a receipt says of the groups that are written."""
        groups = receipt.get("groups", [receipt])
        return [GroupMove.of(group) for group in groups if group["group_id"] in self._moving]

    def _named_groups(self) -> list[str]:
        with suppress(UsageError):
            return Groups.parse(self.group_id).ids
        return [""]


class MovingOperator(OffsetsOperator):
    """
    Base of the operators that may also move a checkpoint.

    Besides the pipeline's names, and only with a ``checkpoint_location``:

    :param pending_batch: what becomes of a batch that Spark began and did not finish: ``fail`` (default)
        refuses, ``discard`` archives and removes it, for which ``sink`` is needed. (templated)
    :param sink: where the query writes to, which the checkpoint does not say: ``idempotent`` (a
        ``foreachBatch`` that overwrites by the records' own key), ``kafka``, ``noop``, ``file``, ``delta``,
        ``iceberg`` or ``hudi``, see
        :data:`~airflow_kafka_offsets.model.checkpoint_plan.Sink`. (templated)
    :param sink_location: directory that a ``file`` sink writes to, or of the ``delta``, ``iceberg`` or
        ``hudi`` table: a batch that is recorded there is not discarded. (templated)
    :param allow_state: move a query that keeps state although its state stays as it is. (templated)
    :param quiet_period: time without a write to the checkpoint after which the query counts as stopped:
        seconds (10 by default), a timedelta or text such as ``30s``; the task waits for it if it must.
        (templated)
    """

    moves_on_purpose: ClassVar[bool] = True
    shows_times: ClassVar[bool] = True
    reports_lag = False
    does: ClassVar[str]
    """``reset`` or ``restore``, for the metadata of its commits."""
    count_move = staticmethod(count_reset)
    template_fields: Sequence[str] = (*PIPELINE_PARAMETERS, *_CHECKPOINT_DEFAULTS)
    readers: ClassVar[Mapping[str, Reader]] = {
        "pending_batch": choice(PendingBatch),
        "sink": parse_sink,
        "sink_location": parse_location,
        "allow_state": parse_switch,
        "quiet_period": parse_quiet_period,
    }

    def __init__(
        self,
        *,
        pending_batch: PendingBatch | str = "fail",
        sink: Sink | str | None = None,
        sink_location: str | None = None,
        allow_state: bool | str = False,
        quiet_period: timedelta | float | str = QUIET_PERIOD,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pending_batch = pending_batch
        self.sink = sink
        self.sink_location = sink_location
        self.allow_state = allow_state
        self.quiet_period = quiet_period

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the part of a mapped task that its indexes share; by default one of them runs at a time."""
        # Airflow does not read this default from the constructor, and default_args win over it.
        partial: OperatorPartial = super().partial(**kwargs)
        partial.kwargs.setdefault("max_active_tis_per_dag", 1)
        return partial

    def check_parameters(self) -> None:
        """Check also that what concerns a checkpoint is given only with one."""
        super().check_parameters()
        if self.checkpoint_location is None:
            self.check_unused("without checkpoint_location", **_CHECKPOINT_DEFAULTS)
        elif self.sink not in tuple(RECORDING_SINKS) and not is_template(self.sink):
            self.check_unused(f"without sink={' or '.join(map(repr, RECORDING_SINKS))}", sink_location=None)

    def origin(self, context: Context) -> CommitMetadata:
        """Return what the commits of this task run record: also that they move on purpose."""
        return replace(commit_metadata(context), tool=self.does)

    def checkpoint_policy(self) -> CheckpointPolicy:
        """Return what the parameters allow."""
        return CheckpointPolicy.parse(self.pending_batch, self.sink, self.sink_location, self.allow_state)


def commit_metadata(context: Context) -> CommitMetadata:
    """Return what a commit of this task run records about its origin."""
    ti, dag_run = context.get("ti"), context.get("dag_run")
    dag, run, task = (getattr(ti, name, "") for name in ("dag_id", "run_id", "task_id"))
    started, index, loop = run_start(context), map_index(context), iteration(context)
    # A retry has the same token. Another iteration of a task loop, a run that was created again after it was
    # deleted, and the task after it was cleared have another one. An iteration whose loop was cleared shows
    # it only by its region.
    region = getattr(ti, "region_id", None)
    token = json.dumps([dag, run, task, index, loop, region, clear_mark(context), started.at], default=str)
    return CommitMetadata(
        dag=dag or "",
        run=run or "",
        task=task or "",
        map_index=index,
        iteration=loop,
        user=getattr(dag_run, "triggering_user_name", None) or "",
        token=hashlib.sha256(token.encode()).hexdigest()[:12] if ti is not None else "",
        started=started.at,
        clears=started.clears or None,
        try_number=getattr(ti, "try_number", None),
        at=int(time.time()),
    )
