"""Runs pairs of movers in many interleavings, and judges what each has left."""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from airflow.providers.common.compat.sdk import AirflowFailException
from concurrent_movers import (
    BEFORE,
    CHECKPOINT_AT,
    GROUP_AT,
    PARTITIONS,
    Mover,
    State,
    ToolError,
    World,
)
from interleaving import ALL, Ending, Interleaving, Segment, Step

from airflow_kafka_offsets.checkpoint.open_moves import unfinished_move
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pytest

_CLEAR = re.compile(
    r"while its move was being prepared|while its position was being committed|would go backwards"
    r"|another (process|move)|begun and not finished|has changed since|was written to within|has members"
    r"|neither at the beginning nor at the end|is ahead of|somebody else|only they may commit"
    r"|is occupied|a window is being committed|moved it before|was taken back while it was under way"
)
"""What an error must say: that somebody else is at work, or has been, and where."""


class Trial(NamedTuple):
    """One interleaving of two movers, and what it has led to."""

    schedule: Sequence[Segment]
    trace: Sequence[Step]
    endings: dict[str, Ending]
    final: State
    finished_later: bool
    wrong: list[str]
    """What breaks the rules."""
    in_gap: bool
    """Whether all that is wrong came from a write between a last look and the request after it."""
    waited: bool
    """Whether a mover had its turn and did not get on, so that the other one had it."""

    def outcome(self) -> str:
        """Return the column of the table that it counts in, besides that of the gap."""
        failed = sum(each.error is not None for each in self.endings.values())
        if self.finished_later:
            return "finished by the next"
        return ("both done", "one refused", "both refused")[failed]

    def __str__(self) -> str:
        steps = "\n".join(f"    {step.mover}: {step.kind} {step.offsets or ''}" for step in self.trace)
        ends = {name: end.error or "done" for name, end in self.endings.items()}
        return f"{self.wrong}\n  {self.schedule}: {ends}, {self.final}\n{steps}"


class Pair(NamedTuple):
    """Two movers that meet; they are called A and B in a schedule."""

    a: Mover
    b: Mover

    def __str__(self) -> str:
        return f"{self.a.name}, {self.b.name}"


def run_pair(
    pair: Pair,
    new_world: Callable[[], World],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    seed: int,
    until: float = math.inf,
) -> tuple[Counter[str], list[Trial]]:
    """
    Run a pair in so many interleavings; return how they ended, and the trials that broke a rule.

    :param until: the time after which no interleaving is begun.
    """
    alone = [run_trial(pair, new_world(), monkeypatch, [(first, ALL)]) for first in "AB"]
    traces = {
        name: [step for step in trial.trace if step.mover == name and step.offsets is None]
        for name, trial in zip("AB", alone, strict=True)
    }
    counts: Counter[str] = Counter()
    wrong: list[Trial] = []
    for schedule in schedules(traces, count, seed):
        if time.time() > until:
            break
        trial = run_trial(pair, new_world(), monkeypatch, schedule)
        counts[trial.outcome()] += 1
        counts["in the gap"] += trial.in_gap
        counts["waited"] += trial.waited
        counts["interleavings"] += 1
        if trial.wrong and not trial.in_gap:
            wrong.append(trial)
    return counts, wrong


def schedules(traces: dict[str, list[Step]], count: int, seed: int) -> list[list[Segment]]:
    """
    Return different interleavings: one mover cut before it writes to the group, before its first write,
    before another write, before any step, and several cuts.

    :param traces: the steps of each mover alone.
    """
    lengths = {name: len(trace) for name, trace in traces.items()}
    rng = random.Random(seed)
    single: list[tuple[int, list[Segment]]] = []
    for name, other in ("AB", "BA"):
        kinds = [step.kind.partition(" ")[0] for step in traces[name]]
        writes = [number for number, kind in enumerate(kinds) if kind in ("send", "file", "remove", "tool")]
        for step in range(1, lengths[name]):
            rank = 3 - (step in writes) - (step in writes[:1]) - 3 * (kinds[step] == "send")
            single.append((rank, [(name, step), (other, ALL), (name, ALL)]))
    rng.shuffle(single)
    single.sort(key=lambda each: each[0])
    found = [schedule for _, schedule in single[: count * 3 // 5]]
    while len(found) < count:
        name, other = rng.choice(("AB", "BA"))
        cuts = rng.randint(1, 3)
        schedule: list[Segment] = []
        for _ in range(cuts):
            schedule += [(name, rng.randint(1, lengths[name])), (other, rng.randint(1, lengths[other]))]
        schedule += [(name, ALL), (other, ALL)]
        if schedule not in found:
            found.append(schedule)
    return found


def run_trial(
    pair: Pair, world: World, monkeypatch: pytest.MonkeyPatch, schedule: Sequence[Segment]
) -> Trial:
    """Run one interleaving, let an open move be finished, and judge."""
    turns = Interleaving(schedule)
    movers = {"A": pair.a, "B": pair.b}
    moves = {name: mover.prepare(world, turns) for name, mover in movers.items()}
    with turns.installed(monkeypatch):
        endings = turns.run(moves)
    errors = [
        f"{name}: {type(end.error).__name__}: {end.error}"
        for name, end in endings.items()
        if end.error is not None and not _is_clear(end.error, world)
    ]
    finished_later = False
    checkpoint = SparkCheckpoint(world.location) if world.location else None
    if checkpoint is not None and unfinished_move(checkpoint) is not None:
        finished_later = True
        for name, end in endings.items():
            if end.error is not None and movers[name].ours:
                try:
                    moves[name]()
                except (AirflowFailException, KafkaOffsetsError) as error:
                    errors.append(f"again {name}: {error}")
                break
        if unfinished_move(checkpoint) is not None:
            errors.append("the open move was not finished")
    final = look(world)
    gap = overtaken(movers, turns.trace)
    in_gap = {turns.trace[number].mover for number in gap}
    found: list[tuple[str, bool]] = []
    if not finished_later:
        found += ((text, bool(gap)) for text in _not_serial(movers, endings, final, world))
    elif final.group != final.checkpoint:
        found.append((f"after the open move was finished: {final}", bool(gap)))
    found += ((text, number in gap) for number, text in _backwards(movers, turns.trace, world))
    found += ((text, name in in_gap) for name, text in _wrong_before(movers, endings, turns.trace))
    wrong = [*errors, *(text for text, _ in found)]
    excused = bool(wrong) and not errors and all(was_in_gap for _, was_in_gap in found)
    return Trial(schedule, turns.trace, endings, final, finished_later, wrong, excused, turns.waited)


def look(world: World) -> State:
    """Return where group and checkpoint are."""
    commits = world.broker.committed(world.group, world.at(0))
    group = {None if each is None else each.offset for each in commits.values()}
    checkpoint: set[int] = set()
    if world.location:
        (offsets,) = SparkCheckpoint(world.location).read().kafka_offsets.values()
        checkpoint = set(offsets.values())
    return State(_same(group), _same(checkpoint))


def _same(offsets: set[int] | set[int | None]) -> int | None:
    return next(iter(offsets)) if len(offsets) == 1 else None


def _is_clear(error: BaseException, world: World) -> bool:
    text = str(error)
    if isinstance(error, ToolError):
        return "inactive" in text or "active" in text.lower() or "UNKNOWN_MEMBER" in text
    where = world.group in text or (world.location is not None and world.location in text)
    return where and _CLEAR.search(text) is not None


def _not_serial(
    movers: dict[str, Mover], endings: dict[str, Ending], final: State, world: World
) -> Iterator[str]:
    start = State(GROUP_AT, CHECKPOINT_AT if world.location else None)
    done = {name for name, end in endings.items() if end.error is None}
    allowed: set[State] = set() if done else {start}
    for order in ("A", "B", "AB", "BA"):
        if not done <= set(order):
            continue
        state: State | None = start
        for name in order:
            after = movers[name].model(state) if state is not None else None
            if after is None and name in done:
                state = None
                break
            state = after or state
        if state is not None:
            allowed.add(state)
    if final not in allowed:
        yield f"{sorted(done)} are done, which leaves one of {allowed}; found {final}"


def _backwards(movers: dict[str, Mover], trace: Sequence[Step], world: World) -> Iterator[tuple[int, str]]:
    at: dict[int, int | None] = dict.fromkeys(PARTITIONS, GROUP_AT)
    asked = {BEFORE, *(to.group for mover in movers.values() if (to := mover.model(State(0, 0))))}
    for place, step in enumerate(trace):
        if step.kind != "write" or step.offsets is None:
            continue
        mover = movers[step.mover]
        for number, offset in step.offsets.items():
            found = at[number]
            # A checkpoint that another mover has reset takes its group along.
            followed = (
                world.location is not None and mover.on_checkpoint and offset in asked - {CHECKPOINT_AT}
            )
            if mover.forward_only and None not in (offset, found) and offset < found and not followed:  # type: ignore[operator]
                yield place, f"{step.mover} took the group from {found} back to {offset}"
        at.update(step.offsets)


def _wrong_before(
    movers: dict[str, Mover], endings: dict[str, Ending], trace: Sequence[Step]
) -> Iterator[tuple[str, str]]:
    """
    A receipt shows what was there before the first write of its mover. Where one finishes the other's open
    move, both receipts show what was there before that.
    """
    for name, end in endings.items():
        if end.error is not None or not isinstance(end.result, dict) or "before" not in end.result:
            continue
        at = _before_first_write(name, trace)
        if at is None:
            continue
        (before,) = end.result["before"].values()
        other = "AB".replace(name, "")
        one_move = _finishes_move_of(other, name, trace) or _finishes_move_of(name, other, trace)
        allowed = [at, _before_first_write(other, trace)] if one_move else [at]
        if before not in [
            {str(number): offset for number, offset in (each or {}).items()} for each in allowed
        ]:
            yield name, f"{name}: the receipt has {before} as before; it was {at}"


def _before_first_write(name: str, trace: Sequence[Step]) -> dict[int, int | None] | None:
    at: dict[int, int | None] = dict.fromkeys(PARTITIONS, GROUP_AT)
    for step in trace:
        if step.kind == "write" and step.offsets is not None:
            if step.mover == name:
                return at
            at.update(step.offsets)
    return None


def _finishes_move_of(other: str, name: str, trace: Sequence[Step]) -> bool:
    """Whether a mover has read the groups of a move that the other one has begun and not finished."""
    unfinished: set[str] = set()
    for step in trace:
        call, _, path = step.kind.partition(" ")
        archive, _, file = path.rpartition("/")
        if (call, file) == ("file", "done"):
            unfinished.discard(archive)
        elif (call, file, step.mover) == ("file", "groups.json", other):
            unfinished.add(archive)
        elif (call, file, step.mover) == ("open", "groups.json", name) and archive in unfinished:
            return True
    return False


def overtaken(movers: Mapping[str, Mover], trace: Sequence[Step]) -> set[int]:
    """
    Return the places of the writes that another write came before in the gap, and only there.

    The gap is the one request between a mover's last look at the group and its write: nothing else that the
    mover has asked for may lie in between, see :meth:`Mover.in_gap`.
    """
    found: set[int] = set()
    since: dict[str, list[str] | None] = dict.fromkeys(movers)
    came: dict[str, bool] = dict.fromkeys(movers, False)
    for place, step in enumerate(trace):
        mover, asked = movers[step.mover], since[step.mover]
        if step.kind == "read":
            if step.offsets and len(step.offsets) == len(PARTITIONS):
                since[step.mover], came[step.mover] = [], False
        elif step.kind == "write":
            may_miss = mover.ours and not mover.fenced
            if may_miss and came[step.mover] and asked is not None and mover.in_gap(asked):
                found.add(place)
            came = {name: came[name] or name != step.mover for name in came}
            came[step.mover] = False
        elif asked is not None:
            asked.append(step.kind)
    return found
