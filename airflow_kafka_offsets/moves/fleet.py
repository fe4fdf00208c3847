"""Plans, moves and restores many pipelines, several at a time, each like a single pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, TypeVar

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.fleet import BEGUN, Failure, Fleet, Member, Stage
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import one_spelling
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.failover import plan_failover
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive, plan_restore_receipt
from airflow_kafka_offsets.moves.saved import (
    has_moved,
    offsets_before,
    plan_saved,
    plan_saved_failover,
    save_plan,
)
from airflow_kafka_offsets.readings.pipeline_state import newest_move_of
from airflow_kafka_offsets.readings.topic_times import look_up_times

AT_ONCE = 8
"""Default number of pipelines that are planned at the same time."""

Keep = Callable[[Fleet], None]
"""Saves a fleet so that it survives the end of this process."""

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

Opened = tuple["OffsetsClient", "SparkCheckpoint | None"]
"""The client and the checkpoint of a pipeline."""

Open = Callable[[Names], Opened]
"""
Opens a pipeline. It is called in the caller's thread, because Airflow's connections are read there, and
without its log.
"""

BothClusters = tuple["OffsetsClient | None", "OffsetsClient"]
"""Clients of the cluster that pipelines leave (``None`` if it does not answer) and of the mirror."""


def call_each(
    function: Callable[[S, T | KafkaOffsetsError], R],
    pipelines: Sequence[S],
    open_one: Callable[[S], T],
    at_once: int = AT_ONCE,
    *,
    all_must_open: bool = False,
) -> list[R]:
    """
    Call a function for each pipeline with what is opened for it, or the error; several at a time.

    :param open_one: is called in this thread, see :data:`Open`.
    :param all_must_open: whether to pass only those that cannot be opened, if there are any.
    """

    def open_or_error(pipeline: S) -> T | KafkaOffsetsError:
        try:
            return open_one(pipeline)
        except KafkaOffsetsError as error:
            return error

    opened = [(each, open_or_error(each)) for each in pipelines]
    if all_must_open:
        opened = [each for each in opened if isinstance(each[1], KafkaOffsetsError)] or opened
    with ThreadPoolExecutor(min(at_once, len(opened) or 1)) as threads:
        return list(threads.map(lambda each: function(*each), opened))


def plan_fleet_resets(
    pipelines: Sequence[Names],
    open_one: Open,
    place: Place,
    *,
    policy: CheckpointPolicy,
    allow_new_cluster: bool,
    at_once: int = AT_ONCE,
    **how: Any,
) -> list[SavedPlan]:
    """
    Plan to move each pipeline to the same place; raise refusals only after every pipeline was tried.

    :param how: more parameters of :func:`~airflow_kafka_offsets.moves.reset.plan_reset`.
    :raises PlanRefusedError: with each pipeline that cannot be moved, and the reason; or if two pipelines
        move the same checkpoint or partition of a group, because only one of the plans could be applied.
    """
    allowed: dict[str, Any] = {"policy": policy, "allow_new_cluster": allow_new_cluster}
    now = datetime.now(tz=timezone.utc)  # a duration before now means the same moment for each

    def plan(names: Names, opened: Opened) -> SavedPlan:
        client, checkpoint = opened
        selection = GroupSelection.parse(names.group_id, names.topics)
        made = plan_reset(client, checkpoint, selection, place, now=now, **allowed, **how)
        made.check()
        return save_plan(client, checkpoint, look_up_times(client, made), names, now=now, **allowed)

    plans, failures = _plan_each(pipelines, open_one, plan, at_once)
    if failures:
        raise failures_error(failures)
    check_disjoint(plans)
    return plans


def plan_fleet_failovers(
    pipelines: Sequence[Names],
    open_checkpoint: Callable[[Names], SparkCheckpoint],
    clients: Sequence[BothClusters],
    *,
    policy: FailoverPolicy,
) -> tuple[list[SavedPlan], list[Failure]]:
    """
    Plan to move pipelines to the mirror that each of them names.

    :param clients: for each pipeline that is planned at the same time: the search for a record may take
        long, and the calls of a client wait for each other.
    :return: the plans, and the pipelines that cannot be moved: they do not hold the others back. The caller
        checks that no two plans move the same, see :func:`check_disjoint`.
    """
    free: SimpleQueue[BothClusters] = SimpleQueue()
    for each in clients:
        free.put(each)

    def plan(names: Names, checkpoint: SparkCheckpoint) -> SavedPlan:
        source, target = pair = free.get()
        try:
            selection, mirror = GroupSelection.parse(names.group_id, names.topics), Mirror.parse(names.mirror)
            made = plan_failover(source, target, checkpoint, selection, mirror, policy=policy)
            made.check()
            return save_plan(
                target,
                checkpoint,
                look_up_times(target, made),
                names,
                policy=policy.checkpoint,
                allow_running_mirror=policy.allow_running_mirror,
            )
        finally:
            free.put(pair)

    return _plan_each(pipelines, open_checkpoint, plan, len(clients))


def _plan_each(
    pipelines: Sequence[Names],
    open_one: Callable[[Names], T],
    plan_one: Callable[[Names, T], SavedPlan],
    at_once: int,
) -> tuple[list[SavedPlan], list[Failure]]:
    def plan(names: Names, opened: T | KafkaOffsetsError) -> SavedPlan | Failure:
        try:
            if isinstance(opened, KafkaOffsetsError):
                raise opened
            return plan_one(names, opened)
        except KafkaOffsetsError as error:
            return Failure(", ".join(GroupSelection.parse(names.group_id).group_ids), error)

    found = call_each(plan, pipelines, open_one, at_once)
    plans = [each for each in found if isinstance(each, SavedPlan)]
    return plans, [each for each in found if isinstance(each, Failure)]


def failures_error(failures: Sequence[Failure]) -> PlanRefusedError:
    """Return the error of pipelines that cannot be moved, with the reason of each."""
    retriable = all(each.error.retriable for each in failures)
    reasons = [
        f"group {each.name}: {reason}"
        for each in failures
        for reason in getattr(each.error, "refusals", [each.error])
    ]
    return PlanRefusedError(reasons, retriable=retriable)


def check_disjoint(plans: Sequence[SavedPlan]) -> None:
    """Refuse plans if two of them move the same checkpoint or partition of a group."""
    moved: set[tuple[str, str]] = set()
    for each in plans:
        # Two connections may lead to one cluster.
        cluster = each.log_ids.cluster or str(each.target_names.kafka_config_id)
        parts = {
            (f"{tp} of group {shorten(group.group_id)}", cluster)
            for group in each.groups
            for tp in group.after
        }
        if each.checkpoint is not None:
            parts.add((f"checkpoint {one_spelling(each.checkpoint.location)}", ""))
        if twice := sorted(moved & parts):
            raise PlanRefusedError(
                f"two pipelines move {twice[0][0]}: give them one entry, with a group for each topic"
            )
        moved |= parts


class FleetMoves:
    """Moves or restores a fleet, and saves the progress of each pipeline."""

    def __init__(self, fleet: Fleet, keep: Keep, open_one: Open, by: CommitMetadata) -> None:
        self.fleet = fleet
        self._keep, self._open, self._by = keep, open_one, by
        self._lock = Lock()

    def apply(self, *, quiet_period: float, max_age: timedelta, at_once: int) -> list[Failure]:
        """
        Move each pipeline that was not moved before.

        If a reset fails, no others are started. A failover that fails does not hold the others back: their
        old cluster may be gone.
        """

        def move(number: int, member: Member, opened: Opened) -> dict[str, Any]:
            client, checkpoint = opened
            if member.stage == "applying" and checkpoint is not None:
                made = newest_move_of(member.plan, checkpoint)
                if made is not None and made.done and not made.undone:
                    return {"stage": "applied"}
                if not has_moved(client, checkpoint, member.applied):
                    # It failed before its first write. If its plan is refused now, it can be planned again.
                    self._note(number, stage="planned", receipt=None)
            plan, by = self._plan_again(opened, member.plan, max_age)
            plan.check()
            self._note(number, stage="applying", receipt=plan.make_receipt(), error=None)
            return {"stage": "applied", "receipt": apply_pipeline(client, plan, by, checkpoint, quiet_period)}

        return self._each(
            ("planned", "applying"), move, at_once, stop_after_failure=not self.fleet.fails_over
        )

    def _plan_again(
        self, opened: Opened, saved: SavedPlan, max_age: timedelta
    ) -> tuple[PipelinePlan, CommitMetadata]:
        """Return the plan that applies a saved plan, and the metadata of its commits."""
        by, now = replace(self._by, plan=saved.digest), datetime.now(tz=timezone.utc)
        if saved.left_logs is None:
            return plan_saved(*opened, saved, now=now, metadata=by, max_age=max_age), by
        plan = plan_saved_failover(*opened, saved, now=now, max_age=max_age)
        return plan, replace(by, tool=f"failover ({by.tool})")

    def restore(
        self, *, quiet_period: float, policy: CheckpointPolicy | None, at_once: int, **allowed: bool
    ) -> list[Failure]:
        """
        Undo the move of each pipeline, whether this copy of the file made it or another one.

        If one fails, the others are still restored.

        :param policy: permissions for the checkpoints; ``None`` for those of each plan.
        :param allowed: ``allow_stale`` and ``allow_new_cluster`` as in :func:`plan_restore_receipt`.
        """

        def restore(number: int, member: Member, opened: Opened) -> dict[str, Any]:
            client, checkpoint = opened
            names, receipt, begun = member.plan.names, member.applied, member.stage in BEGUN
            if member.stage in ("planned", "applying") and not has_moved(
                client, checkpoint, receipt, begun=begun
            ):
                return {"stage": "planned", "receipt": None}
            made = newest_move_of(member.plan, checkpoint)
            # Another command may have taken it back, perhaps without the groups. After a failover, these are
            # on the mirror, which the query has left.
            if (
                made is not None
                and made.undone
                and (made.is_failover or not _has_commits_to_undo(client, receipt))
            ):
                return {"stage": "restored"}
            selection = GroupSelection.parse(names.group_id, names.topics)
            how: dict[str, Any] = {"policy": policy or member.plan.policy, "metadata": self._by, **allowed}
            if made is not None and checkpoint is not None:
                # Another copy of the file may have made it, in another archive than the receipt's.
                plan = plan_restore_archive(client, made.name, checkpoint, selection, **how)
            else:
                plan = plan_restore_receipt(client, receipt, checkpoint, selection, **how)
            plan = replace(plan, may_be_empty=True)
            plan.check()
            self._note(number, stage="restoring", restored=plan.make_receipt(), error=None)
            restored = apply_pipeline(client, plan, self._by, checkpoint, quiet_period)
            return {"stage": "restored", "restored": restored}

        return self._each((*BEGUN, "planned"), restore, at_once)

    def _each(
        self,
        stages: Collection[Stage],
        move: Callable[[int, Member, Opened], dict[str, Any]],
        at_once: int,
        *,
        stop_after_failure: bool = False,
    ) -> list[Failure]:
        """Call a function for each pipeline in some stages; save its changes or its error."""
        members = self.fleet.members
        numbers = [number for number, each in enumerate(members) if each.stage in stages]
        stopped = Event()

        def attempt(number: int, opened: Opened | KafkaOffsetsError) -> Failure | None:
            if stopped.is_set():
                return None
            member = members[number]
            try:
                try:
                    if isinstance(opened, KafkaOffsetsError):
                        raise opened
                    self._note(number, error=None, **move(number, member, opened))
                except KafkaOffsetsError as error:
                    if stop_after_failure:
                        stopped.set()
                    self._note(number, error=str(error))
                    return Failure(member.name, error)
            except BaseException:
                # A defect, or the progress cannot be saved.
                stopped.set()
                raise
            return None

        def open_one(number: int) -> Opened:
            return self._open(members[number].plan.target_names)

        # What cannot be opened is known before the first move, and would stop a reset half-way.
        found = call_each(attempt, numbers, open_one, at_once, all_must_open=stop_after_failure)
        return [each for each in found if each is not None]

    def _note(self, number: int, **changes: Any) -> None:
        """Save the progress of a pipeline before its next step."""
        with self._lock:
            self.fleet = self.fleet.with_member(number, **changes)
            self._keep(self.fleet)


def _has_commits_to_undo(client: OffsetsClient, receipt: Receipt) -> bool:
    """Return whether a group still has commits of a plan that can be taken back."""
    return any(
        offset not in (None, group.after[tp])
        for group in receipt.groups
        for tp, offset in offsets_before(
            receipt.plan, group, client.committed(group.group_id, group.after)
        ).items()
    )
