"""Explores pairs of movers, and judges what every schedule of them has left."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from airflow.providers.common.compat.sdk import AirflowFailException
from concurrent_movers import (
    BEFORE,
    CHECKPOINT_AT,
    GROUP,
    GROUP_AT,
    LOCATION,
    PARTITIONS,
    ROOT,
    Mover,
    Place,
    Position,
    ToolError,
)
from every_schedule import Desk, Ending, Event, Exploration, Script, State, run_alone
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError

_CLEAR = re.compile(
    r"while its move was being prepared|while its position was being committed|would go backwards"
    r"|another (process|move)|(begun|started) and not finished|has changed since|was written to within"
    r"|has members|neither at the start nor at the end|is ahead of|somebody else|another client"
    r"|only (they|the members) may|is occupied|a window (is|was) being committed"
    r"|already moved the checkpoint|was taken back while it was running|has read the same records"
)
"""What an error must say: that somebody else is at work, or has been, and where."""

Offsets = tuple[int | None, ...]


class Pair(NamedTuple):
    """Two movers that meet; they are called A and B in a schedule."""

    a: Mover
    b: Mover

    def __str__(self) -> str:
        return f"{self.a.name}, {self.b.name}"


class Look(NamedTuple):
    """What a mover has done since it has looked at all of the group."""

    asked: tuple[str, ...] = ()
    overtaken: bool = False
    """Whether the other one has written since."""


class Ledger(NamedTuple):
    """What the rules need of the way to a state; for each mover."""

    looks: tuple[Look | None, Look | None] = (None, None)
    held: tuple[tuple[Offsets, ...], tuple[Offsets, ...]] = ((), ())
    """What the group held before the mover's first write, and before each that followed one of the other."""
    last: int | None = None
    """Who has written last."""
    in_gap: tuple[bool, bool] = (False, False)
    """Whether the mover has written over what the other one has written after its look, and only there."""
    wrong: tuple[tuple[str, bool], ...] = ()
    """What has broken a rule on the way, and whether in the gap."""
    began: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The archives of the mover's moves."""
    one_move: bool = False
    """Whether one has finished the open move of the other."""


class Rules:
    """
    What must hold of two movers.

    - Group and checkpoint are where one of the two would have put them after the other, or alone.
    - Who has failed says that somebody else moves the group or the checkpoint, and names it.
    - A move that was started and not finished is found, and the same task run again finishes it.
    - No commit goes backwards, except by the reset that was asked for, or with its checkpoint.
    - A receipt shows as ``before`` what was there before the first write of its move.

    Kafka has no compare-and-set: what comes between a mover's last look at a group and its write, with no
    other step between the two, is *in the gap*, and no break of a rule.
    """

    def __init__(
        self, pair: Pair, place: Place, names: Sequence[str], again: tuple[Script | None, Script | None]
    ) -> None:
        self._movers, self._place, self._names, self._again = pair, place, names, again

    # --- on the way

    def note(self, noted: Any, event: Event) -> Ledger:
        """Return the ledger after a step."""
        ledger: Ledger = noted
        mover, (name, *arguments) = event.mover, event.step
        if name == "fetch" and arguments[1] == PARTITIONS:
            return ledger._replace(looks=_put(ledger.looks, mover, Look()))
        if name == "send" and not event.answer:
            return self._write(ledger, event)
        if (kind := _kind(name, arguments)) and (look := ledger.looks[mover]) is not None:
            if len(look.asked) < 2:
                look = look._replace(asked=(*look.asked, kind))
            ledger = ledger._replace(looks=_put(ledger.looks, mover, look))
        directory, _, file = arguments[0].rpartition("/") if name == "file" else ("", "", "")
        if file == "manifest.json":
            began = (*ledger.began[mover], directory)
            ledger = ledger._replace(began=_put(ledger.began, mover, began))
        elif file == "done" and directory not in ledger.began[mover]:
            ledger = ledger._replace(one_move=True)
        return ledger

    def _write(self, ledger: Ledger, event: Event) -> Ledger:
        name, other, mover = event.mover, 1 - event.mover, self._movers[event.mover]
        look, at = ledger.looks[name], self._group(event.before)
        may_miss = mover.ours and not mover.fenced
        gap = may_miss and look is not None and look.overtaken and mover.in_gap(look.asked)
        sent = {tp: commit.offset for tp, commit in event.step[2]}
        wrong = list(ledger.wrong)
        for tp, found in zip(PARTITIONS, at, strict=True):
            if mover.forward_only and tp in sent and found is not None and sent[tp] < found:
                # A checkpoint that another mover has reset takes its group along.
                followed = self._place.location and mover.on_checkpoint and sent[tp] in self._asked
                if not followed:
                    wrong.append((f"{'AB'[name]} took the group from {found} back to {sent[tp]}", gap))
        held = ledger.held[name] if ledger.last == name else (*ledger.held[name], at)
        looks = list(ledger.looks)
        looks[name] = Look(("send",)) if look is None else look._replace(asked=(*look.asked, "send")[:2])
        if (others := looks[other]) is not None:
            looks[other] = others._replace(overtaken=True)
        return ledger._replace(
            looks=(looks[0], looks[1]),
            held=_put(ledger.held, name, tuple(dict.fromkeys(held))),
            last=name,
            in_gap=_put(ledger.in_gap, name, ledger.in_gap[name] or gap),
            wrong=tuple(dict.fromkeys(wrong)),
        )

    @property
    def _asked(self) -> set[int | None]:
        """Where a checkpoint may be moved to by one of the two, and its group with it."""
        ends = {end.group for each in self._movers if (end := each.model(Position(0, 0)))}
        return ({BEFORE} | ends) - {CHECKPOINT_AT}

    # --- at the end

    def judge(self, state: State) -> Iterator[str]:
        """Say what is wrong at the end, or when a mover has crashed and the other one is over."""
        ledger: Ledger = state.ledger  # type: ignore[assignment]
        endings: dict[int, Ending] = {
            number: end
            for number, node in enumerate(state.nodes)
            if state.over[number] and (end := node.ending) is not None
        }
        for number, end in endings.items():
            if end.error is not None and not _is_clear(end.error):
                yield f"{'AB'[number]}: {type(end.error).__name__}: {end.error}"
        yield from (text for text, gap in ledger.wrong if not gap)
        world, finished_later = state.world, False
        if self._place.location and self._open(world):
            if not all(state.over):
                # The crashed mover's; whoever knows of checkpoints must have found it.
                yield from self._refused(state, endings)
                return
            world, finished_later = self._finish(state), True
            if self._open(world):
                yield "the open move was not finished"
                return
        now, gap = self.position(world), any(ledger.in_gap)
        if finished_later:
            if now.group != now.checkpoint and not gap:
                yield f"after the open move was finished: {now}"
            return
        failed = sum(end.error is not None for end in endings.values())
        # A commit from a checkpoint notices after its write what it could not see before: it commits again,
        # or fails and is to be run again.
        on_checkpoint = self._place.location and all(each.on_checkpoint for each in self._movers)
        may_mix = gap and not (on_checkpoint and not failed and all(state.over))
        if now not in (allowed := self._serial(state, endings)) and not may_mix:
            yield f"{sorted('AB'[each] for each in endings)} have ended, which leaves one of {allowed}: {now}"
        yield from self._wrong_before(state, endings, ledger)

    def _refused(self, state: State, endings: Mapping[int, Ending]) -> Iterator[str]:
        for number, end in endings.items():
            mover = self._movers[number]
            if end.error is None and mover.ours and mover.on_checkpoint and not self._finishes(state, number):
                yield f"{'AB'[number]} is done beside an open move"

    def _finishes(self, state: State, number: int) -> bool:
        """Whether a mover was done before the other one has begun its move."""
        at = self.position(state.world)
        return self._movers[number].moves_checkpoint or at.group is not None

    def _finish(self, state: State) -> int:
        """Run a task again that has failed or crashed, as Airflow does; return the world after it."""
        worlds, world = self._place.worlds, state.world
        if state.crashed is not None:
            world = worlds.without_members(world, GROUP, self._names[state.crashed])
        for number, again in enumerate(self._again):
            end = state.nodes[number].ending
            if again is not None and (end is None or end.error is not None) and self._open(world):
                world, _ = run_alone(worlds, again, world)
        return world

    def _serial(self, state: State, endings: Mapping[int, Ending]) -> set[Position]:
        start = Position(GROUP_AT, CHECKPOINT_AT if self._place.location else None)
        done = {number for number, end in endings.items() if end.error is None}
        allowed: set[Position] = set() if done else {start}
        for order in ((0,), (1,), (0, 1), (1, 0)):
            if not done <= set(order):
                continue
            at: Position | None = start
            for number in order:
                after = self._movers[number].model(at) if at is not None else None
                if after is None and number in done:
                    at = None
                    break
                at = after or at
            if at is not None:
                allowed.add(at)
        return allowed

    def _wrong_before(self, state: State, endings: Mapping[int, Ending], ledger: Ledger) -> Iterator[str]:
        for number, end in endings.items():
            if not isinstance(end.result, dict) or "before" not in end.result or ledger.in_gap[number]:
                continue
            kept = self._place.location and self._movers[number].moves_checkpoint
            if state.crashed == number and (not kept or ledger.held[1 - number]):
                # Airflow forgets what a try has kept that crashed, but a checkpoint's archive stays. It has
                # what was there when the move began, and not what others have committed since.
                continue
            allowed = ledger.held[number] + (ledger.held[1 - number] if ledger.one_move else ())
            (found,) = end.result["before"].values()
            if allowed and tuple(found.values()) not in allowed:
                yield f"{'AB'[number]}: the receipt has {found} as before; it was one of {allowed}"

    # --- what is there

    def _group(self, world: int) -> Offsets:
        commits = dict(self._place.worlds.groups(world)[GROUP].commits)
        return tuple(commits[tp].offset if tp in commits else None for tp in PARTITIONS)

    def position(self, world: int) -> Position:
        """Return where group and checkpoint are."""
        group = set(self._group(world))
        checkpoint: set[int] = set()
        if self._place.location:
            (offsets,) = self._read(world, "position").values()
            checkpoint = set(offsets.values())
        return Position(_same(group), _same(checkpoint))

    def _open(self, world: int) -> bool:
        return self._read(world, "open") is not None

    def _read(self, world: int, what: str) -> Any:
        files = frozenset(self._place.worlds.files(world).items())
        return _look(files, what)


@cache
def _look(files: frozenset[tuple[str, bytes]], what: str) -> Any:
    fs = MemoryFileSystem()
    fs.store.clear()
    for path, data in files:
        fs.pipe_file(f"/{path}", data)
    checkpoint = SparkCheckpoint(LOCATION, fs=fs)
    return ArchivedMoves(checkpoint).unfinished() if what == "open" else checkpoint.read().kafka_offsets


def _put(pair: tuple[Any, Any], number: int, value: Any) -> tuple[Any, Any]:
    return (value, pair[1]) if number == 0 else (pair[0], value)


def _kind(name: str, arguments: list[Any]) -> str:
    """Return what a step is for :meth:`Mover.in_gap`."""
    if name == "open" and arguments[0].endswith(("/done", "/undone")):
        return ""  # before each write a move looks whether it is over
    if name in ("file", "remove"):
        return "archive" if arguments[0].startswith(f"{ROOT}/_kafka_offsets/") else "move"
    return "ask" if name == "fetch" else name


def _same(offsets: set[int] | set[int | None]) -> int | None:
    return next(iter(offsets)) if len(offsets) == 1 else None


def _is_clear(error: BaseException) -> bool:
    text = str(error)
    if isinstance(error, ToolError):
        return "active" in text or "UNKNOWN_MEMBER" in text
    ours = isinstance(error, (KafkaOffsetsError, AirflowFailException))
    return ours and (GROUP in text or LOCATION in text) and _CLEAR.search(text) is not None


class Scripts:
    """The scripts of all movers at one place: those of one mover serve all its pairs."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._known: dict[tuple[str, int, str], Script] = {}

    def of(self, mover: Mover, which: str) -> Script:
        """Return the script of a mover's ``which`` run."""
        key = mover.name, mover.number, which

        def prepare(desk: Desk) -> Any:
            return mover.prepare(self.place, desk)

        if key not in self._known:
            name = f"{mover.name}-{mover.number}-{which}".replace(" ", "")
            self._known[key] = Script(name, prepare, self.place.worlds)
        return self._known[key]


def explore(pair: Pair, scripts: Scripts, **bounds: Any) -> Exploration:
    """Explore all schedules of a pair."""
    first = [scripts.of(mover, "first") for mover in pair]
    second = [scripts.of(mover, "second") if mover.ours else None for mover in pair]
    third = [scripts.of(mover, "third") if mover.ours else None for mover in pair]
    rules = Rules(pair, scripts.place, [each.name for each in first], (third[0], third[1]))
    of_a, of_b = zip(first, second, strict=True)
    return Exploration(scripts.place.worlds, (of_a, of_b), Ledger(), rules.note, rules.judge, **bounds)
