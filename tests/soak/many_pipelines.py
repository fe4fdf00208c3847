"""Many pipelines of one broker, moved and awaited at the same time, each record counted once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import statistics
import threading
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import click
import psutil
from confluent_kafka import KafkaException

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.triggers.poll import poll_repeatedly
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait
from tests.soak.positions import committed, differences, log_ends, total

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.soak.positions import Offsets

GRACE = "PT2M"
INTERVAL = 10.0
"""Seconds between two polls of a wait."""

TARGETS = 10
"""Groups that are also waited for with a frozen target."""

RESET_EVERY = 5
"""Moves of a pipeline after which it is reset to the log start, and put back."""

READY = 60.0
"""Seconds within which new partitions can be read."""

KEPT_BATCHES = 100
"""Spark's default of ``spark.sql.streaming.minBatchesToRetain``."""

_HEAD = {"batchWatermarkMs": 0, "conf": {}}


class Pipeline:
    """A group, the topics that it reads, and how far: by a checkpoint or, without one, by windows."""

    def __init__(self, number: int, topics: Sequence[str], checkpoint: Path | None, fenced: bool) -> None:
        self.group = f"group-{number:02}"
        self.topics = list(topics)
        self.checkpoint = checkpoint
        self.fenced = fenced
        self.reached: Offsets = {}
        """The end of what was committed so far."""
        self.records = 0
        """Those between where each of its moves began and ended."""
        self._batch = -1
        if checkpoint is not None:
            for name in ("offsets", "commits"):
                (checkpoint / name).mkdir(parents=True)
            (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    @property
    def names(self) -> KafkaPipeline:
        """The pipeline as a DAG names it."""
        location = None if self.checkpoint is None else str(self.checkpoint)
        return KafkaPipeline(group_id=self.group, topics=self.topics, checkpoint_location=location)

    def run_batch(self, ends: Offsets) -> None:
        """Do what a query of Spark does with its checkpoint: plan a batch, finish it, drop old ones."""
        assert self.checkpoint is not None
        self._batch += 1
        head = _HEAD | {"batchTimestampMs": int(time.time() * 1_000)}
        self._write(f"offsets/{self._batch}", "\n".join(["v1", json.dumps(head), json.dumps(ends)]))
        self._write(f"commits/{self._batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        for name in ("offsets", "commits"):
            (self.checkpoint / name / str(self._batch - KEPT_BATCHES)).unlink(missing_ok=True)

    def _write(self, path: str, text: str) -> None:
        assert self.checkpoint is not None
        temporary = self.checkpoint / f"{path.replace('/', '/.')}.tmp"
        temporary.write_text(text)
        temporary.replace(self.checkpoint / path)


class ManyPipelines:
    """
    All pipelines, and what moves and awaits them.

    :param home: a directory for the checkpoints.
    :param topics: the topics, all with as many partitions.
    :param groups: how many pipelines; the last two read all topics.
    :param workers: tasks at once.
    """

    def __init__(self, servers: str, home: Path, topics: Sequence[str], groups: int, workers: int) -> None:
        self._config = {"bootstrap.servers": servers}
        self._topics = list(topics)
        self._pipelines = [
            Pipeline(
                number,
                topics if number >= groups - 2 else [topics[number % len(topics)]],
                None
                if (window := number % 4 == 3 or number == groups - 1)
                else home / f"checkpoint-{number}",
                fenced=window and number % 8 == 3,
            )
            for number in range(groups)
        ]
        self._workers = workers
        self._over = threading.Event()
        self._in_step = threading.Lock()
        """Taken by drift checks and by resets, which move the checkpoint before the group."""
        self._broken: list[str] = []
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._readings: dict[str, list[float]] = defaultdict(list)
        self._lags: dict[str, int] = {}
        logging.disable(logging.CRITICAL)

    def run(self, seconds: float) -> None:
        """Move and await the pipelines for some seconds, and print each minute what they take."""
        self._wait_for_leaders()
        began = self._began = time.monotonic()
        self._end = began + seconds
        work = [partial(self._work, number) for number in range(self._workers)]
        loops = [
            threading.Thread(target=self._to_the_end, args=(does,))
            for does in (self._wait_for_all, self._check_drift, *work)
        ]
        for loop in loops:
            loop.start()
        minute = 1
        while (now := time.monotonic()) < self._end:
            time.sleep(max(0.0, min(began + minute * 60, self._end) - now))
            click.echo(f"minute {minute:2}: {self._taken()}")
            minute += 1
        self._over.set()
        for loop in loops:
            loop.join()

    def _wait_for_leaders(self) -> None:
        deadline = time.monotonic() + READY
        while True:
            try:
                log_ends(self._config, self._topics)
            except (KafkaException, KeyError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def finish(self, written: dict[str, int]) -> list[str]:
        """Let each pipeline read what is left, print the figures, and return what is wrong."""
        failed, seconds_written = written.pop("", 0), time.monotonic() - self._began
        with ThreadPoolExecutor(self._workers) as pool:
            list(pool.map(self._move, self._pipelines))
        ends = log_ends(self._config, self._topics)
        self._call("drift at the end", partial(self._drift, "PT0S"))
        for topic, offsets in ends.items():
            if sum(offsets.values()) != written.get(topic):
                self._broken.append(f"{topic}: {sum(offsets.values())} records, written {written.get(topic)}")
        for each in self._pipelines:
            wanted = {topic: ends[topic] for topic in each.topics}
            if (found := committed(self._config, each.group, each.reached)) != wanted:
                self._broken.append(f"{each.group} is not at the log end: {differences(found, wanted)}")
            if each.reached != wanted:
                self._broken.append(f"{each.group} has not read all: {differences(each.reached, wanted)}")
        gaps = [later - earlier for times in self._readings.values() for earlier, later in pairwise(times)]
        if (mute := len(self._pipelines) - len(self._readings)) > 0:
            self._broken.append(f"{mute} waits had no reading")
        produced, wanted_by_all = sum(written.values()), sum(total(each.reached) for each in self._pipelines)
        counted = sum(each.records for each in self._pipelines)
        if counted != wanted_by_all:
            self._broken.append(f"{counted:,} records counted, of {wanted_by_all:,}")
        click.echo(
            f"records: {produced:,} written ({failed} failed), {produced / seconds_written:,.0f} a second; "
            f"{counted:,} of {wanted_by_all:,} counted by all groups"
        )
        for name, seconds in sorted(self._seconds.items()):
            longest = f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
            click.echo(f"{name}: {len(seconds):,}, {longest}")
        click.echo(
            f"lag waits: {len(gaps) + len(self._readings):,} readings every {INTERVAL:.0f} s, "
            f"longest gap {max(gaps, default=0):.1f} s"
        )
        return self._broken

    def _to_the_end(self, does: Callable[[], None]) -> None:
        try:
            does()
        except Exception as error:  # noqa: BLE001  # a loop that has ended early checks nothing
            self._broken.append(f"{does} has ended: {error!r}")

    def _work(self, worker: int) -> None:
        mine = self._pipelines[worker :: self._workers]
        for turn in count(1):
            for number, each in enumerate(mine):
                if self._over.is_set():
                    return
                self._move(each)
                if (turn + number) % RESET_EVERY == 0:
                    self._move_there_and_back(each)

    def _move(self, each: Pipeline) -> None:
        """Read what is new, commit it, and compare with where the last move has ended."""
        before = each.reached
        if each.checkpoint is not None:
            ends = log_ends(self._config, each.topics)
            each.run_batch(ends)
            committing = CommitOffsetsOperator(task_id="c", **each.names)
            receipt = self._call("commits of a checkpoint", partial(committing.execute, {}))
        else:
            planned = PlanOffsetWindowOperator(
                task_id="p", on_no_commit="earliest", on_empty="continue", **each.names
            )
            window = self._call("windows planned", partial(planned.execute, {}))
            if window is None:
                return
            task = CommitOffsetWindowOperator(task_id="w", window=window, fenced=each.fenced, **each.names)
            how = "fenced" if each.fenced else "not fenced"
            receipt = self._call(f"windows committed, {how}", partial(task.execute, {}))
            ends = window["end"]
        if receipt is None:
            return
        held = {
            topic: {p: at for p, at in found.items() if at is not None}
            for topic, found in receipt["before"].items()
        }
        held = {topic: found for topic, found in held.items() if found}
        if held != before:
            self._broken.append(f"{each.group} began at another place: {differences(held, before)}")
        if receipt["after"] != ends:
            self._broken.append(f"{each.group} did not get to the end: {differences(receipt['after'], ends)}")
        each.records += total(ends) - total(held)
        each.reached = ends

    def _move_there_and_back(self, each: Pipeline) -> None:
        """Reset a pipeline to the log start, put it back by the receipt, and compare."""
        with_checkpoint: dict[str, Any] = {} if each.checkpoint is None else {"quiet_period": 0}
        names = {**each.names, **with_checkpoint}
        reset = ResetOffsetsOperator(task_id="r", to_offset="earliest", **names)
        with self._in_step:
            receipt = self._call("resets", partial(reset.execute, {}))
            if receipt is None:
                return
            restore = RestoreOffsetsOperator(task_id="b", receipt=receipt, restore_when="always", **names)
            self._call("restores", partial(restore.execute, {}))
        if (found := committed(self._config, each.group, each.reached)) != each.reached:
            self._broken.append(f"{each.group} was not put back: {differences(found, each.reached)}")

    def _check_drift(self) -> None:
        while not self._over.is_set():
            with self._in_step:
                self._call("drift checks of all checkpoints", partial(self._drift, GRACE))
            self._over.wait(INTERVAL)

    def _drift(self, grace: str) -> Any:
        named = [each.names for each in self._pipelines if each.checkpoint is not None]
        return CheckOffsetDriftOperator(task_id="d", pipelines=named, grace=grace).execute({})

    def _call(self, name: str, does: Callable[..., Any]) -> Any:
        began = time.monotonic()
        try:
            return does()
        except Exception as error:  # noqa: BLE001  # there are no faults here: whatever fails is wrong
            self._broken.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
            return None
        finally:
            self._seconds[name].append(time.monotonic() - began)

    def _wait_for_all(self) -> None:
        asyncio.run(self._waits())

    async def _waits(self) -> None:
        following = [asyncio.ensure_future(self._follow(each)) for each in self._pipelines]
        following += [asyncio.ensure_future(self._reach(each)) for each in self._pipelines[:TARGETS]]
        await asyncio.to_thread(self._over.wait)
        for each in following:
            each.cancel()
        for outcome in await asyncio.gather(*following, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._broken.append(f"a wait has ended: {outcome!r}")

    async def _follow(self, each: Pipeline) -> None:
        wait = LagWait(group_id=each.group, topics=each.topics, max_lag=0, on_no_commit="earliest")
        async with contextlib.aclosing(poll_repeatedly(wait, INTERVAL)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, Exception):
                    self._broken.append(f"the wait for {each.group}: {outcome}")
                self._readings[each.group].append(time.monotonic())

    async def _reach(self, each: Pipeline) -> None:
        """Wait again and again for what is the log end at the moment; the producer goes on."""
        while True:
            began = time.monotonic()
            wait = await asyncio.to_thread(self._frozen, each)
            async with contextlib.aclosing(poll_repeatedly(wait, INTERVAL)) as outcomes:
                async for outcome in outcomes:
                    if isinstance(outcome, Exception):
                        self._broken.append(f"the target of {each.group}: {outcome}")
                    elif outcome.done:
                        break
            self._seconds["waits for a frozen target"].append(time.monotonic() - began)

    def _frozen(self, each: Pipeline) -> ReachedWait:
        with OffsetsClient(self._config) as client:
            return ReachedWait(group_id=each.group, topics=each.topics, target="latest").freeze(client, None)

    def _taken(self) -> str:
        me = psutil.Process()
        children = [child for child in me.children(recursive=True) if "java" not in child.name()]
        rss = me.memory_info().rss
        others = 0
        for child in children:
            with contextlib.suppress(psutil.Error):
                if "admin_worker" in " ".join(child.cmdline()):
                    others += 1
        written = total(log_ends(self._config, self._topics))
        calls = sum(map(len, list(self._seconds.values())))
        return (
            f"{rss / 1e6:.0f} MB, {me.num_threads()} threads, {me.num_fds()} files, {others} children; "
            f"{written:,} records, {calls:,} calls, {len(self._broken)} broken"
        )
