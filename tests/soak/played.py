"""One schedule being played: its actions, who goes on after them, and what is checked after each."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from tests.soak import worker
from tests.soak.actions import ALL_CALLS, ANSWER, Order
from tests.soak.model import (
    BrokenPromiseError,
    Checkpoint,
    State,
    check_drift,
    check_history,
    check_waits,
    judge,
    read_group,
    target_of_reset,
)
from tests.soak.proxy import Strike
from tests.soak.spark_query import SparkQuery

if TYPE_CHECKING:
    from tests.soak.schedule import Action, Fault, Schedule
    from tests.soak.soak import Lane, Soak

LIMIT = max(ALL_CALLS, ANSWER) + 35.0
"""Seconds after which an action hangs: its own limit, and what a busy machine may add."""

_GONE = 10.0
"""Seconds within which the children of a killed worker end."""

_ENDS = 10.0
"""Seconds within which a worker ends after it has reported."""

_TRIES = 8
"""How often a task is run again, as Airflow's retries would."""


class Played:
    """One schedule being played."""

    def __init__(self, soak: Soak, schedule: Schedule, lane: Lane) -> None:
        self.schedule = schedule
        self.log: list[str] = []
        self._soak = soak
        self._lane = lane
        self.home = soak.directory / f"{schedule.number}"
        self.home.mkdir()
        self._mark = f"{soak.directory.name}-{schedule.number}"
        self._group = f"soak-{schedule.seed}-{schedule.number}"
        self._checkpoint = self._open_checkpoint()
        self._receipt: tuple[Any, State] | None = None
        self._reader = soak.cluster.consumer(self._group)
        self._runs = 0

    def _open_checkpoint(self) -> Checkpoint | None:
        if self.schedule.windows:
            return None
        directory = self.home / "checkpoint"
        if self.schedule.spark:
            return SparkQuery(directory, self._lane.topic, self._soak.spark, self.log.append)
        return Checkpoint(directory, self._lane.topic)

    def play(self) -> None:
        """Play all of it, and check the end."""
        try:
            self._begin()
            for action in self.schedule.actions:
                self._act(action)
            self._finish()
        finally:
            self._soak.cluster.proxies.heal(self._lane.number)
            self._reader.close()

    def _begin(self) -> None:
        self._soak.produce(self._lane, [4, 7, 1])
        if self._checkpoint is None:
            self._until_done(self._order("reset", scenario=["to_offset", "earliest"]))
        else:
            # In a log that older schedules have filled a batch is somewhere in the middle; Spark reads on.
            half = [end // 2 for end in self._lane.ends]
            self._checkpoint.run_batch(self._lane.ends if self.schedule.spark else half)
            self._soak.produce(self._lane, [2, 3, 4])
            self._checkpoint.run_batch(self._lane.ends)
            self._until_done(self._order("commit"))

    def _finish(self) -> None:
        """Let the pipeline go on undisturbed: it must, and there is nothing left to repair."""
        self._soak.produce(self._lane, [1, 1, 1])
        if self._checkpoint is None:
            self._window_until_done()
        else:
            self._checkpoint.run_batch(self._lane.ends)
            self._until_done(self._order("commit"))
            now = self._now()
            if now.checkpoint != now.group:
                raise BrokenPromiseError(f"after the last commit it is at {now}")
            report = self._until_done(self._order("drift"))
            if report["drifted"]:
                raise BrokenPromiseError(f"drift at the end: {report}, {now}")
        commits = self._soak.history.of(self._group, self._now().group)
        check_history(commits)
        with self._soak.report.lock:
            self._soak.report.commits += len(commits)

    def _act(self, action: Action) -> None:
        prepared = self._prepare(action)
        if prepared is None:
            return
        order, before, wanted = prepared
        outcome = self._perform(order, action.fault)
        now = self._now()
        judge(outcome, before, wanted, now)
        self._check_answer(order, outcome, before)
        if outcome is not None and "result" in outcome:
            self._note(order, outcome["result"], before)
            return
        if outcome is not None and outcome["retriable"] is False:
            raise BrokenPromiseError(f"it says that a retry is no use: {outcome['error']}: {outcome['text']}")
        if self._goes_on_elsewhere(action.then, order, before, wanted):
            return
        result = self._until_done(order, before, wanted)
        self._note(order, result, before)

    def _prepare(self, action: Action) -> tuple[Order, State, State] | None:
        """Return an action's order, where the pipeline is before it, and where it leads."""
        name = action.name
        if name == "commit" and self._checkpoint is not None:
            self._soak.produce(self._lane, [3, 0, 5])
            self._checkpoint.run_batch(self._lane.ends)
            before = self._now()
            return self._order(name), before, State(before.checkpoint, list(before.checkpoint or ()))
        if name == "window":
            self._soak.produce(self._lane, [2, 2, 2])
            window = self._until_done(self._order("plan-window"))
            before = self._now()
            return (
                self._order(name, window=window, fenced=action.fenced),
                before,
                State(None, list(self._lane.ends)),
            )
        if name == "reset":
            return self._prepare_reset(action)
        before = self._now()
        if name == "restore":
            if self._receipt is None:
                return None
            receipt, wanted = self._receipt
            return self._order(name, receipt=receipt), before, wanted
        given: dict[str, Any] = {}
        if name == "wait":
            lag = sum(end - (at or 0) for end, at in zip(self._lane.ends, before.group, strict=True))
            given = {"max_lag": lag // 2, "target": {str(p): end for p, end in enumerate(self._lane.ends)}}
        return self._order(name, **given), before, before

    def _prepare_reset(self, action: Action) -> tuple[Order, State, State]:
        if action.pending and self._checkpoint is not None:
            self._soak.produce(self._lane, [1, 0, 2])
            self._checkpoint.run_batch(self._lane.ends, finish=False)
        before, ends = self._now(), self._lane.ends
        part = abs(action.amount) / 30
        somewhere = {str(number): int(end * part) for number, end in enumerate(ends)}
        batches = self._checkpoint.finished() if self._checkpoint is not None else [0]
        scenarios: dict[str, list[Any]] = {
            "earliest": ["to_offset", "earliest"],
            "latest": ["to_offset", "latest"],
            "shift": ["shift_by", action.amount or 1],
            "offsets": ["to_offset", {self._lane.topic: somewhere}],
            "batch": ["to_batch", batches[abs(action.amount) % len(batches)]],
        }
        scenario = scenarios[action.scenario]
        target = target_of_reset(scenario[0], scenario[1], before, ends, self._checkpoint)
        checkpoint = None if self._checkpoint is None else list(target)
        return self._order("reset", scenario=scenario), before, State(checkpoint, list(target))

    def _check_answer(self, order: Order, outcome: dict[str, Any] | None, before: State) -> None:
        if outcome is None or "result" not in outcome:
            return
        if order.name == "drift":
            assert self._checkpoint is not None
            check_drift(outcome["result"], before, self._checkpoint.unfinished_move())
        elif order.name == "wait":
            check_waits(outcome["result"], before, self._lane.ends, order.given["max_lag"])

    def _note(self, order: Order, result: Any, before: State) -> None:
        """Remember the receipt of a reset, as XCom does."""
        if order.name == "reset":
            self._receipt = (result, before)
        elif order.name in ("commit", "window", "restore"):
            self._receipt = None

    def _goes_on_elsewhere(self, who: str, order: Order, before: State, wanted: State) -> bool:
        """Let somebody else go on after an action; return whether that has settled it."""
        unfinished = self._checkpoint.unfinished_move() if self._checkpoint is not None else None
        at = self._now()
        if who == "cli-restore" and self._checkpoint is not None and unfinished is not None:
            archive = self._checkpoint.undoes(unfinished)
            led = wanted if archive != unfinished else before
            self._until_done(self._order("cli-restore", archive=archive), at, led, also=(before, wanted))
            self._receipt = None
            return True
        if who == "commit":
            other = self._order("commit")
            to = State(at.checkpoint, list(at.checkpoint or ()))
        elif who == "other-reset":
            target = [end // 3 for end in self._lane.ends]
            offsets = {str(number): offset for number, offset in enumerate(target)}
            other = self._order("reset", scenario=["to_offset", {self._lane.topic: offsets}])
            to = State(None if self._checkpoint is None else target, list(target))
        elif who == "drift":
            other, to = self._order("drift"), at
        else:
            return False
        outcome = self._perform(other, None)
        judge(outcome, at, to, self._now())
        self._check_answer(other, outcome, at)
        if outcome is None:
            raise BrokenPromiseError(f"the worker of {other.name} ended by itself")
        if unfinished is not None and other.name != "drift":
            if "result" in outcome:
                raise BrokenPromiseError(f"{other.name} went over the unfinished move {unfinished}")
            if outcome["error"] == "MoveUnfinishedError" and unfinished not in outcome["text"]:
                raise BrokenPromiseError(f"the refusal does not name {unfinished}: {outcome['text']}")
        if "result" in outcome and other.name == "reset":
            self._receipt = None
            return True
        return False

    def _window_until_done(self) -> None:
        window = self._until_done(self._order("plan-window"))
        before = self._now()
        order = self._order("window", window=window, fenced=True)
        self._until_done(order, before, State(None, list(self._lane.ends)))

    def _until_done(
        self,
        order: Order,
        before: State | None = None,
        wanted: State | None = None,
        also: tuple[State, ...] = (),
    ) -> Any:
        """Run a task, without faults of its own, and again after errors that pass, until it succeeds."""
        outcome: dict[str, Any] | None = None
        for _ in range(_TRIES):
            outcome = self._perform(order, None)
            if outcome is None:
                raise BrokenPromiseError(f"the worker of {order.name} ended by itself")
            if before is not None and wanted is not None:
                now = self._now()
                judge(outcome, now if now in also else before, wanted, now)
            if "result" in outcome:
                return outcome["result"]
            if not outcome["retriable"] and outcome["error"] != "CommandError":
                break
            time.sleep(0.5)
        raise BrokenPromiseError(f"{order.name} does not get done: {outcome}")

    def _order(self, name: str, **given: Any) -> Order:
        """Return the order of a new run."""
        self._runs += 1
        return Order(
            name,
            f"run-{self._runs}",
            self._soak.cluster.kafka.worker_config(self._lane.number),
            self._group,
            self._lane.topic,
            "" if self._checkpoint is None else str(self._checkpoint.directory),
            given,
        )

    def _now(self) -> State:
        checkpoint = None if self._checkpoint is None else self._checkpoint.read()
        return State(checkpoint, read_group(self._reader, self._lane.topic))

    def _perform(self, order: Order, fault: Fault | None) -> dict[str, Any] | None:
        """Let a worker carry out an order; ``None`` if it was killed."""
        context = self._soak.processes
        near, far = context.Pipe()
        arguments = (far, order, fault, self._mark, str(self.home))
        process = context.Process(target=worker.run, args=arguments)
        began = time.monotonic()
        process.start()
        far.close()
        outcome: dict[str, Any] | None = None
        limit = began + LIMIT
        with near:
            try:
                while outcome is None:
                    if not near.poll(max(0.0, limit - time.monotonic())):
                        raise BrokenPromiseError(f"{order.name} hangs: no end after {LIMIT:.0f} s")
                    kind, value = near.recv()
                    if kind == "outcome":
                        outcome = value
                    elif fault is not None:
                        paused = time.monotonic()
                        self._strike(fault)
                        limit += time.monotonic() - paused
                        near.send("go")
            except (EOFError, ConnectionResetError):
                pass
            finally:
                process.join(_ENDS if outcome is not None or time.monotonic() < limit else 0)
                ended = process.exitcode
                if ended is None:
                    process.kill()
                    process.join()
        struck = self._soak.cluster.proxies.heal(self._lane.number)
        self._count(order, fault, outcome, struck)
        self.log.append(f"    {order.name} ({order.run}): {worker.told(outcome)}")
        if ended is None:
            raise BrokenPromiseError(f"the worker of {order.name} did not end after its action")
        self._check_left(order, outcome)
        return outcome

    def _strike(self, fault: Fault) -> None:
        if fault.place == "connection":
            strike = Strike(fault.kind, fault.skip, fault.amount, fault.login)
            self._soak.cluster.proxies.strike(self._lane.number, strike)
        else:
            self._soak.cluster.strike(fault, self._group, self._lane.topic)

    def _count(self, order: Order, fault: Fault | None, outcome: dict[str, Any] | None, struck: bool) -> None:
        report = self._soak.report
        with report.lock:
            report.actions[order.name] += 1
            if outcome is not None:
                report.longest = max(report.longest, outcome["seconds"])
                if "error" in outcome:
                    report.errors[outcome["error"]] += 1
            if fault is None:
                return
            if struck if fault.place == "connection" else outcome is None or outcome["struck"]:
                report.faults[f"{fault.kind} in a login" if fault.login else fault.kind] += 1

    def _check_left(self, order: Order, outcome: dict[str, Any] | None) -> None:
        """Check that nothing is left of a worker: it has checked itself, unless it was killed."""
        if outcome is None or outcome["stalled"]:
            # Nobody can take away what a process writes when it is killed, or where nothing answers.
            for path in self.home.rglob(".*.tmp"):
                path.unlink()
            shutil.rmtree(self.home / "tmp", ignore_errors=True)
        if outcome is not None and outcome["left"]:
            raise BrokenPromiseError(f"{order.name} has left {outcome['left']}")
        deadline = time.monotonic() + _GONE
        while left := worker.marked(self._mark):
            if time.monotonic() > deadline:
                raise BrokenPromiseError(f"processes are left of {order.name}: {left}")
            time.sleep(0.05)
