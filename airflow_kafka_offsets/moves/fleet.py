"""Plans, moves and restores many pipelines in waves, each like a single pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.errors import KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.fleet import BEGUN, Fleet, Member, Stage
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import Offsets, Positions, committed_offsets
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_receipt
from airflow_kafka_offsets.moves.saved import has_moved, plan_saved, save_plan
from airflow_kafka_offsets.readings.record_times import look_up_times

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Default number of pipelines that are planned at the same time."""

Keep = Callable[[Fleet], None]
"""Saves a fleet so that it survives the end of this process."""


Opened = tuple["OffsetsClient", "SparkCheckpoint | None"]
"""The client and the checkpoint of a pipeline."""

Open = Callable[[Names], Opened]
"""
Opens a pipeline. It is called in the caller's thread, because Airflow's connections are read there, and
without its log.
"""


class Failure(NamedTuple):
    """A pipeline that could not be planned, moved or restored."""

    name: str
    error: KafkaOffsetsError

    def __str__(self) -> str:
        return f"{self.name}: {self.error}"


def plan_all(
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

    def plan(names: Names, opened: Opened | KafkaOffsetsError) -> SavedPlan | Failure:
        try:
            if isinstance(opened, KafkaOffsetsError):
                raise opened
            client, checkpoint = opened
            selection = GroupSelection.parse(names.group_id, names.topics)
            made = plan_reset(client, checkpoint, selection, place, now=now, **allowed, **how)
            made.check()
            return save_plan(client, checkpoint, look_up_times(client, made), names, now=now, **allowed)
        except KafkaOffsetsError as error:
            return Failure(f"group {shorten(names.group_id)}", error)

    with ThreadPoolExecutor(min(at_once, len(pipelines))) as threads:
        found = list(threads.map(plan, pipelines, [_opened(open_one, names) for names in pipelines]))
    if failures := [each for each in found if isinstance(each, Failure)]:
        raise PlanRefusedError(
            [f"{each}" for each in failures], retriable=all(each.error.retriable for each in failures)
        )
    plans = [each for each in found if isinstance(each, SavedPlan)]
    check_disjoint(plans)
    return plans


def _opened(open_one: Open, names: Names) -> Opened | KafkaOffsetsError:
    try:
        return open_one(names)
    except KafkaOffsetsError as error:
        return error


def check_disjoint(plans: Sequence[SavedPlan]) -> None:
    """Refuse plans if two of them move the same checkpoint or partition of a group."""
    moved: set[tuple[str, str]] = set()
    for each in plans:
        # Two connections may lead to one cluster.
        cluster = each.log_ids.cluster or str(each.names.kafka_config_id)
        parts = {
            (f"{tp} of group {shorten(group.group_id)}", cluster)
            for group in each.groups
            for tp in group.after
        }
        if each.checkpoint is not None:
            parts.add((f"checkpoint {each.checkpoint.location}", ""))
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
        """Move each pipeline that was not moved before. If one fails, no others are started."""

        def move(number: int, member: Member, opened: Opened) -> dict[str, Any]:
            by = replace(self._by, plan=member.plan.digest)
            client, checkpoint = opened
            now = datetime.now(tz=timezone.utc)
            plan = plan_saved(client, checkpoint, member.plan, now=now, metadata=by, max_age=max_age)
            plan.check()
            self._note(number, stage="applying", receipt=plan.make_receipt(), error=None)
            return {"stage": "applied", "receipt": apply_pipeline(client, plan, by, checkpoint, quiet_period)}

        return self._each(("planned", "applying"), move, at_once, stop_after_failure=True)

    def restore(
        self, *, quiet_period: float, policy: CheckpointPolicy | None, allow_stale: bool, at_once: int
    ) -> list[Failure]:
        """
        Undo the move of each pipeline that was moved. If one fails, the others are still restored.

        :param policy: permissions for the checkpoints; ``None`` for those of each plan.
        :param allow_stale: whether to undo a move although the pipeline has continued since.
        """

        def restore(number: int, member: Member, opened: Opened) -> dict[str, Any]:
            client, checkpoint = opened
            names, receipt = member.plan.names, Receipt.parse(member.receipt or {})
            if member.stage == "applying" and not has_moved(client, checkpoint, receipt):
                return {"stage": "planned", "receipt": None}
            plan = plan_restore_receipt(
                client,
                receipt,
                checkpoint,
                GroupSelection.parse(names.group_id, names.topics),
                policy=policy or member.plan.policy,
                metadata=self._by,
                allow_stale=allow_stale,
                allow_new_cluster=member.plan.allow_new_cluster,
            )
            plan = replace(plan, may_be_empty=True)
            plan.check()
            self._note(number, stage="restoring", restored=plan.make_receipt(), error=None)
            restored = apply_pipeline(client, plan, self._by, checkpoint, quiet_period)
            return {"stage": "restored", "restored": restored}

        return self._each(BEGUN, restore, at_once)

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
        failed = Event()

        def attempt(number: int, opened: Opened | KafkaOffsetsError) -> Failure | None:
            if stop_after_failure and failed.is_set():
                return None
            member = members[number]
            try:
                if isinstance(opened, KafkaOffsetsError):
                    raise opened
                self._note(number, error=None, **move(number, member, opened))
            except BaseException as error:
                failed.set()
                if not isinstance(error, KafkaOffsetsError):
                    raise
                self._note(number, error=str(error))
                return Failure(member.name, error)
            return None

        with ThreadPoolExecutor(min(at_once, len(numbers) or 1)) as threads:
            opened = [_opened(self._open, members[number].plan.names) for number in numbers]
            return [each for each in threads.map(attempt, numbers, opened) if each is not None]

    def _note(self, number: int, **changes: Any) -> None:
        """Save the progress of a pipeline before its next step."""
        with self._lock:
            self.fleet = self.fleet.with_member(number, **changes)
            self._keep(self.fleet)


def pipeline_state(opened: Opened, saved: SavedPlan) -> tuple[str, int]:
    """
    Compare the groups and the checkpoint with the offsets before and after a plan.

    :return: where the pipeline is now (``not moved``, ``moved``, ``moved in part``, ``read on`` or
        ``elsewhere``), and its lag.
    """
    client, checkpoint = opened
    found: set[str] = set()
    lag = 0
    for group in saved.groups:
        commits = client.committed(group.group_id, group.after)
        now = committed_offsets(commits)
        found |= _states(now, group.before, group.after)
        lag += Lag.measure(group.group_id, now, client.log_ranges(group.after), "earliest").total
    if checkpoint is not None and saved.checkpoint is not None:
        offsets = checkpoint.read().kafka_offsets
        for source, before in saved.checkpoint.before.items():
            after = saved.checkpoint.after.get(source, {})
            now = {tp: offsets.get(source, {}).get(tp) for tp in before}
            found |= _states(now, dict(before), after)
    if len(found) < 2:
        return found.pop() if found else "moved", lag
    if found == {"not moved", "moved"}:
        return "moved in part", lag
    return "elsewhere" if "elsewhere" in found else "read on", lag


def _states(now: Positions, before: Positions, after: Offsets) -> set[str]:
    """Compare the offsets of moving partitions with those before and after the plan."""
    states = set()
    for tp, to in after.items():
        at, was = now.get(tp), before.get(tp)
        if at == to:
            if was != to:
                states.add("moved")
        elif at == was:
            states.add("not moved")
        elif at is not None and at > to:
            states.add("read on")
        else:
            states.add("elsewhere")
    return states
