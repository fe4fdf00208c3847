"""The actions of a worker, made as the operators, sensors, triggers and commands make them."""

import asyncio
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.cli import main as command_line
from airflow_kafka_offsets.cli.execution import REFUSED
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.apply import apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit, retry_while_checkpoint_moves
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_receipt
from airflow_kafka_offsets.moves.window_commit import apply_window, plan_window_commits, window_targets
from airflow_kafka_offsets.readings.drift import pipeline_drift
from airflow_kafka_offsets.readings.places import read_place
from airflow_kafka_offsets.readings.window import plan_window
from airflow_kafka_offsets.triggers.event import LagEventTrigger
from airflow_kafka_offsets.triggers.poll import poll_repeatedly
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import Reading, Wait

CALL, ALL_CALLS = 8.0, 24.0
"""Seconds for a call of the client, and for all calls of an action."""

CONNECTION = "soak"
ANSWER = 60.0
"""Seconds within which a wait has an answer, whatever it meets."""


@dataclass(frozen=True)
class Order:
    """
    What a worker is to do.

    :param name: of the action.
    :param run: the DAG run that it belongs to; with the name of the action it is a task.
    :param config: of the Kafka client.
    :param checkpoint: directory, empty for a pipeline without one.
    :param given: what the action needs besides: a scenario, a receipt, a target, an archive.
    """

    name: str
    run: str
    config: dict[str, Any]
    group: str
    topic: str
    checkpoint: str = ""
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> CommitMetadata:
        """What the task's commits record."""
        token = f"{self.run}-{self.name}"
        return CommitMetadata(dag="soak", run=self.run, task=self.name, token=token, at=int(time.time()))

    @property
    def named(self) -> GroupSelection:
        """The names of the pipeline."""
        return GroupSelection.parse(self.group, self.topic)

    def open_checkpoint(self) -> SparkCheckpoint | None:
        """Open the checkpoint, if there is one."""
        return SparkCheckpoint(self.checkpoint) if self.checkpoint else None

    @property
    def policy(self) -> CheckpointPolicy | None:
        """What a move may do to an unfinished batch."""
        return CheckpointPolicy("discard", idempotent_sink=True) if self.checkpoint else None


def carry_out(order: Order) -> Any:
    """Carry out an order, and return plain data."""
    if order.name == "cli-restore":
        return _restore_by_command(order)
    if order.name == "wait":
        return _wait(order)
    with OffsetsClient(order.config, timeout=CALL, total=ALL_CALLS) as client:
        return _WITH_CLIENT[order.name](order, client)


def _commit(order: Order, client: OffsetsClient) -> Any:
    checkpoint = SparkCheckpoint(order.checkpoint)

    def once() -> Any:
        plan, metadata, moves = plan_checkpoint_commit(client, checkpoint, order.named, order.metadata)
        return apply_position(client, plan, metadata, moves)

    return retry_while_checkpoint_moves()(once)


def _reset(order: Order, client: OffsetsClient) -> Any:
    checkpoint = order.open_checkpoint()
    plan = plan_reset(
        client,
        checkpoint,
        order.named,
        read_place(*order.given["scenario"]),
        now=datetime.now(tz=timezone.utc),
        on_out_of_range="clamp",
        policy=order.policy,
        metadata=order.metadata,
    )
    return apply_pipeline(client, plan, order.metadata, checkpoint, quiet_period=0)


def _restore(order: Order, client: OffsetsClient) -> Any:
    checkpoint = order.open_checkpoint()
    receipt = Receipt.parse(order.given["receipt"])
    plan = plan_restore_receipt(
        client, receipt, checkpoint, order.named, policy=order.policy, allow_stale=True
    )
    return apply_pipeline(client, plan, order.metadata, checkpoint, quiet_period=0)


def _plan_window(order: Order, client: OffsetsClient) -> Any:
    start, end = Place("committed"), Place("latest")
    return plan_window(client, order.named, start, end, now=datetime.now(tz=timezone.utc)).as_json()


def _window(order: Order, client: OffsetsClient) -> Any:
    window = OffsetWindow.parse(order.given["window"])
    plans = plan_window_commits(client, window, window_targets(window, order.named), source={"window": {}})
    return apply_window(client, PipelinePlan(plans), order.metadata, window, fenced=order.given["fenced"])


def _drift(order: Order, client: OffsetsClient) -> Any:
    (report,) = pipeline_drift(client, SparkCheckpoint(order.checkpoint), order.named)
    return {"drifted": report.drifted, "unfinished": report.unfinished_move}


_WITH_CLIENT: dict[str, Callable[[Order, OffsetsClient], Any]] = {
    "commit": _commit,
    "reset": _reset,
    "restore": _restore,
    "plan-window": _plan_window,
    "window": _window,
    "drift": _drift,
}


def _restore_by_command(order: Order) -> Any:
    """Run the command that the error about an unfinished move names."""
    config = Path(os.environ["TMPDIR"]).with_suffix(".properties")
    config.write_text("".join(f"{key}={value}\n" for key, value in order.config.items()), encoding="utf-8")
    arguments = ["group", "restore", order.group, "--checkpoint", order.checkpoint]
    arguments += ["--archive", order.given["archive"], "--timeout", f"{CALL:g}"]
    arguments += ["--bootstrap-server", order.config["bootstrap.servers"], "--command-config", str(config)]
    arguments += ["--quiet-period", "0", "--on-pending-batch", "discard", "--idempotent-sink", "--execute"]
    output, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    sys.argv = ["airflow-kafka-offsets", *arguments]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            command_line()
    except SystemExit as error:
        if error.code == REFUSED:
            raise CommandError(errors.getvalue().strip()) from None
        if error.code:
            raise
    return {"verified": True}


class CommandError(Exception):
    """The command line refused; with what it printed."""


def _wait(order: Order) -> Any:
    """Poll for two waits and an event trigger on one connection, until each has an answer."""
    extra = {**order.config, "group.id": "unused"}
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = json.dumps({"conn_type": "kafka", "extra": extra})
    names: dict[str, Any] = {"group_id": order.group, "topics": order.topic, "kafka_config_id": CONNECTION}
    lag = LagWait(**names, max_lag=order.given["max_lag"])
    reached = ReachedWait(**names, target={order.topic: order.given["target"]})
    waits: dict[str, Wait] = {"lag": lag, "reached": reached}
    if order.checkpoint:
        of_query = {**names, "checkpoint_location": order.checkpoint, "position": "checkpoint"}
        waits["processed"] = ReachedWait(**of_query, target=reached.target)
    trigger = LagEventTrigger(**names, min_lag=order.given["max_lag"] + 1, poll_interval=1)

    async def first(wait: Wait) -> bool:
        async with contextlib.aclosing(poll_repeatedly(wait, 1.0)) as outcomes:
            async for outcome in outcomes:
                if not isinstance(outcome, Exception):
                    reading: Reading = outcome
                    return reading.done
                if not getattr(outcome, "retriable", False):
                    raise outcome
        raise AssertionError("polls ended")

    async def fires(while_waiting: asyncio.Task[bool]) -> bool:
        event = asyncio.ensure_future(_first_event(trigger))
        if await while_waiting:
            # The lag is below the threshold: the trigger has some polls more to be wrong.
            await asyncio.wait([event], timeout=1.5)
        else:
            await asyncio.wait([event])
        fired = event.done()
        event.cancel()
        await asyncio.gather(event, return_exceptions=True)
        return fired

    async def everything() -> dict[str, bool]:
        waiting = {name: asyncio.ensure_future(first(wait)) for name, wait in waits.items()}
        fired = await fires(waiting["lag"])
        return {"fired": fired} | {name: await result for name, result in waiting.items()}

    return asyncio.run(asyncio.wait_for(everything(), ANSWER))


async def _first_event(trigger: LagEventTrigger) -> object:
    events = trigger.run()
    try:
        return await anext(events)
    finally:
        await cast("AsyncGenerator[object, None]", events).aclose()
