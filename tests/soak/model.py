"""
The model: where a pipeline must be after each action, found without the package.

Positions are lists of offsets, one for each partition of the pipeline's topic. A checkpoint is read, and
written as Spark writes it, with this module's own few lines; a group is read past the proxies.
"""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

PARTITIONS = 3
READ = 45.0

Offsets = list[int]
Position = list[int | None]

_UNCHANGED = ("nothing was changed", "nothing was written")
_PARTLY = ("written before", "was moved before")
"""Of a joint move: what the error names was not changed, and what it appends was."""

_MOVERS = ("reset", "restore")
_TOOL = "group restore"


class BrokenPromiseError(AssertionError):
    """The package did what it must not do."""


@dataclass(frozen=True)
class State:
    """Where a pipeline is; ``checkpoint`` is ``None`` where it has none."""

    checkpoint: Offsets | None
    group: Position

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint}, group {self.group}"


class Checkpoint:
    """A checkpoint of one query with one Kafka source, written in Spark's own form."""

    def __init__(self, directory: Path, topic: str) -> None:
        self.directory = directory
        self._topic = topic
        for name in ("offsets", "commits", "sources/0"):
            (directory / name).mkdir(parents=True)
        self.query_id = str(uuid.uuid4())
        (directory / "metadata").write_text(json.dumps({"id": self.query_id}))

    def run_batch(self, ends: Offsets, *, finish: bool = True) -> None:
        """Do what a query does: plan a batch up to the log's end, unless one is pending, and finish it."""
        offsets = {self._topic: {str(number): end for number, end in enumerate(ends)}}
        batch = self._pending()
        if batch is None:
            batch = max(self._batches("offsets"), default=-1) + 1
            head = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1_000), "conf": {}}
            text = "\n".join(["v1", *(json.dumps(each) for each in (head, offsets))])
            self._write(f"offsets/{batch}", text)
        if finish:
            self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def read(self) -> Offsets:
        """Return where the query goes on: the end of its newest finished batch."""
        return self.at_batch(max(set(self._batches("offsets")) & set(self._batches("commits"))))

    def at_batch(self, batch: int) -> Offsets:
        """Return the end of a batch."""
        lines = (self.directory / "offsets" / str(batch)).read_text().splitlines()
        offsets = json.loads(lines[2])[self._topic]
        return [int(offsets[str(number)]) for number in range(PARTITIONS)]

    def finished(self) -> list[int]:
        """Return the ids of the finished batches."""
        return sorted(set(self._batches("offsets")) & set(self._batches("commits")))

    def unfinished_move(self) -> str | None:
        """Return the name of the newest archive, if its move was neither finished nor taken back."""
        archives = sorted(each.parent for each in (self.directory / "_kafka_offsets").glob("*/manifest.json"))
        newest = archives[-1] if archives else None
        over = newest is None or (newest / "done").exists() or (newest / "undone").exists()
        return None if over or newest is None else newest.name

    def undoes(self, archive: str) -> str:
        """Return the archive whose restore takes an unfinished move back, or finishes it."""
        manifest = json.loads((self.directory / "_kafka_offsets" / archive / "manifest.json").read_text())
        return manifest.get("undoes") or archive

    def _pending(self) -> int | None:
        pending = set(self._batches("offsets")) - set(self._batches("commits"))
        newest = max(self._batches("commits"), default=-1)
        return max((each for each in pending if each > newest), default=None)

    def _batches(self, name: str) -> list[int]:
        return [int(each.name) for each in (self.directory / name).iterdir() if each.name.isdigit()]

    def _write(self, path: str, text: str) -> None:
        temporary = self.directory / f"{path}.writing"
        temporary.write_text(text)
        temporary.replace(self.directory / path)


def read_group(client: Consumer, topic: str) -> Position:
    """Return a group's commits, as soon as a coordinator answers."""
    wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + READ
    while True:
        try:
            found = {each.partition: each for each in client.committed(wanted, timeout=5)}
            if all(each.error is None for each in found.values()):
                at = [found[number].offset for number in range(PARTITIONS)]
                return [None if offset < 0 else offset for offset in at]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def target_of_reset(
    name: str, value: Any, before: State, ends: Offsets, batches: Checkpoint | None
) -> Offsets:
    """Return where a reset moves to, in a log that begins at 0."""
    if name == "to_offset":
        if value == "earliest":
            return [0] * PARTITIONS
        if value == "latest":
            return list(ends)
        (offsets,) = value.values()
        return [offsets[str(number)] for number in range(PARTITIONS)]
    if name == "to_batch":
        assert batches is not None
        return batches.at_batch(value)
    assert name == "shift_by"
    return [max(0, min(end, (at or 0) + value)) for at, end in zip(before.group, ends, strict=True)]


def judge(outcome: dict[str, Any] | None, before: State, wanted: State, now: State) -> None:
    """
    Compare where a pipeline is with what an action may have done.

    :param outcome: what the worker has sent; ``None`` if it was killed.
    :param wanted: where the action leads if nothing goes wrong.
    """
    if outcome is not None and "error" not in outcome:
        if now != wanted:
            raise BrokenPromiseError(f"it succeeded, and is at {now}; expected {wanted}")
        return
    text = "" if outcome is None else outcome["text"]
    if outcome is not None and outcome["error"].startswith("foreign"):
        raise BrokenPromiseError(f"an error of another kind came out: {outcome['error']}: {text}")
    unchanged = any(each in text for each in _UNCHANGED) and not any(each in text for each in _PARTLY)
    if unchanged and now != before:
        raise BrokenPromiseError(
            f"it says that nothing was changed, and it is at {now}, not {before}: {text}"
        )
    checkpoints = (before.checkpoint, wanted.checkpoint)
    between = all(at in each for at, *each in zip(now.group, before.group, wanted.group, strict=True))
    if now.checkpoint not in checkpoints or not between:
        raise BrokenPromiseError(
            f"it is at {now}, which is neither {before} nor {wanted}: {text or 'killed'}"
        )


def check_drift(result: dict[str, Any], at: State, unfinished: str | None) -> None:
    """Check a drift report; ``unfinished`` is the archive of a move that has stopped half-way."""
    drifted = at.checkpoint != at.group or unfinished is not None
    if result["drifted"] != drifted or bool(unfinished) != bool(result["unfinished"]):
        raise BrokenPromiseError(f"drift says {result}, at {at} with unfinished move {unfinished}")


def check_waits(result: dict[str, bool], at: State, ends: Offsets, max_lag: int) -> None:
    """Check what two or three waits and an event trigger say of a pipeline that rests."""
    lag = sum(end - (offset or 0) for end, offset in zip(ends, at.group, strict=True))
    expected = {"lag": lag <= max_lag, "reached": at.group == ends, "fired": lag > max_lag}
    if at.checkpoint is not None:
        expected["processed"] = at.checkpoint == ends
    if result != expected:
        raise BrokenPromiseError(f"the waits say {result}, expected {expected} at {at}, ends {ends}")


def check_history(commits: Sequence[tuple[int, int, str]]) -> None:
    """
    Check that a group went backwards only by what was asked to move it.

    :param commits: partition, offset and metadata of all commits to the group, in their order.
    """
    last: dict[int, int] = {}
    for partition, offset, metadata in commits:
        try:
            made = json.loads(metadata or "{}")
        except ValueError:
            made = {}
        asked = made.get("task", "").startswith(_MOVERS) or _TOOL in made.get("tool", "")
        if offset < last.get(partition, 0) and not asked:
            raise BrokenPromiseError(
                f"partition {partition} went back from {last[partition]} to {offset} without a reset: {made}"
            )
        last[partition] = offset
