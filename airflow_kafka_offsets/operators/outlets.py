"""Asset events of consumer groups: only for the groups to which a task has committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias, Context

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.text import join_first
from airflow_kafka_offsets.pipeline import KAFKA_GROUP_SCHEME, group_uri
from airflow_kafka_offsets.task.airflow_errors import AirflowRuntimeError, is_missing_asset
from airflow_kafka_offsets.task.identity import map_index


def event_extra(receipt: Mapping[str, Any], batch_id: int | None) -> dict[str, Any]:
    """Return the ``extra`` of the asset event for one group's receipt: the totals of its move."""
    extra = {
        "version": 1,
        "group_id": receipt["group_id"],
        "partitions": sum(map(len, receipt["after"].values())),
        "changed": receipt["changed"],
        "moved_by": receipt["moved_by"],
        "batch_id": batch_id,
    }
    # With more topics an event has only the group's totals; the receipt in XCom has all topics.
    if len(receipt["after"]) <= 50:
        extra["topics"] = {topic: _topic_totals(receipt, topic) for topic in receipt["after"]}
    return extra


class GroupOutlets:
    """
    The outlets of a task that represent consumer groups.

    Airflow sends an event for every outlet of a successful task, for each index of a mapped task: 40 mapped
    commits with 40 assets would send 1,600 events. Airflow reads the outlets when the task ends. So the
    groups' assets are removed at first, and added again for the groups that are committed.
    """

    def __init__(self, declared: Iterable[Any]) -> None:
        self.declared = list(declared)
        self.groups = [outlet for outlet in self.declared if _asset_uri(outlet)]
        self.sent: list[Any] = []

    @property
    def outlets_with_events(self) -> list[Any]:
        """The outlets for which Airflow sends an event if the task ends now."""
        return [outlet for outlet in self.declared if not _asset_uri(outlet) or outlet in self.sent]

    def check_groups(self, context: Context, kafka_config_id: str, group_ids: Iterable[str]) -> None:
        """Refuse the asset of a group that is not the task's, unless another map index may have it."""
        own = sorted({group_uri(kafka_config_id, group_id) for group_id in group_ids if group_id})
        others = [uri for outlet in self.groups if (uri := _asset_uri(outlet)) not in own]
        if others and map_index(context) < 0:
            raise PlanRefusedError(
                f"outlets names {join_first(others)}, the asset of a group that this task does not commit to "
                f"(its own: {join_first(own)}): a DAG scheduled on that asset would run without new data; "
                "use asset or assets of the same KafkaPipeline"
            )

    def set_events(self, context: Context, kafka_config_id: str, extras: Iterable[dict[str, Any]]) -> None:
        """Let Airflow send events for the groups that the task is about to commit, if it then succeeds."""
        if "outlet_events" not in context:
            return
        by_uri = {group_uri(kafka_config_id, extra["group_id"]): extra for extra in extras}
        self.sent = [outlet for outlet in self.groups if _asset_uri(outlet) in by_uri]
        for outlet in self.sent:
            context["outlet_events"][outlet].extra = by_uri[_asset_uri(outlet)]
        for alias in self.declared:
            if isinstance(alias, AssetAlias):
                events = context["outlet_events"][alias]
                # Remove earlier events: a commit starts again if its checkpoint was moved meanwhile.
                events.asset_alias_events = [
                    event for event in events.asset_alias_events if not _asset_uri(event.dest_asset_key)
                ]
                for uri, extra in by_uri.items():
                    _add_event(events, uri, extra)


def _topic_totals(receipt: Mapping[str, Any], topic: str) -> dict[str, int]:
    """Return ``from`` and ``until``, summed over the partitions of a topic, and their number."""
    # Without a commit a group reads from the log start. So until - from is the number of records.
    starts = receipt["log_start"][topic]
    before = [starts[number] if at is None else at for number, at in receipt["before"][topic].items()]
    after = receipt["after"][topic].values()
    return {"from": sum(before), "until": sum(after), "partitions": len(after)}


def _asset_uri(outlet: Any) -> str:
    """Return the URI of a group's asset, empty for any other outlet."""
    uri = getattr(outlet, "uri", None) or ""
    return uri if uri.startswith(f"{KAFKA_GROUP_SCHEME}://") else ""


def _add_event(events: Any, uri: str, extra: dict[str, Any]) -> None:
    try:
        # The asset with this URI, whatever its name.
        events.add(Asset.ref(uri=uri), extra)
    except AirflowRuntimeError as error:
        if not is_missing_asset(error):
            raise
        events.add(Asset(name=uri, uri=uri), extra)
