"""Finds what was triggered by commits that a move takes back: events of assets, and the runs they made."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.pipeline import group_uri

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.model.saved_plan import SavedPlan

log = logging.getLogger(__name__)

MOST = 50
"""Events of a group that are read, the newest first."""


def triggered_by_commits(context: Context, task: Any, saved: SavedPlan) -> list[dict[str, Any]] | None:
    """
    Return runs, and events that no run has taken yet, that speak of offsets which a plan takes back.

    Airflow tells a task of the events of the assets in its ``inlets`` only. Events have the number of records
    of a commit, and not its offsets: those that speak of what is taken back are the newest ones that together
    have as many.

    :return: ``None`` if that is not known: the group's asset is no inlet, or Airflow did not answer.
    """
    found: list[dict[str, Any]] = []
    known = False
    inlets = {getattr(inlet, "uri", None): inlet for inlet in getattr(task, "inlets", None) or ()}
    for group in saved.groups:
        uri = group_uri(saved.names.kafka_config_id or "kafka_default", group.group_id)
        if uri not in inlets or "inlet_events" not in context:
            continue
        back = sum(max(0, (group.before.get(tp) or 0) - to) for tp, to in group.after.items())
        try:
            events = _newest(context["inlet_events"][inlets[uri]])
            known = True
        except Exception as error:  # noqa: BLE001  # a plan does not fail for what it cannot list
            # Airflow 3.3 answers 500 while a run that an event has made has not begun.
            log.warning("What the commits of group %r have triggered is not known: %s", group.group_id, error)
            return None
        for event in events:
            if back <= 0:
                break
            records = (event.extra or {}).get("records")
            back -= max(0, records) if isinstance(records, int) else 0
            found += _told(event)
    return found if known else None


def _newest(accessor: Any) -> list[Any]:
    """Return the newest events of an asset, the newest first."""
    if hasattr(accessor, "ascending") and hasattr(accessor, "limit"):
        return list(accessor.ascending(False).limit(MOST))
    return list(accessor)[::-1][:MOST]  # Airflow 3.1


def _told(event: Any) -> list[dict[str, Any]]:
    """Return who was told of an event, or the event itself if nobody was yet."""
    at = event.timestamp.isoformat()
    runs = [_run(run, at) for run in event.created_dagruns]
    return runs or [{"dag_id": None, "run_id": None, "state": None, "at": at}]


def _run(run: Any, at: str) -> dict[str, Any]:
    return {"dag_id": run.dag_id, "run_id": run.run_id, "state": str(run.state), "at": at}
