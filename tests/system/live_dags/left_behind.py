"""Two triggers with a name that an older version took: one watches an asset, the other continues for a sensor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.triggers.event import LagEventTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

TOPIC = os.environ["LEFT_TOPIC"]


def left_behind(trigger: Any) -> Any:
    """Return a trigger that comes into the database as an older version would have written it."""
    path, parameters = trigger.serialize()
    trigger.serialize = lambda: (path, {**parameters, "group_id": {TOPIC: " "}})
    return trigger


class OlderSensor(ConsumerGroupLagSensor):
    """Defers as an older version did."""

    def defer(self, *, trigger: BaseTrigger, **parameters: Any) -> NoReturn:
        """Defer with the trigger of an older version."""
        super().defer(trigger=left_behind(trigger), **parameters)


watched = LagEventTrigger(group_id="left", topics=[TOPIC], min_lag=1, poll_interval=1)
backlog = Asset("left_backlog", watchers=[AssetWatcher(name="lag", trigger=left_behind(watched))])

with DAG("left_behind", schedule=None):
    OlderSensor(
        task_id="lag",
        group_id="left",
        topics=[TOPIC],
        max_lag=0,
        on_no_commit="earliest",
        deferrable=True,
        poke_interval=1,
        timeout=120,
    )

with DAG("never", schedule=[backlog]):

    @task
    def never() -> None:
        """Do nothing."""

    never()
