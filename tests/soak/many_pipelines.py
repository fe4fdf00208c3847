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
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click
import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.window import PlanOffsetWindowOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.triggers.poll import polls
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Offsets = dict[str, dict[str, int]]

GRACE = "PT2M"
INTERVAL = 10.0
"""Seconds between two polls of a wait."""

TARGETS = 10
"""Groups that are also waited for with a frozen target."""

READY = 60.0
"""Seconds within which new partitions can be read."""

KEPT_BATCHES = 100
"""Spark's default of ``spark.sql.streaming.minBatchesToRetain``."""

_AT_ONCE = 500
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
        self._broken: list[str] = []
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._readings: dict[str, list[float]] = defaultdict(list)
        self._lags: dict[str, int] = {}
        self._records = 0
        logging.disable(logging.CRITICAL)

    def run(self, seconds: float) -> None:
        """Move and await the pipelines for some seconds, and print each minute what they take."""
        self._wait_for_leaders()
        began = time.monotonic()
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
                self._ends(self._topics)
            except (KafkaException, KeyError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def finish(self, written: dict[str, int]) -> list[str]:
        """Let each pipeline read what is left, print the figures, and return what is wrong."""
        failed = written.pop("", 0)
        with ThreadPoolExecutor(self._workers) as pool:
            list(pool.map(self._move, self._pipelines))
        ends = self._ends(self._topics)
        self._call("drift at the end", partial(self._drift, "PT0S"))
        for topic, offsets in ends.items():
            if sum(offsets.values()) != written.get(topic):
                self._broken.append(f"{topic}: {sum(offsets.values())} records, written {written.get(topic)}")
        for each in self._pipelines:
            wanted = {topic: ends[topic] for topic in each.topics}
            if (found := self._committed(each)) != wanted:
                self._broken.append(f"{each.group} is not at the log end: {_differences(found, wanted)}")
            if each.reached != wanted:
                self._broken.append(f"{each.group} has not read all: {_differences(each.reached, wanted)}")
        gaps = [later - earlier for times in self._readings.values() for earlier, later in pairwise(times)]
        if (mute := len(self._pipelines) - len(self._readings)) > 0:
            self._broken.append(f"{mute} waits had no reading")
        total = sum(written.values())
        click.echo(f"records: {total:,} written ({failed} failed), {self._records:,} counted by all groups")
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
        while not self._over.is_set():
            for each in mine:
                if self._over.is_set():
                    return
                self._move(each)

    def _move(self, each: Pipeline) -> None:
        """Read what is new, commit it, and compare with where the last move has ended."""
        before = each.reached
        if each.checkpoint is not None:
            ends = self._ends(each.topics)
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
            self._broken.append(f"{each.group} began at another place: {_differences(held, before)}")
        if receipt["after"] != ends:
            self._broken.append(
                f"{each.group} did not get to the end: {_differences(receipt['after'], ends)}"
            )
        self._records += _total(ends) - _total(before)
        each.reached = ends

    def _check_drift(self) -> None:
        while not self._over.is_set():
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
        async with contextlib.aclosing(polls(wait, INTERVAL)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, Exception):
                    self._broken.append(f"the wait for {each.group}: {outcome}")
                self._readings[each.group].append(time.monotonic())

    async def _reach(self, each: Pipeline) -> None:
        """Wait again and again for what is the log end at the moment; the producer goes on."""
        while True:
            began = time.monotonic()
            wait = await asyncio.to_thread(self._frozen, each)
            async with contextlib.aclosing(polls(wait, INTERVAL)) as outcomes:
                async for outcome in outcomes:
                    if isinstance(outcome, Exception):
                        self._broken.append(f"the target of {each.group}: {outcome}")
                    elif outcome.done:
                        break
            self._seconds["waits for a frozen target"].append(time.monotonic() - began)

    def _frozen(self, each: Pipeline) -> ReachedWait:
        with OffsetsClient(self._config) as client:
            return ReachedWait(group_id=each.group, topics=each.topics, target="latest").freeze(client, None)

    def _ends(self, topics: Sequence[str]) -> Offsets:
        """Return the log ends, read without the package."""
        with closing_consumer(self._config, "nobody") as consumer:
            known = consumer.list_topics(timeout=30).topics
            wanted = [
                TopicPartition(topic, number, -1)
                for topic in topics
                for number in sorted(known[topic].partitions)
            ]
            found: Offsets = defaultdict(dict)
            for first in range(0, len(wanted), _AT_ONCE):
                for at in consumer.offsets_for_times(wanted[first : first + _AT_ONCE], timeout=30):
                    assert at.error is None, at
                    found[at.topic][str(at.partition)] = at.offset
        return dict(found)

    def _committed(self, each: Pipeline) -> Offsets:
        """Return what a group has committed, read without the package."""
        found: Offsets = defaultdict(dict)
        with closing_consumer(self._config, each.group) as consumer:
            for topic in each.topics:
                wanted = [TopicPartition(topic, number) for number in range(len(each.reached[topic]))]
                for at in consumer.committed(wanted, timeout=30):
                    found[topic][str(at.partition)] = at.offset
        return dict(found)

    def _taken(self) -> str:
        me = psutil.Process()
        children = [child for child in me.children(recursive=True) if "java" not in child.name()]
        rss = me.memory_info().rss
        others = 0
        for child in children:
            with contextlib.suppress(psutil.Error):
                if "admin_worker" in " ".join(child.cmdline()):
                    others += 1
        written = _total(self._ends(self._topics))
        calls = sum(map(len, self._seconds.values()))
        return (
            f"{rss / 1e6:.0f} MB, {me.num_threads()} threads, {me.num_fds()} files, {others} children; "
            f"{written:,} records, {calls:,} calls, {len(self._broken)} broken"
        )


@contextlib.contextmanager
def closing_consumer(config: dict[str, str], group: str) -> Any:
    consumer = Consumer({**config, "group.id": group, "log_level": 0})
    try:
        yield consumer
    finally:
        consumer.close()


def _total(offsets: Offsets) -> int:
    return sum(sum(each.values()) for each in offsets.values())


def _differences(found: Offsets, wanted: Offsets) -> str:
    flat = [
        {(t, p): at for t, each in offsets.items() for p, at in each.items()} for offsets in (found, wanted)
    ]
    differ = sorted(key for key in flat[0].keys() | flat[1].keys() if flat[0].get(key) != flat[1].get(key))
    shown = ", ".join(f"{t}-{p} {flat[0].get((t, p))}, expected {flat[1].get((t, p))}" for t, p in differ[:3])
    return f"{len(differ)} partitions: {shown}"
