"""
Explores every schedule of two movers, with so many changes of turn and at most one crash.

A mover is a function that asks for *steps*: requests to the broker, and reads and writes of files. It is
deterministic: what it asks for next depends only on the answers that it has had. So it is a tree
(:class:`Script`): each node is a step, each branch an answer. The tree grows by running the mover again from
its beginning with the answers that lead to a node, and on to its end. Schedules are explored on the trees:

- What a step answers depends on the step and on the *world*, the groups and files; equal worlds have one
  number.
- Schedules that lead to the same world, the same nodes, the same turn and the same ledger (what the rules
  need of the way) have the same future. It is explored once, and counted for each of them.

So nothing is left out: what is not run again is equal to what was. A client that would repeat a call after a
pause waits instead until no window is being committed to the group, which is a step. Questions about topics
and their logs are no steps, since no mover changes those: a change of turn beside one of them is the same as
one beside the next step.
A mover that crashes stops for good between two of its steps, before its first or after its last one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime, timezone
from itertools import count
from random import Random
from typing import Any, NamedTuple

from fsspec import AbstractFileSystem
from memory_broker import MemoryBroker

from airflow_kafka_offsets.kafka.client import OffsetsClient

Step = tuple[Any, ...]
"""The name of a request, and its arguments."""
Groups = tuple[tuple[str, Any], ...]
Files = frozenset[tuple[str, bytes]]

REQUESTS = [
    "fetch",
    "fetch_all",
    "describe",
    "every_group",
    "send",
    "delete",
    "delete_offsets",
    "join",
    "leave",
    "wait",
    "alone",
]
WAITS = ("wait", "alone")
"""Those that are answered only when another mover has left the group."""
DEPTH = 2_000


class Ending(NamedTuple):
    """How a mover ended: with a result, or with an error."""

    result: Any
    error: BaseException | None


class Worlds:
    """All states of the groups and the files that were met, by number."""

    def __init__(self, broker: MemoryBroker, files: Mapping[str, bytes]) -> None:
        self.broker = broker
        self._numbers: dict[tuple[Groups, Files], int] = {}
        self._known: list[tuple[dict[str, Any], dict[str, bytes]]] = []
        self.written: set[Step] = set()
        """The reads of files that some step that was carried out would change."""
        self.first = self._number(broker.groups, dict(files))

    def __len__(self) -> int:
        return len(self._known)

    def groups(self, world: int) -> dict[str, Any]:
        return self._known[world][0]

    def files(self, world: int) -> dict[str, bytes]:
        return self._known[world][1]

    def answer(self, world: int, step: Step) -> tuple[int, Any]:
        """Carry a step out; return the world after it, and its answer."""
        groups, files = self._known[world]
        name, *arguments = step
        if name in REQUESTS:
            self.broker.groups = dict(groups)
            answer = getattr(self.broker, name)(*arguments)
            return self._number(self.broker.groups, files, world), answer
        path, *data = arguments
        if name == "list":
            below = f"{path}/"
            names = {each[len(below) :].partition("/")[0] for each in files if each.startswith(below)}
            return world, tuple(sorted(names)) or None
        if name == "open":
            return world, files.get(path)
        after = {each: content for each, content in files.items() if each != path}
        after |= {path: data[0]} if data else {}
        if (path in files) != (path in after):
            self.written.update(("list", above) for above in _directories(path))
        if files.get(path) != after.get(path):
            self.written.add(("open", path))
        return self._number(groups, after, world), path in files

    def blocks(self, world: int, step: Step) -> bool:
        """Whether a step waits for members of a group to leave it."""
        if step[0] not in WAITS:
            return False
        self.broker.groups = self.groups(world)
        return not getattr(self.broker, step[0])(*step[1:])

    def without_members(self, world: int, group_id: str, owner: str, *, of_others: bool = False) -> int:
        """Let the members of a mover that has crashed be put out of a group, or those of all others."""
        self.broker.groups = dict(self.groups(world))
        for member in self.broker.groups[group_id].members:
            if member.member_id.startswith(f"{owner}-") != of_others:
                self.broker.leave(group_id, member.member_id)
        return self._number(self.broker.groups, self.files(world), world)

    def _number(self, groups: dict[str, Any], files: dict[str, bytes], before: int = -1) -> int:
        if before >= 0 and (groups, files) == self._known[before]:
            return before
        key = tuple(sorted(groups.items())), frozenset(files.items())
        if key not in self._numbers:
            self._numbers[key] = len(self._known)
            self._known.append((dict(groups), files))
        return self._numbers[key]


def _directories(path: str) -> Iterable[str]:
    """Go through the directories above a file."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


class Node:
    """A place in a script: the step that comes next, or the end."""

    __slots__ = ("answers", "ending", "number", "parent", "step")
    numbers = count()

    def __init__(self, parent: tuple[Node, Hashable] | None = None) -> None:
        self.parent = parent
        self.number = next(self.numbers)
        self.step: Step = ()
        self.ending: Ending | None = None
        self.answers: dict[Hashable, Node] = {}


class Desk:
    """What a mover asks through: a broker, and files."""

    def __init__(self, name: str, broker: MemoryBroker, ask: Callable[[Step], Any]) -> None:
        self.name = name
        self.ask = ask
        self.files = AskedFiles(ask)
        self._broker = _AskedBroker(broker, ask)

    def open_client(self) -> OffsetsClient:
        """Return a new client; its requests are steps, and so is its wait before it repeats a call."""
        # The ids of its members begin with the client's.
        address = re.sub(r"\W", "-", self.name)
        return OffsetsClient({**self._broker.config(address=address), "client.id": self.name})

    def wait(self) -> None:
        """Wait until a window's commit, which made the last request fail, is over."""
        self.ask(("wait", self._broker.last_group))


class Script:
    """
    What a mover asks for, after each answer that it may get.

    :param prepare: returns the mover, to be called with nothing.
    """

    runs = 0
    """How often movers were run, all scripts together."""
    random = Random(0)
    """What is random in the mover that is run, the same each time."""
    desk: Desk
    """Of the mover that is run."""

    def __init__(self, name: str, prepare: Callable[[Desk], Callable[[], Any]], worlds: Worlds) -> None:
        self.name = name
        self._prepare, self._worlds = prepare, worlds
        self.root = Node()
        self._run(self.root, worlds.first)

    def after(self, node: Node, answer: Hashable, world: int) -> Node:
        """Return the node after an answer, which was given in the step that led to this world."""
        if answer not in node.answers:
            node.answers[answer] = Node((node, answer))
            self._run(node.answers[answer], world)
        return node.answers[answer]

    def _run(self, end: Node, world: int) -> None:
        """Run the mover to a new node, and on from there to its end as if it were alone."""
        Script.runs += 1
        known: list[Hashable] = []
        differs: list[Step] = []
        Script.random = Random(self.name)
        node = end
        while node.parent is not None:
            node, answer = node.parent
            known.append(answer)

        def ask(step: Step) -> Any:
            nonlocal node, world
            if node.step not in ((), step):
                differs.extend([node.step, step])
            node.step = step
            if known:
                answer = known.pop()
            else:
                if self._worlds.blocks(world, step):
                    world = self._worlds.without_members(world, step[1], self.name, of_others=True)
                world, answer = self._worlds.answer(world, step)
            node = node.answers.setdefault(answer, Node((node, answer)))
            return answer

        Script.desk = Desk(self.name, self._worlds.broker, ask)
        move = self._prepare(Script.desk)
        try:
            ending = Ending(move(), None)
        except BaseException as error:  # noqa: BLE001  # it is judged
            ending = Ending(None, error.with_traceback(None))
        assert not differs, f"{self.name} is not deterministic: with the same answers it asks for {differs}"
        node.ending = ending


class _AskedBroker(MemoryBroker):
    """The broker, with each request a step; its topics do not change."""

    def __init__(self, broker: MemoryBroker, ask: Callable[[Step], Any]) -> None:
        super().__init__()
        self.topics, self.cluster_id = broker.topics, broker.cluster_id
        self.last_group = ""
        self._ask = ask

    def __getattribute__(self, name: str) -> Any:
        if name not in REQUESTS:
            return super().__getattribute__(name)

        def request(*arguments: Any) -> Any:
            self.last_group = arguments[0] if arguments else ""
            return self._ask((name, *arguments))

        return request


class AskedFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files in memory, with each listing, read and write a step."""

    protocol = "memory"
    cachable = False

    def __init__(self, ask: Callable[[Step], Any]) -> None:
        super().__init__()
        self._ask = ask

    def ls(self, path: str, detail: bool = False, **_: Any) -> list[str]:
        names = self._ask(("list", path))
        if names is None:
            raise FileNotFoundError(path)
        return [f"{path}/{name}" for name in names]

    def cat_file(self, path: str, **_: Any) -> bytes:
        data: bytes | None = self._ask(("open", path))
        if data is None:
            raise FileNotFoundError(path)
        return data

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self._ask(("file", path, value))

    def rm_file(self, path: str) -> None:
        if not self._ask(("remove", path)):
            raise FileNotFoundError(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """A directory is there when a file is in it."""

    def modified(self, path: str) -> datetime:
        return datetime(2026, 1, 5, tzinfo=timezone.utc)


class Event(NamedTuple):
    """A step as a ledger sees it."""

    mover: int
    step: Step
    answer: Any
    before: int
    """The world before it."""


class State(NamedTuple):
    """
    A place in the exploration of two movers, 0 and 1.

    :param crashed: the mover that has crashed, if one has.
    :param again: whether that one was begun again.
    :param acted: whether who has the turn has made a step in it.
    """

    world: int
    nodes: tuple[Node, Node]
    over: tuple[bool, bool]
    turn: int
    changes: int
    ledger: Hashable
    crashed: int | None = None
    again: bool = False
    acted: bool = False


class Verdict(NamedTuple):
    """A schedule that has led to what must not be."""

    wrong: list[str]
    schedule: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.wrong, *(f"    {each}" for each in self.schedule)])


class Exploration:
    """
    Every schedule of two movers.

    :param scripts: of each mover: its own, and that of the same task when it is run again after a crash;
        ``None`` where nobody runs it again.
    :param ledger: what is noted of the way to a state, before the first step.
    :param note: returns the ledger after a step.
    :param judge: returns what is wrong where a schedule ends, and where only a crashed mover is left that was
        not begun again.
    :param changes: how often the turn may change, besides where a mover ends or waits.
    :param crash_costs: of how many of these changes a crash is in the place.
    """

    def __init__(
        self,
        worlds: Worlds,
        scripts: tuple[tuple[Script, Script | None], tuple[Script, Script | None]],
        ledger: Hashable,
        note: Callable[[Hashable, Event], Hashable],
        judge: Callable[[State], Iterable[str]],
        *,
        changes: int = 2,
        crash_costs: int = 1,
    ) -> None:
        self._worlds, self._scripts = worlds, scripts
        self._note, self._judge = note, judge
        self._crash_costs = crash_costs
        self._counts: dict[Hashable, int] = {}
        self._answers: dict[tuple[int, int], tuple[int, Any]] = {}
        self._path: list[tuple[Any, ...]] = []
        self.wrong: list[Verdict] = []
        roots = scripts[0][0].root, scripts[1][0].root
        first = State(worlds.first, roots, (False, False), 0, changes, ledger)
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(DEPTH)
        try:
            known = -1
            # Once more if a read was taken for one that nobody changes, and somebody has changed it.
            while known != len(worlds.written) and not self.wrong:
                known = len(worlds.written)
                self._counts.clear()
                self.schedules = sum(self._explore(first._replace(turn=turn)) for turn in (0, 1))
        finally:
            sys.setrecursionlimit(before)

    @property
    def states(self) -> int:
        """How many different states were met."""
        return len(self._counts)

    def script(self, state: State, mover: int) -> Script:
        """The script that a mover follows."""
        own, again = self._scripts[mover]
        return again if state.crashed == mover and again is not None else own

    def _explore(self, state: State) -> int:
        """Return how many schedules go on from a state."""
        if self.wrong:
            return 0
        while (step := self._quiet(state)) is not None:
            state = step
        world, nodes, over, *rest = state
        key = (world, nodes[0].number, nodes[1].number, over, *rest)
        known = self._counts.get(key)
        if known is None:
            known = self._counts[key] = self._explore_new(state)
        return known

    def _quiet(self, state: State) -> State | None:
        """
        Return the state after a read of what no mover changes, if that comes next.

        A change of turn or a crash before it is the same as one after it.
        """
        node = state.nodes[state.turn]
        if state.over[state.turn] or node.ending is not None or node.step[0] not in ("list", "open"):
            return None
        if node.step in self._worlds.written:
            return None
        _, answer = self._worlds.answer(state.world, node.step)
        return self._at(state, self.script(state, state.turn).after(node, answer, state.world))

    def _at(self, state: State, node: Node) -> State:
        nodes = (node, state.nodes[1]) if state.turn == 0 else (state.nodes[0], node)
        return state._replace(nodes=nodes)

    def _explore_new(self, state: State) -> int:
        turn, other = state.turn, 1 - state.turn
        waiting = state.crashed is not None and not state.again
        if all(state.over):
            self._check(state)
            return 1
        if state.over[turn]:
            if waiting and state.crashed == other:
                self._check(state)
            return self._explore(state._replace(turn=other, acted=False, again=state.again or waiting))
        found = 0
        if state.acted and state.changes and not state.over[other] and state.crashed != other:
            found += self._walk((other, "has the turn"), self._given(state, other, state.changes - 1))
        elif state.acted and state.changes and not state.over[other]:
            found += self._walk((other, "again"), self._given(state, other, state.changes - 1))
        if state.crashed is None and state.changes >= self._crash_costs:
            found += self._crash(state)
        return found + self._step(state)

    def _given(self, state: State, turn: int, changes: int) -> State:
        again = state.again or state.crashed == turn
        return state._replace(turn=turn, changes=changes, acted=False, again=again)

    def _walk(self, done: tuple[Any, ...], state: State) -> int:
        """Explore what comes after something that a mover has done: its number, and words."""
        self._path.append(done)
        try:
            return self._explore(state)
        finally:
            self._path.pop()

    def _crash(self, state: State) -> int:
        """Stop the mover that has the turn; either it is begun again at once, or the other one goes on."""
        turn, other = state.turn, 1 - state.turn
        again = self._scripts[turn][1]
        nodes, over = list(state.nodes), list(state.over)
        if again is None:
            over[turn] = True
        else:
            nodes[turn] = again.root
        crashed = state._replace(
            nodes=(nodes[0], nodes[1]),
            over=(over[0], over[1]),
            crashed=turn,
            again=again is None,
            acted=False,
        )
        found = 0
        if not over[other]:
            found += self._walk((turn, "crashes"), crashed._replace(turn=other))
        if again is not None:
            if over[other]:
                self._path.append((turn, "crashes"))
                self._check(crashed)
                self._path.pop()
            found += self._walk((turn, "crashes, and runs again"), crashed._replace(again=True))
        return found or self._walk((turn, "crashes"), crashed)

    def _step(self, state: State) -> int:
        turn, other = state.turn, 1 - state.turn
        node = state.nodes[turn]
        if node.ending is not None:
            over = (True, state.over[1]) if turn == 0 else (state.over[0], True)
            return self._walk((turn, "ends:", node.ending), state._replace(over=over))
        world, step = state.world, node.step
        if self._worlds.blocks(world, step):
            if self._goes_on(state, other):
                return self._walk((turn, "waits"), self._given(state, other, state.changes))
            # Only a member that has crashed is in the way: Kafka puts it out of the group after a while.
            assert state.crashed is not None, f"nobody goes on, and {step} is not answered"
            own, _ = self._scripts[state.crashed]
            world = self._worlds.without_members(world, step[1], own.name)
            assert not self._worlds.blocks(world, step), f"nobody is left, and {step} is not answered"
        key = (world, node.number)
        if key not in self._answers:
            self._answers[key] = self._worlds.answer(world, step)
        after, answer = self._answers[key]
        nodes = list(state.nodes)
        nodes[turn] = self.script(state, turn).after(node, answer, after)
        ledger = self._note(state.ledger, Event(turn, step, answer, world))
        after_it = state._replace(world=after, nodes=(nodes[0], nodes[1]), ledger=ledger, acted=True)
        return self._walk((turn, *step), after_it)

    def _goes_on(self, state: State, mover: int) -> bool:
        """Whether a mover can make a step."""
        node = state.nodes[mover]
        if state.over[mover] or (state.crashed == mover and not state.again):
            return False
        return node.ending is not None or not self._worlds.blocks(state.world, node.step)

    def _check(self, state: State) -> None:
        if wrong := [*self._judge(state)]:
            schedule = [f"{'AB'[mover]} {' '.join(map(str, done))[:300]}" for mover, *done in self._path]
            self.wrong.append(Verdict(wrong, schedule))


def run_alone(worlds: Worlds, script: Script, world: int) -> tuple[int, Ending]:
    """Run a mover from its beginning to its end; return the world after it."""
    node = script.root
    while node.ending is None:
        world, answer = worlds.answer(world, node.step)
        node = script.after(node, answer, world)
    return world, node.ending
