"""Plans the resets or the failovers of many pipelines, several at a time, each like a single pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from queue import SimpleQueue
from typing import Any, TypeVar

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.fleet import Failure
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import one_spelling
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.moves.failover import plan_failover
from airflow_kafka_offsets.moves.fleet import AT_ONCE, Open, Opened, open_or_error
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.saved import save_plan
from airflow_kafka_offsets.readings.topic_times import look_up_times

T = TypeVar("T")

BothClusters = tuple["OffsetsClient | None", "OffsetsClient"]
"""Clients of the cluster that pipelines leave (``None`` if it does not answer) and of the mirror."""


def plan_resets(
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
        raise refused_by_all(failures)
    check_disjoint(plans)
    return plans


def plan_failovers(
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

    with ThreadPoolExecutor(min(at_once, len(pipelines))) as threads:
        opened = [open_or_error(open_one, names) for names in pipelines]
        found = list(threads.map(plan, pipelines, opened))
    plans = [each for each in found if isinstance(each, SavedPlan)]
    return plans, [each for each in found if isinstance(each, Failure)]


def refused_by_all(failures: Sequence[Failure]) -> PlanRefusedError:
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
