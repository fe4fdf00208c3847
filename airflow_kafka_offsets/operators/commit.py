"""Commits the offsets that a Spark query has processed, or given offsets, to a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.formats import format_csv, offsets_json, parse_offsets
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Offsets, Positions
from airflow_kafka_offsets.model.parameters import (
    OutOfRangePolicy,
    choice_parser,
    parse_switch,
    parse_text,
    timestamp_ms,
)
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.operators.base import Parser
from airflow_kafka_offsets.operators.moving import MoveContext, MovingOperator
from airflow_kafka_offsets.task.identity import commit_metadata
from airflow_kafka_offsets.task.metrics import count

if TYPE_CHECKING:
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan

_MIRROR_TIMEOUT = 15.0
"""Seconds for all calls to the mirror."""


class CommitOffsetsOperator(MovingOperator):
    """
    Commit a position to a consumer group: the newest committed batch of a Spark checkpoint, given offsets,
    or the offsets in a job's store.

    A batch counts as committed when Spark has written both ``offsets/N`` and ``commits/N``. A pending batch,
    which Spark will run again, never counts. All partitions of the batch are committed, even if no offset
    changes. The reason is that Kafka deletes the offsets of a group without members
    ``offsets.retention.minutes`` (7 days by default) after the last commit.

    The task refuses, and changes nothing, in these cases:

    - An offset would go backwards, or is outside its partition's log.
    - The group's last commit is of another Spark query, or was made on another Kafka cluster.
    - The broker does not have a topic, or a topic was created again.
    - The group has members, since only they may commit.
    - A reset of the checkpoint is under way, or was interrupted.
    - The query has finished no batch since a reset of the same run, although there are records to read.

    If the checkpoint is reset while this task runs, the task reads and commits it again. So the checkpoint
    and the group end at the offsets of the reset.

    With ``store_conn_id`` the group gets the offsets that the job saved in its database together with its
    results.

    With a ``mirror``, the task also keeps the data for a failover beside the checkpoint, see
    :mod:`airflow_kafka_offsets.readings.failover`. If the data cannot be kept, the commit still succeeds:
    the task logs a warning and counts ``kafka_offsets.unready``.

    Returns the receipt (see :func:`airflow_kafka_offsets.model.receipt.make_receipt`): plain JSON with the
    offsets before and after.

    :param offsets: offsets to commit instead of the checkpoint's, as ``{"topic": {"0": 42}}``. (templated)
    :param store_conn_id: Airflow connection (``common.sql``) of the database in which the job saves its
        offsets with :class:`~airflow_kafka_offsets.spark.stores.SqlOffsetStore`. These are committed instead
        of the checkpoint's. (templated)
    :param store_table: the store's table, or ``schema.table``. (templated)
    :param store_pipeline: the pipeline name under which the job saves its offsets; by default ``group_id``.
        (templated)
    :param left_topics: topics that the pipeline no longer reads, such as ``"orders-v1"``. After the commit,
        the groups' offsets of these topics are deleted, and returned under ``left_topics``. Otherwise their
        lag grows until the group is deleted. Needs the extra ``delete-offsets``. (templated)
    :param allow_rewind: whether the group may go backwards. (templated)
    :param allow_new_query: whether the query may take over a group that another query's commits were for,
        such as after a start with a new checkpoint; only for a checkpoint's position. (templated)
    :param allow_new_cluster: whether to commit although the group's last commit was made on another cluster,
        or before a topic was created again. Set this only if the offsets are right there. (templated)
    :param on_out_of_range: action for an offset outside the log: ``fail`` (default), ``clamp`` to the nearer
        end of the log, or ``skip`` the partition. (templated)
    """

    parsers: ClassVar[Mapping[str, Parser]] = {
        "offsets": parse_offsets,
        **dict.fromkeys(("store_conn_id", "store_table", "store_pipeline"), parse_text),
        "left_topics": TopicScope.parse,
        "allow_rewind": parse_switch,
        "allow_new_query": parse_switch,
        "allow_new_cluster": parse_switch,
        "on_out_of_range": choice_parser(OutOfRangePolicy),
    }
    template_fields: Sequence[str] = (*MovingOperator.template_fields, *parsers)

    def __init__(
        self,
        *,
        offsets: Mapping[str, Mapping[str, int]] | str | XComArg | None = None,
        store_conn_id: str | None = None,
        store_table: str = "kafka_offsets",
        store_pipeline: str | None = None,
        left_topics: str | Sequence[str] | None = None,
        allow_rewind: bool | str = False,
        allow_new_query: bool | str = False,
        allow_new_cluster: bool | str = False,
        on_out_of_range: OutOfRangePolicy | str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.offsets: Any = offsets
        self.store_conn_id = store_conn_id
        self.store_table = store_table
        self.store_pipeline = store_pipeline
        self.left_topics: Any = left_topics
        self.allow_rewind = allow_rewind
        self.allow_new_query = allow_new_query
        self.allow_new_cluster = allow_new_cluster
        self.on_out_of_range = on_out_of_range
        if offsets is not None and store_conn_id is not None:
            raise self.parameter_error("offsets and store_conn_id are both given: give only one")
        if offsets is not None or store_conn_id is not None:
            self.refuse_unused("with offsets or store_conn_id", "allow_new_query")
        elif self.checkpoint_location is None:
            raise self.parameter_error(
                "nothing to commit: give checkpoint_location (the URI in the Spark job), offsets or "
                "store_conn_id"
            )
        if store_conn_id is None:
            self.refuse_unused("without store_conn_id", "store_table", "store_pipeline")
        self.reports_lag = offsets is None
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit, and return the receipt."""
        with self.run_checked():
            is_given = self.offsets is not None or self.store_conn_id is not None
            if is_given or (checkpoint := self.open_checkpoint()) is None:
                return self._commit_given(context)
            return self._commit_checkpoint(context, checkpoint)

    # The code that reads and commits is imported below, because a DAG file does not need it.

    def _commit_checkpoint(self, context: Context, checkpoint: SparkCheckpoint) -> dict[str, Any]:
        """Commit the checkpoint's position; if the checkpoint is moved meanwhile, commit it again."""
        from airflow_kafka_offsets.moves.apply import apply_position
        from airflow_kafka_offsets.moves.checkpoint_commit import (
            plan_checkpoint_commit,
            retry_while_checkpoint_moves,
        )

        allowed = self.parse_parameters(
            "on_out_of_range", "allow_rewind", "allow_new_cluster", "allow_new_query"
        )
        earlier: PipelinePlan | None = None
        mirror = None if self.mirror is None else Mirror.parse(self.mirror)
        with self.open_client() as client:
            for attempt in retry_while_checkpoint_moves():
                with attempt:
                    planned = plan_checkpoint_commit(
                        client, checkpoint, self.selection(), commit_metadata(context), **allowed
                    )
                    # The receipt of a second attempt still shows the offsets from before the first attempt.
                    plan, metadata, known_moves = planned.with_earlier_attempt(earlier)
                    earlier = plan
                    move = MoveContext(context, client, checkpoint, metadata)
                    receipt = self._apply(move, plan, apply_position, known_moves=known_moves)
            if mirror is not None:
                self._keep_failover_data(client, checkpoint, mirror)
        return receipt

    def _commit_given(self, context: Context) -> dict[str, Any]:
        """Commit ``offsets``, or the offsets in the job's store."""
        from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
        from airflow_kafka_offsets.moves.apply import apply_groups
        from airflow_kafka_offsets.moves.groups import check_not_overtaken, plan_commits
        from airflow_kafka_offsets.readings.log_checks import LogCheck
        from airflow_kafka_offsets.readings.positions import assign_offsets

        offsets, source, saved_at = self._given_offsets()
        origin = "offsets" if self.offsets is not None else "the store"
        selection = self.selection()
        with self.open_client() as client:
            targets = assign_offsets(selection, {"given": offsets}, origin)
            check = LogCheck(self.parse_parameter("allow_new_cluster"), read_at=saved_at)
            allowed = self.parse_parameters("on_out_of_range", "allow_rewind")
            group_plans = plan_commits(client, targets, source=source, log_check=check, **allowed)
            check_not_overtaken(
                group_plans,
                targets,
                lambda: selection.assign_offsets({"given": self._given_offsets()[0]}, origin),
            )
            move = MoveContext(context, client, None, commit_metadata(context))
            return self._apply(move, PipelinePlan(group_plans), apply_groups)

    def _given_offsets(self) -> tuple[Offsets, dict[str, Any], int | None]:
        """Return the offsets to commit, their source, and when they were saved, in ms since 1970."""
        if self.offsets is not None:
            return self.parse_parameter("offsets"), {"offsets": "given"}, None
        from airflow_kafka_offsets.hooks.store import stored_offsets

        pipeline = self.selection().group_id if self.store_pipeline is None else self.store_pipeline
        if not isinstance(pipeline, str):
            raise UsageError(
                "store_pipeline is missing: with several groups, give the pipeline name under which the job "
                "saves its offsets"
            )
        source = {"store": self.store_conn_id, "table": self.store_table, "pipeline": pipeline}
        offsets, saved_at = stored_offsets(str(self.store_conn_id), pipeline, self.store_table)
        return offsets, source, None if saved_at is None else timestamp_ms(saved_at)

    def _apply(
        self, move: MoveContext, plan: PipelinePlan, apply: Callable[..., dict[str, Any]], **how: Any
    ) -> dict[str, Any]:
        """Commit, then delete the offsets of topics that the pipeline has left."""
        # Planned before the commit: a wrong name changes nothing.
        deletions = None if self.left_topics is None else self._plan_deletions(move, plan)
        receipt = self.apply_plan(move, plan, apply, **how)
        if deletions is not None:
            receipt["left_topics"] = {group: offsets_json(before) for group, before in deletions.items()}
            for group_id, before in deletions.items():
                self._delete_left(move.client, group_id, before)
        return receipt

    def _plan_deletions(self, move: MoveContext, plan: PipelinePlan) -> dict[str, Positions]:
        """Return the offsets of ``left_topics`` to delete, by group."""
        from airflow_kafka_offsets.moves.deletion import plan_left_topics

        read = {tp for group in plan.group_plans for tp in (*group.after, *group.skipped)}
        if move.checkpoint is not None:
            # The query also reads what topics leaves out.
            read.update(*move.checkpoint.read().kafka_offsets.values())
        query = None if self.parse_parameter("allow_new_query") else move.metadata.query
        scope = self.parse_parameter("left_topics")
        return plan_left_topics(move.client, self.selection().group_ids, scope, read, query)

    def _delete_left(self, client: OffsetsClient, group_id: str, before: Positions) -> None:
        """Delete a group's offsets of ``left_topics``; the errors say that the commit is done."""
        from airflow_kafka_offsets.moves.write import delete_offsets

        try:
            errors = delete_offsets(client, group_id, before, self._log_deleted)
        except PlanRefusedError as error:
            why = "; ".join(error.refusals)
            raise KafkaOffsetsError(
                f"the new offsets are committed, and those of left_topics stay: {why}", retriable=True
            ) from error
        except KafkaOffsetsError as error:
            raise error.append("the new offsets are committed") from None
        if failed := [f"{tp}: {error}" for tp, error in errors.items() if error is not None]:
            raise KafkaOffsetsError(
                f"the new offsets are committed, and group {group_id!r} still has offsets of left_topics "
                f"({'; '.join(failed)})",
                retriable=True,
            )

    def _log_deleted(self, groups: Mapping[str, Positions]) -> None:
        self.log.info("Deleting these offsets of group %s:\n%s", ", ".join(groups), format_csv(groups))

    def _keep_failover_data(self, client: OffsetsClient, checkpoint: SparkCheckpoint, mirror: Mirror) -> None:
        """Keep the data for a failover; an error here does not fail the task, whose offsets are committed."""
        from airflow_kafka_offsets.checkpoint.failover_data_file import write_failover_data
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
        from airflow_kafka_offsets.readings.failover import gather_failover_data

        try:
            hook = KafkaOffsetsHook(mirror.kafka_config_id, timeout=_MIRROR_TIMEOUT)
            with hook.get_offsets_client(total=_MIRROR_TIMEOUT) as target:
                kept = gather_failover_data(client, target, checkpoint, mirror)
            write_failover_data(checkpoint, kept)
            error = kept.error
        except Exception as raised:  # noqa: BLE001 - the offsets are committed
            error = f"{type(raised).__name__}: {raised}"
        if error:
            self.log.warning(
                "The offsets are committed; the data for a failover was not kept completely: %s", error
            )
            count("unready", self._topics_by_group)
