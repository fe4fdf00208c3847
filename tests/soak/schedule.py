"""Schedules: what is done to one pipeline and which faults it meets, drawn from a seed."""

import random
from dataclasses import dataclass
from typing import Literal

Place = Literal["worker", "disk", "connection", "broker"]

FAULTS: dict[str, Place] = {
    "kill": "worker",
    "kill-during": "worker",
    "disk-full": "disk",
    "disk-error": "disk",
    "small-quota": "disk",
    "stall": "disk",
    "stall-endless": "disk",
    "cut": "connection",
    "cut-midway": "connection",
    "cut-response": "connection",
    "delay": "connection",
    "silence": "connection",
    "away": "connection",
    "kill-coordinator": "broker",
    "kill-leader": "broker",
    "roll-broker": "broker",
    "freeze-coordinator": "broker",
    "freeze-leader": "broker",
}
"""Each kind of fault, and what it strikes."""

WEIGHTS = {"worker": 12, "disk": 8, "connection": 9, "broker": 3}
"""How often a fault strikes each place. Brokers take seconds to come back, and one is away at a time."""

STEPS = {"commit": 26, "reset": 90, "restore": 90, "window": 14, "drift": 20, "wait": 12}
"""About how many reads, writes and calls each action makes: a fault comes at one of them."""

LOGIN = 8
"""Records of a connection with TLS and SCRAM, after which its first request about offsets comes."""

AFTERWARDS = ("same", "commit", "drift", "other-reset", "cli-restore")
"""Who goes on after an action that did not end well."""

SCENARIOS = ("earliest", "latest", "shift", "offsets", "batch")


@dataclass(frozen=True)
class Fault:
    """
    One fault.

    :param step: the read, write or call of the action before which it comes, from 1.
    :param skip: requests that still pass before a connection is struck.
    :param amount: seconds, or bytes of a quota.
    :param login: which of a connection's first requests is struck, from 1; 0: any request.
    """

    kind: str
    step: int
    skip: int = 0
    amount: float = 0.0
    login: int = 0

    @property
    def place(self) -> Place:
        """What it strikes."""
        return FAULTS[self.kind]

    def __str__(self) -> str:
        login = f", record {self.login} of a login" if self.login else ""
        return f"{self.kind} at step {self.step} (skip {self.skip}, {self.amount:g}{login})"


@dataclass(frozen=True)
class Action:
    """
    One action, its fault, and who goes on if it does not end well.

    :param name: a key of :data:`STEPS`.
    :param scenario: of a reset.
    :param amount: what the scenario is about: a shift, or a part of the log in thousandths.
    :param pending: whether the query has left an unfinished batch.
    :param fenced: of a window.
    """

    name: str
    fault: Fault | None
    then: str
    scenario: str = ""
    amount: int = 0
    pending: bool = False
    fenced: bool = True

    def __str__(self) -> str:
        what = f" {self.scenario} {self.amount}" if self.scenario else ""
        extras = f"{' (pending batch)' * self.pending}{' (not fenced)' * (not self.fenced)}"
        return f"{self.name}{what}{extras}: {self.fault or 'no fault'}; then {self.then}"


@dataclass(frozen=True)
class Schedule:
    """
    What happens to one pipeline.

    :param windows: whether its group is moved by windows, without a checkpoint.
    """

    seed: int
    number: int
    windows: bool
    spark: bool
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        kind = "windows" if self.windows else "Spark" if self.spark else "checkpoint"
        lines = [
            f"schedule {self.number} of seed {self.seed} ({kind})",
            *(f"  {each}" for each in self.actions),
        ]
        return "\n".join(lines)


def draw(seed: int, number: int, *, secured: bool = False, spark: bool = False) -> Schedule:
    """
    Draw one schedule; the same parameters give the same one.

    :param secured: whether connections begin with a login, which is then struck most.
    :param spark: whether a real Spark is there: about one schedule in twenty uses it.
    """
    dice = random.Random(f"{seed}:{number}")
    windows = dice.random() < 0.2
    names = (
        ("window", "reset", "restore", "wait") if windows else ("commit", "reset", "restore", "drift", "wait")
    )
    weights = (5, 2, 1, 1) if windows else (3, 6, 2, 1, 1)
    chosen = dice.choices(names, weights, k=dice.choice((1, 2, 2)))
    actions = []
    for name in chosen:
        if name == "restore":
            # There is something to restore only after a reset.
            actions.append(_action(dice, "reset", windows, faulty=False, secured=secured))
        actions.append(_action(dice, name, windows, faulty=dice.random() < 0.93, secured=secured))
    return Schedule(seed, number, windows, spark and not windows and dice.random() < 0.06, tuple(actions))


def _action(dice: random.Random, name: str, windows: bool, *, faulty: bool, secured: bool) -> Action:
    scenarios = tuple(each for each in SCENARIOS if not (windows and each == "batch"))
    fault = _fault(dice, name, windows=windows, secured=secured) if faulty else None
    then = dice.choice(("same", "other-reset") if windows else AFTERWARDS)
    return Action(
        name,
        fault,
        then,
        scenario=dice.choice(scenarios) if name == "reset" else "",
        amount=dice.randint(-30, 30) if name == "reset" else 0,
        pending=name == "reset" and not windows and dice.random() < 0.3,
        fenced=dice.random() < 0.8,
    )


def _fault(dice: random.Random, name: str, *, windows: bool, secured: bool) -> Fault:
    # What only reads is not worth a kill or a full disk; and a wait has no time limit of Airflow's own.
    reads = name in ("drift", "wait")
    weights = {**WEIGHTS, "connection": 18 if secured else WEIGHTS["connection"]}
    places = [
        place
        for place in weights
        # Windows write nothing but commits.
        if not (reads and place == "worker") and not (windows and place == "disk")
    ]
    place = dice.choices(places, [weights[each] for each in places])[0]
    kinds = [each for each, struck in FAULTS.items() if struck == place]
    if reads and place == "disk":
        kinds = ["stall"] if name == "wait" else ["stall", "stall-endless"]
    kind = dice.choice(kinds)
    amounts = {
        "kill-during": (0.0, 0.03),
        "small-quota": (0, 1_500),
        # A poller of waits gives up on a storage after 15 s.
        "stall": (8.0, 20.0) if name == "wait" else (0.5, 5.0),
        "stall-endless": (0.1, 3.0),
        "delay": (0.05, 2.0),
        "silence": (1.0, 6.0),
        "away": (0.2, 3.0),
        "kill-coordinator": (0.0, 1.5),
        "kill-leader": (0.0, 1.5),
        "roll-broker": (0.0, 0.5),
        "freeze-coordinator": (0.5, 4.0),
        "freeze-leader": (0.5, 4.0),
    }
    low, high = amounts.get(kind, (0.0, 0.0))
    amount = (
        float(dice.randint(int(low), int(high)))
        if kind == "small-quota"
        else round(dice.uniform(low, high), 3)
    )
    step = dice.randint(1, STEPS[name])
    skip = dice.choice((0, 0, 0, 1, 2, 4))
    if secured and place == "connection" and dice.random() < 0.7:
        # Connections are made early.
        return Fault(
            kind, dice.randint(1, max(2, STEPS[name] // 6)), min(skip, 2), amount, dice.randint(1, LOGIN)
        )
    if name in ("reset", "restore"):
        # A move writes in its later half.
        step = max(step, dice.randint(1, STEPS[name]))
    return Fault(kind, step, skip, amount)
