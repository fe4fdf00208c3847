"""Waits outside of a running Airflow: what a task instance and a triggerer do for them."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import timezone
from pydantic import JsonValue, TypeAdapter

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor
from airflow_kafka_offsets.triggers import poll, shared_poller

WAYS = ("poke", "reschedule", "deferrable")
FOREVER = {"retention.ms": "-1"}
OLD = 1_357_000_000_000
"""In 2013."""


def now_ms() -> int:
    return int(time.time() * 1000)


def a_minute_ago() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))


@pytest.fixture
def behind(
    new_group: Callable[[], str],
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    commit: Callable[..., object],
) -> str:
    """A group that is 5 behind, and nobody reads."""
    group, topic = new_group(), make_topic(1)
    produce(topic, {0: 5})
    commit(group, topic, {0: 0})
    return group


def no_answer(*_: object, **__: object) -> Any:
    """In place of a client's method."""
    raise BrokerUnavailableError("no answer")


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the triggerer, too, polls may follow one another at once."""
    for module in (poll, shared_poller):
        monkeypatch.setattr(module, "FLOOR", 0.02)
    monkeypatch.setattr(shared_poller, "GATHER", 0.01)


def lag_sensor(group: str | None, **parameters: Any) -> Any:
    """Return a sensor that waits for a lag of 0, or for the thresholds that are given."""
    if not any(name.endswith("_lag") for name in parameters):
        parameters["max_lag"] = 0
    return ConsumerGroupLagSensor(task_id="gate", group_id=group, **parameters)


def reached_sensor(group: str, target: Any = "latest", **parameters: Any) -> Any:
    return OffsetsReachedSensor(task_id="gate", group_id=group, target=target, **parameters)


def topic_sensor(topics: str, target: str, **parameters: Any) -> Any:
    return TopicReachedSensor(task_id="gate", topics=topics, target=target, **parameters)


def poke_once(sensor: Any, context: Any) -> None:
    """Execute a sensor whose wait is not over, and that is to be rescheduled."""
    with pytest.raises(AirflowRescheduleException):
        sensor.execute(context)


def as_kept(value: Any) -> Any:
    """Return a value of a task's or an asset's state as Airflow keeps it; it refuses tuples, unlike json."""
    return json.loads(json.dumps(TypeAdapter(JsonValue).validate_python(value)))


class Store(dict[str, Any]):
    """A task's state, which Airflow 3.3 keeps over reschedules and retries."""

    def set(self, key: str, value: Any, **_kept_for: Any) -> None:
        self[key] = as_kept(value)


class TaskInstance:
    """As much of a task instance as a sensor outside a DAG needs."""

    dag_id, run_id, task_id, map_index, try_number, max_tries = "flights", "manual__1", "gate", -1, 1, 0

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}
        self.first_reschedule: datetime | None = None

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))

    def get_first_reschedule_date(self, context: Any) -> datetime | None:
        return self.first_reschedule


def reading_of(sensor: Any) -> tuple[bool, Any]:
    """Poke a sensor once; return whether its wait is over, and what it has read."""
    looked = sensor.poke({})
    sensor._close()
    return looked.is_done, looked.xcom_value


def again(trigger: Any) -> Any:
    """The trigger after its journey as JSON into the triggerer."""
    path, parameters = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    return type(trigger)(**json.loads(json.dumps(parameters)))


def end_of(trigger: Any, meanwhile: Callable[[], object] | None = None) -> Any:
    """Run a trigger as the triggerer does; return the payload of its event."""

    async def run() -> Any:
        events = again(trigger).run()
        task = asyncio.ensure_future(anext(events))
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        event = await asyncio.wait_for(task, 60)
        await events.aclose()
        return event

    return asyncio.run(run()).payload


def deferred(sensor: Any, context: Any) -> Any:
    """The trigger that a sensor goes on with."""
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context)
    return raised.value.trigger


def wait_by(way: str, make: Callable[..., Any], context: Any, meanwhile: Callable[[], object]) -> Any:
    """
    Wait with a sensor by "poke", "reschedule" or "deferrable"; return what it returns.

    make(**parameters) -> the sensor; meanwhile() is called once, after the first poll.
    """
    if way == "deferrable":
        sensor = make(deferrable=True, poke_interval=0.05)
        event = end_of(deferred(sensor, context), meanwhile)
        return make(deferrable=True).execute_complete(context, json.loads(json.dumps(event)))
    if way == "reschedule":
        poke_once(make(mode="reschedule"), context)
        meanwhile()
        return make(mode="reschedule").execute(context)
    sensor = make(poke_interval=0.05)
    polled = sensor.poke
    done: list[object] = []

    def poke(context: Any) -> Any:
        result = polled(context)
        if not done:
            done.append(meanwhile())
        return result

    sensor.poke = poke
    return sensor.execute(context)


def _wait_until_its_end(way: str, make: Callable[..., Any], context: Any) -> None:
    if way == "deferrable":
        event = end_of(deferred(make(deferrable=True, poke_interval=0.05), context))
        make(deferrable=True).resume_execution("execute_complete", {"event": event}, context)
    elif way == "poke":
        make(poke_interval=0.05).execute(context)
    deadline = time.monotonic() + 20
    while way == "reschedule" and time.monotonic() < deadline:
        with contextlib.suppress(AirflowRescheduleException):
            make(mode="reschedule", poke_interval=0.05).execute(context)
        assert context["ti"].xcoms == {}
        context["ti"].first_reschedule = context["ti"].first_reschedule or timezone.utcnow()


def ends(way: str, make: Callable[..., Any], context: Any, error: type[Exception]) -> tuple[Exception, Any]:
    """Wait until an error; return the error and what is in XCom then."""
    with pytest.raises(error) as raised:
        _wait_until_its_end(way, make, context)
    return raised.value, context["ti"].xcoms.get("return_value")
