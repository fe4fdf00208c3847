"""Commits what a Spark query has processed, or other offsets, to its consumer group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from airflow_kafka_offsets.errors import CheckpointError, CheckpointMovedError, PlanRefusedError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.hooks.store import stored_offsets
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupOffsets, Groups
from airflow_kafka_offsets.model.offsets import offsets_json, parse_offsets, summarize
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy, one_of
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.moves.checkpoint_commit import KnownMoves, commit_position
from airflow_kafka_offsets.moves.commit import plan_moves
from airflow_kafka_offsets.moves.window_commit import apply_window_commits, plan_window_commits
from airflow_kafka_offsets.operators.base import OffsetsOperator, commit_metadata
from airflow_kafka_offsets.task.window_file import load_window
from airflow_kafka_offsets.task.window_memory import CommitMemory

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

_TRIES = 3
"""How often a position is read and committed again because the checkpoint was moved meanwhile."""


class _Target(NamedTuple):
    """What is to be committed, and where it comes from."""

    targets: GroupOffsets
    source: dict[str, Any]
    query: str = ""
    batch: int | None = None
    read_at: int | None = None


class CommitOffsetsOperator(OffsetsOperator):
    """
    Commit to a consumer group what a Spark checkpoint's newest committed batch has read, or a window, or a store.

    A batch counts as committed when Spark wrote both ``offsets/N`` and ``commits/N``. A pending batch, which
    Spark will run again, never counts. All partitions of the batch are committed, also when none of them
    moves: Kafka forgets the offsets of a group that nobody joins ``offsets.retention.minutes`` (7 days by
    default) after the last commit.

    Refused, with nothing changed: offsets that would go backwards; a group whose last commit is of another
    Spark query; a topic that the broker does not have; an offset outside its partition's log; a group with
    members, since only they may commit; a checkpoint whose reset is under way, or has stopped half-way; a query that
    has finished no batch since a reset of the same run, although there are records to read.

    A checkpoint that is reset while this task runs is read and committed again, so that both end where the reset has
    put them.

    With a ``window`` its end is committed, for each partition: where the group stands at the window's start it is
    written, where it is at its end it is done. If it stands anywhere else in one of them, nothing is written at all. A
    window that was planned without a commit in a partition needs that there is none still. All groups are compared
    before the first write, and each again as it is written. On Airflow 3.3 and later a task that is cleared after it has
    committed its window is done where the group has come to the window's end, or further, in every partition.

    With ``store_conn_id`` the group gets what the job saved in its own database together with its results.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.receipt`): plain JSON with the offsets
    before and after.

    :param offsets: commit these offsets, ``{"topic": {"0": 42}}``, in place of the checkpoint's. (templated)
    :param window: commit the end of this window: what ``PlanOffsetWindowOperator`` returned, its JSON, or the URI of its
        file. (templated)
    :param window_conn_id: Airflow connection of the window file's storage. (templated)
    :param fenced: for a window, join the group while it is compared and written, so that nobody else can commit in
        between. It takes as long as the broker lets the first member of a group wait
        (``group.initial.rebalance.delay.ms``, 3 seconds by default). Without it another commit may come between.
    :param store_conn_id: Airflow connection (``common.sql``) of the database in which the job keeps its offsets with
        :class:`~airflow_kafka_offsets.spark.stores.SqlOffsetStore`: commit those, in place of the checkpoint's. (templated)
    :param store_table: the store's table, or ``schema.table``. (templated)
    :param store_pipeline: the name that the job saves under; by default ``group_id``. (templated)
    :param allow_rewind: whether the group may go backwards.
    :param allow_new_query: whether the query may take over a group that another query followed, as after
        starting with a new checkpoint.
    :param on_out_of_range: ``fail`` (default), ``clamp`` to the nearer end of the log, or ``skip`` the
        partition, for an offset outside the log. (templated)
    """

    template_fields: Sequence[str] = (
        *OffsetsOperator.template_fields,
        "offsets",
        "window",
        "window_conn_id",
        "store_conn_id",
        "store_table",
        "store_pipeline",
        "on_out_of_range",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **OffsetsOperator.template_fields_renderers,
        "offsets": "json",
        "window": "json",
    }

    def __init__(
        self,
        *,
        offsets: Mapping[str, Mapping[str, int]] | str | None = None,
        window: Mapping[str, Any] | str | None = None,
        window_conn_id: str | None = None,
        fenced: bool = True,
        store_conn_id: str | None = None,
        store_table: str = "kafka_offsets",
        store_pipeline: str | None = None,
        allow_rewind: bool = False,
        allow_new_query: bool = False,
        on_out_of_range: OutOfRangePolicy = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.offsets = offsets
        self.window = window
        self.window_conn_id = window_conn_id
        self.fenced = fenced
        self.store_conn_id = store_conn_id
        self.store_table = store_table
        self.store_pipeline = store_pipeline
        self.allow_rewind = allow_rewind
        self.allow_new_query = allow_new_query
        self.on_out_of_range = on_out_of_range
        self._of_window = window is not None
        given = {"offsets": offsets, "window": window, "store_conn_id": store_conn_id}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise UsageError(
                f"task {self.task_id}: {' and '.join(named)} are both given: expected one of them"
            )
        if not named and self.checkpoint_location is None:
            raise UsageError(
                f"task {self.task_id}: nothing to commit: give checkpoint_location, the URI that the Spark job has, or "
                "offsets, or window, or store_conn_id"
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit, and return the receipt."""
        with self.refusing():
            return self._commit_window(context) if self._of_window else self._execute(context)

    def _commit_window(self, context: Context) -> dict[str, Any]:
        policy = one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range")
        window = load_window(self.window, self.window_conn_id)
        named = Groups.parse(self.group_id, self.topics)
        # What the plan was asked for and has left out, such as a topic that nobody has committed, is not missing.
        named, without = named.in_window(window.ranges, window.source)
        if without:
            self.log.info("Not in the window: %s", ", ".join(without))
        targets = named.of({"window": window.end}, "the window")
        self._name_left_out(targets)
        groups = {group: offsets_json(offsets) for group, offsets in targets.by_group.items()}
        memory = CommitMemory(context, window, groups=groups, kafka_config_id=self.kafka_config_id)
        with self.open_client() as client:
            plans = plan_window_commits(
                client,
                window,
                targets.by_group,
                source={"window": dict(window.source)},
                on_out_of_range=policy,
                committed_at=memory.committed_at,
            )

            def write(plan: PipelinePlan, metadata: CommitMetadata) -> None:
                apply_window_commits(client, window, plan.groups, metadata, fenced=self.fenced)
                memory.keep()

            return self.carry_out(context, client, PipelinePlan(plans), commit_metadata(context), write=write)

    def _execute(self, context: Context) -> dict[str, Any]:
        policy = one_of(self.on_out_of_range, OutOfRangePolicy, "on_out_of_range")
        target = self._given_offsets() or self._stored_offsets()
        if target is None:
            return self._commit_checkpoint(context, policy)
        self._name_left_out(target.targets)
        with self.open_client() as client:
            plans = plan_moves(
                client,
                target.targets.by_group,
                source=target.source,
                on_out_of_range=policy,
                allow_rewind=self.allow_rewind,
            )
            return self.carry_out(context, client, PipelinePlan(plans), commit_metadata(context))

    def _commit_checkpoint(self, context: Context, policy: OutOfRangePolicy) -> dict[str, Any]:
        """Commit the checkpoint's position; again, if the checkpoint was moved meanwhile."""
        if not self.checkpoint_location:
            raise UsageError("checkpoint_location and offsets are both missing: give one of them")
        checkpoint = spark_checkpoint(self.checkpoint_location, self.checkpoint_conn_id)
        with self.open_client() as client:
            again = Retrying(
                retry=retry_if_exception_type(CheckpointMovedError),
                stop=stop_after_attempt(_TRIES),
                before_sleep=self._say_why_again,
                reraise=True,
            )
            return again(self._commit_position, context, client, checkpoint, policy)

    def _say_why_again(self, state: RetryCallState) -> None:
        if state.outcome is not None:
            self.log.warning("Committing again: %s", state.outcome.exception())

    def _commit_position(
        self, context: Context, client: OffsetsClient, checkpoint: SparkCheckpoint, policy: OutOfRangePolicy
    ) -> dict[str, Any]:
        moves = KnownMoves.of(checkpoint)
        target = self._checkpoint_offsets(checkpoint)
        self._name_left_out(target.targets)
        by_group = target.targets.by_group
        metadata = commit_metadata(context, query=target.query, batch=target.batch, move=moves.number)
        everything = {tp: offset for offsets in by_group.values() for tp, offset in offsets.items()}
        moves.check_work(metadata, everything, client)
        plans = plan_moves(
            client,
            by_group,
            source=target.source,
            on_out_of_range=policy,
            allow_rewind=self.allow_rewind,
            query=None if self.allow_new_query else target.query,
            may_go_back=partial(moves.may_go_back, target.query),
            read_at=target.read_at,
        )
        return self.carry_out(
            context,
            client,
            PipelinePlan(plans),
            metadata,
            write=lambda plan, metadata: commit_position(client, moves, plan.groups, metadata),
        )

    def _name_left_out(self, targets: GroupOffsets) -> None:
        if targets.left_out:
            self.log.info(
                "Left out, since topics does not name it: %s", summarize(targets.left_out, limit=20)
            )

    def _given_offsets(self) -> _Target | None:
        if self.offsets is None:
            return None
        offsets = parse_offsets(self.offsets, "offsets")
        targets = Groups.parse(self.group_id, self.topics).of({"given": offsets}, "offsets")
        return _Target(targets, {"offsets": "given"})

    def _stored_offsets(self) -> _Target | None:
        if self.store_conn_id is None:
            return None
        named = Groups.parse(self.group_id, self.topics)
        pipeline = named.group_id if self.store_pipeline is None else self.store_pipeline
        if not isinstance(pipeline, str):
            raise UsageError(
                "store_pipeline is missing: with several groups name what the job saves its offsets under"
            )
        offsets = stored_offsets(self.store_conn_id, pipeline, self.store_table)
        source = {"store": self.store_conn_id, "table": self.store_table, "pipeline": pipeline}
        targets = named.of({"store": offsets}, "the store")
        return _Target(targets, source)

    def _checkpoint_offsets(self, checkpoint: SparkCheckpoint) -> _Target:
        state = checkpoint.read()
        if state.batch_id is None:
            pending = "" if state.pending_batch_id is None else f" (batch {state.pending_batch_id} was begun)"
            raise CheckpointError(
                f"{state.location}: no batch has finished{pending}, so there are no offsets to commit: run the Spark "
                "query until its first batch is done"
            )
        sources = state.kafka_offsets
        if not sources:
            raise PlanRefusedError(
                [
                    f"{state.location}: batch {state.batch_id} has no Kafka offsets; it has "
                    f"{len(state.sources)} sources of other kinds: check checkpoint_location"
                ]
            )
        if state.pending_batch_id is not None:
            self.log.info(
                "Batch %d is pending: Spark will run it again, its offsets are not committed",
                state.pending_batch_id,
            )
        self.log.info("Checkpoint %s: query %s, batch %d", state.location, state.query_id, state.batch_id)
        source = {"checkpoint": state.location, "query_id": state.query_id, "batch_id": state.batch_id}
        targets = Groups.parse(self.group_id, self.topics).of(sources)
        return _Target(targets, source, state.query_id, state.batch_id, state.batch_timestamp_ms)
