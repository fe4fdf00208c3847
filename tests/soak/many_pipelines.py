"""Many pipelines of one broker, moved at the same time, each record counted once."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import click
import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from tests.soak.model import Checkpoint, TopicOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

GRACE = "PT2M"
PAUSE = 10.0
"""Seconds between two drift checks."""

RESET_EVERY = 5
"""Moves of a pipeline after which it is reset to the log start, and put back."""

READY = 60.0
"""Seconds within which new partitions can be read."""

AT_ONCE = 500
"""Partitions in one call of a client."""


class Pipeline:
    """A group, the topics that it reads, and how far: by a checkpoint or, without one, by windows."""

    def __init__(self, number: int, topics: Sequence[str], directory: Path | None, fenced: bool) -> None:
        self.group = f"group-{number:02}"
        self.topics = list(topics)
        self.checkpoint = None if directory is None else Checkpoint(directory, topics[0])
        self.fenced = fenced
        self.reached: TopicOffsets = {}
        """The end of what was committed so far."""
        self.records = 0
        """Those between where each of its moves began and ended."""

    @property
    def names(self) -> KafkaPipeline:
        """The pipeline as a DAG names it."""
        location = None if self.checkpoint is None else str(self.checkpoint.directory)
        return KafkaPipeline(group_id=self.group, topics=self.topics, checkpoint_location=location)


class ManyPipelines:
    """
    All pipelines, and what moves them.

    :param home: a directory for the checkpoints.
    :param topics: the topics, all with as many partitions.
    :param groups: how many pipelines; the last two read all topics.
    :param workers: tasks at once.
    """

    def __init__(self, servers: str, home: Path, topics: Sequence[str], groups: int, workers: int) -> None:
        self._servers = servers
        self._topics = list(topics)
        self._pipelines = []
        for number in range(groups):
            by_windows = number % 4 == 3 or number == groups - 1
            of_all = number >= groups - 2
            pipeline = Pipeline(
                number,
                topics if of_all else [topics[number % len(topics)]],
                None if by_windows else home / f"checkpoint-{number}",
                fenced=number % 8 == 3,
            )
            self._pipelines.append(pipeline)
        self._workers = workers
        self._over = threading.Event()
        self._in_step = threading.Lock()
        """Taken by drift checks and by resets, which move the checkpoint before the group."""
        self._broken: list[str] = []
        self._seconds: dict[str, list[float]] = defaultdict(list)
        logging.disable(logging.CRITICAL)

    def run(self, seconds: float) -> None:
        """Move the pipelines for some seconds, and print each minute what that takes."""
        self._wait_for_leaders()
        with ThreadPoolExecutor(self._workers + 1) as pool:
            loops = [pool.submit(self._work, number) for number in range(self._workers)]
            loops.append(pool.submit(self._check_drift))
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(60.0, left))
                memory = psutil.Process().memory_info().rss / 1e6
                calls = sum(map(len, list(self._seconds.values())))
                click.echo(f"{memory:.0f} MB; {calls:,} calls, {len(self._broken)} broken")
            self._over.set()
        for loop in loops:
            loop.result()

    def _wait_for_leaders(self) -> None:
        deadline = time.monotonic() + READY
        while True:
            try:
                self._log_ends(self._topics)
            except (KafkaException, KeyError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def finish(self) -> list[str]:
        """Let each pipeline read what is left, print the figures, and return what is wrong."""
        with ThreadPoolExecutor(self._workers) as pool:
            list(pool.map(self._move, self._pipelines))
        self._call("drift at the end", partial(self._drift, "PT0S"))
        ends = self._log_ends(self._topics)
        for each in self._pipelines:
            wanted = {topic: ends[topic] for topic in each.topics}
            if self._committed(each) != wanted:
                self._broken.append(f"{each.group} is not at the log end")
            if each.reached != wanted:
                self._broken.append(f"{each.group} has not read all")
            if each.records != _total(wanted):
                self._broken.append(f"{each.group}: {each.records:,} records, of {_total(wanted):,}")
        counted = sum(each.records for each in self._pipelines)
        click.echo(f"records: {_total(ends):,} in the log; {counted:,} counted by all groups")
        for name, seconds in sorted(self._seconds.items()):
            longest = f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
            click.echo(f"{name}: {len(seconds):,}, {longest}")
        return self._broken

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
        if each.checkpoint is not None:
            ends = self._log_ends(each.topics)
            each.checkpoint.run_next(ends)
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
        before = {
            topic: at
            for topic, offsets in receipt["before"].items()
            if (at := {partition: offset for partition, offset in offsets.items() if offset is not None})
        }
        if before != each.reached:
            self._broken.append(f"{each.group} began at another place than the last move ended")
        if receipt["after"] != ends:
            self._broken.append(f"{each.group} did not get to the end")
        each.records += _total(ends) - _total(before)
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
        if self._committed(each) != each.reached:
            self._broken.append(f"{each.group} was not put back")

    def _check_drift(self) -> None:
        while not self._over.is_set():
            with self._in_step:
                self._call("drift checks of all checkpoints", partial(self._drift, GRACE))
            self._over.wait(PAUSE)

    def _drift(self, grace: str) -> Any:
        named = [each.names for each in self._pipelines if each.checkpoint is not None]
        return CheckOffsetDriftOperator(task_id="d", pipelines=named, grace=grace).execute({})

    def _call(self, name: str, does: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return does()
        except Exception as error:  # noqa: BLE001  # there are no faults here: whatever fails is wrong
            self._broken.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
            return None
        finally:
            self._seconds[name].append(time.monotonic() - began)

    # Log ends and commits are read without the package.

    def _log_ends(self, topics: Sequence[str]) -> TopicOffsets:
        found: TopicOffsets = defaultdict(dict)
        with self._consumer("nobody") as consumer:
            known = consumer.list_topics(timeout=30).topics
            wanted = [
                TopicPartition(name, number, -1) for name in topics for number in known[name].partitions
            ]
            for first in range(0, len(wanted), AT_ONCE):
                for at in consumer.offsets_for_times(wanted[first : first + AT_ONCE], timeout=30):
                    assert at.error is None, at
                    found[at.topic][str(at.partition)] = at.offset
        return dict(found)

    def _committed(self, each: Pipeline) -> TopicOffsets:
        found: TopicOffsets = defaultdict(dict)
        with self._consumer(each.group) as consumer:
            for topic, offsets in each.reached.items():
                wanted = [TopicPartition(topic, int(number)) for number in offsets]
                for at in consumer.committed(wanted, timeout=30):
                    found[at.topic][str(at.partition)] = at.offset
        return dict(found)

    @contextmanager
    def _consumer(self, group: str) -> Iterator[Consumer]:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": group, "log_level": 0})
        try:
            yield consumer
        finally:
            consumer.close()


def _total(offsets: TopicOffsets) -> int:
    return sum(sum(each.values()) for each in offsets.values())
