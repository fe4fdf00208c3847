"""Finds asset events of commits that a move undoes, and the runs that these events started."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.saved_plan import SavedPlan
from airflow_kafka_offsets.pipeline import group_uri

log = logging.getLogger(__name__)

MOST_EVENTS = 50
"""Maximum number of a group's events to read; the newest ones are read."""


def triggered_by_commits(context: Context, task: Any, saved: SavedPlan) -> list[dict[str, Any]] | None:
    """
    Return the runs and the queued events that depend on commits which a plan undoes.

    Airflow shows a task only the events of its ``inlets``. An event has the sum of the committed offsets of
    each topic. The plan undoes a commit if this sum is greater than the sum of the plan's own offsets.

    :return: ``None`` if unknown: no group's asset is an inlet, Airflow did not answer, or the events that are
        found have sums over other partitions.
    """
    found: list[dict[str, Any]] = []
    known = unclear = False
    inlets = {getattr(inlet, "uri", None): inlet for inlet in task.inlets}
    for group in saved.groups:
        uri = group_uri(saved.names.kafka_config_id or "kafka_default", group.group_id)
        if uri not in inlets or "inlet_events" not in context:
            continue
        try:
            events = _newest(context["inlet_events"][inlets[uri]])
            known = True
        except Exception as error:  # noqa: BLE001  # a plan does not fail if it cannot list events
            # Airflow 3.3 responds with status 500 while a run of an event has not started.
            log.warning("Runs that commits of group %r triggered are unknown: %s", group.group_id, error)
            return None
        verdicts = [_is_beyond(event.extra or {}, group.after) for event in events]
        unclear = unclear or None in verdicts
        beyond = [event for event, is_beyond in zip(events, verdicts, strict=True) if is_beyond]
        if len(beyond) == MOST_EVENTS:
            log.warning(
                "Group %r has at least %d commits beyond the plan: runs that earlier ones have triggered are "
                "not listed",
                *(group.group_id, MOST_EVENTS),
            )
        found += [run for event in beyond for run in _runs_of(event)]
    return found if found or (known and not unclear) else None


def _is_beyond(extra: Mapping[str, Any], after: Offsets) -> bool | None:
    """Return whether a commit was beyond the plan's offsets in a topic of a group; ``None`` if unknown."""
    totals: dict[str, list[int]] = {}
    for (topic, _), offset in after.items():
        totals.setdefault(topic, []).append(offset)
    topics = extra.get("topics")
    beyond: bool | None = False
    for topic, sums in topics.items() if isinstance(topics, Mapping) else ():
        if topic not in totals:
            continue
        until = sums.get("until") if isinstance(sums, Mapping) else None
        # Sums over different partitions cannot be compared.
        if not isinstance(until, int) or sums.get("partitions") != len(totals[topic]):
            beyond = None
        elif until > sum(totals[topic]):
            return True
    return beyond


def _newest(accessor: Any) -> list[Any]:
    """Return the newest events of an asset, from new to old."""
    if hasattr(accessor, "ascending") and hasattr(accessor, "limit"):
        return list(accessor.ascending(False).limit(MOST_EVENTS))
    return list(accessor)[::-1][:MOST_EVENTS]  # Airflow 3.1


def _runs_of(event: Any) -> list[dict[str, Any]]:
    """Return the runs that an event has started; without a run, the event itself."""
    at = event.timestamp.isoformat()
    return [
        {"dag_id": run.dag_id, "run_id": run.run_id, "state": str(run.state), "at": at}
        for run in event.created_dagruns
    ] or [{"dag_id": None, "run_id": None, "state": None, "at": at}]
