"""
Gives hostile inputs to every reader, each in a process of its own.

Run it from the development environment::

    python tests/hostile/run.py --inputs 200000 --seed 7
    python tests/hostile/run.py --inputs 20000 --reader window --reader manifest
    python tests/hostile/run.py --growth              # does time or memory grow faster than the input?

A third of the inputs is made up by hypothesis, the others are valid ones with some damage. The same seed
gives the same inputs. An input that is neither read nor refused as it must be is printed, and kept in
``tests/hostile/corpus``, from where the test suite tries it again. The exit status is 1 if there was one.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hostile_inputs import damaged, grown, inputs
from hostile_readers import CORPUS, READERS, HostileInputError, try_input

from airflow_kafka_offsets.model.text import MAX_SIZE, MAX_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

MADE_UP = 3
"""One input in so many is hypothesis's."""
SLOW = 5.0
"""Seconds that no input may take; the largest have 200 kB."""
MOST_MEMORY = 100
"""Megabytes by which the process may grow."""
MOST_KEPT = 5
READER_LIMIT = 3_600
SMALL, LARGE = 100_000, 400_000
"""Bytes of the inputs that are compared with each other, and with the largest one that is not refused."""
FAST = 0.02
"""Seconds below which an input cannot have used much memory."""

_NOTHING: dict[str, Any] = {
    "inputs": 0,
    "refused": 0,
    "seconds": 0.0,
    "slowest": 0.0,
    "grew": 0.0,
    "failures": {},
}


class _Current:
    """The input that is tried, where another process finds it if this one dies of it."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(1 << 20)
            self._map = mmap.mmap(file.fileno(), 1 << 20)

    def set(self, data: bytes) -> None:
        self._map[:8] = len(data).to_bytes(8, "big")
        self._map[8 : 8 + len(data)] = data

    @staticmethod
    def get(path: Path) -> bytes:
        data = path.read_bytes()
        return data[8 : 8 + int.from_bytes(data[:8], "big")]


class _Trial:
    """One reader, and what became of the inputs that it was given."""

    def __init__(self, name: str, current: _Current) -> None:
        self.name, self.current = name, current
        self.tried = self.refused = 0
        self.slowest = 0.0
        self.failures: dict[str, bytes] = {}

    def give(self, data: bytes) -> None:
        """Try one input."""
        self.tried += 1
        self.current.set(data)
        begun = time.perf_counter()
        try:
            self.refused += try_input(self.name, data) is not None
        except HostileInputError as error:
            cause = error.__cause__ or error
            where = traceback.extract_tb(cause.__traceback__)[-1]
            # One of each kind: the same line fails for many inputs.
            kind = f"{type(cause).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
            key = kind if len(self.failures) < MOST_KEPT else next(iter(self.failures))
            if not any(known.partition(": ")[0] == key.partition(": ")[0] for known in self.failures):
                self.failures[key] = data
        seconds = time.perf_counter() - begun
        if seconds > SLOW:
            self.failures.setdefault(f"took {seconds:.1f} s", data)
        self.slowest = max(self.slowest, seconds)


def _try_one(name: str, number: int, chosen: int, current: Path) -> dict[str, Any]:
    """Give inputs to one reader, in this process, and return what became of them."""
    trial = _Trial(name, _Current(current))
    reader = READERS[name]
    for data in reader.seeds:
        trial.give(data)
    resting = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()

    @seed(chosen)
    @settings(
        max_examples=number // MADE_UP,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def made_up(data: bytes) -> None:
        trial.give(data)

    made_up()
    rng = random.Random(f"{chosen} {name}")
    while trial.tried < number:
        trial.give(damaged(reader.seeds, rng))
    grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resting) / 1024
    if grew > MOST_MEMORY:
        trial.failures[f"the process grew by {grew:.0f} MB"] = b""
    return {
        "inputs": trial.tried,
        "refused": trial.refused,
        "seconds": time.process_time() - begun,
        "slowest": trial.slowest,
        "grew": grew,
        "failures": {kind: _keep(name, data) for kind, data in trial.failures.items()},
    }


def _keep(name: str, data: bytes) -> str:
    """Keep an input in the corpus, and return it as it is to be printed."""
    path = CORPUS / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return f"{data[:300]!r}{'...' if len(data) > 300 else ''} ({len(data)} bytes, kept in {path})"


def _growth_of(name: str) -> dict[str, Any]:
    """Compare the time that inputs of three sizes take, and measure the memory for the largest."""
    failures, slowest, most, tried = {}, 0.0, 0, 0
    for family, make in grown(name).items():
        largest = _largest(make, 3 * MAX_VALUES if name == "CSV" else MAX_VALUES)
        data = make(SMALL)
        before, first = _cpu(name, data), len(data)
        for data in map(make, (min(LARGE, largest), largest)):
            seconds = _cpu(name, data)
            if seconds > 0.5 and seconds > before * len(data) / first * 2.5:
                failures[
                    f"{family}: {before:.2f} s for {first:,} bytes, {seconds:.2f} s for {len(data):,}"
                ] = ""
            before, first = seconds, len(data)
            slowest = max(slowest, seconds)
        tried += 3
        if before < FAST:
            continue
        tracemalloc.start()
        try_input(name, data)
        peak = tracemalloc.get_traced_memory()[1] // 1_000_000
        tracemalloc.stop()
        most = max(most, peak)
        if peak > MOST_MEMORY:
            failures[f"{family}: {peak} MB for {len(data):,} bytes"] = ""
    return {**_NOTHING, "inputs": tried, "slowest": slowest, "grew": most, "failures": failures}


def _largest(make: Callable[[int], bytes], most: int) -> int:
    """Return the size of the largest input that is not refused for its size or its values."""
    sample = make(SMALL)
    marks = sum(map(sample.count, (b",", b"{", b"[", b"\n")))
    return min(MAX_SIZE, len(sample) * most // max(marks, 1)) * 97 // 100


def _cpu(name: str, data: bytes) -> float:
    begun = time.process_time()
    try_input(name, data)
    return time.process_time() - begun


def _in_its_own_process(name: str, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        current = Path(directory, "input")
        # Python's own remark on a pattern is none of ours.
        warnings = ["-W", "error", "-W", "ignore::FutureWarning"]
        command = [sys.executable, *warnings, __file__, *arguments, "--only", name, "--current", str(current)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=READER_LIMIT, check=False)
            status, errors = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            status, errors = -1, "not finished in time"
        if status == 0:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        kept = _keep(name, _Current.get(current)) if current.exists() else "before the first input"
        died = f"ended with status {status}: {errors.strip()[-500:]}"
        return {**_NOTHING, "failures": {died: kept}}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--inputs", "number", default=200_000, show_default=True, help="For all readers together.")
@click.option("--seed", "chosen", type=int, help="Default: another one each time.")
@click.option("--reader", "readers", multiple=True, type=click.Choice(list(READERS)), help="Default: all.")
@click.option("--processes", default=2, show_default=True, help="Readers that are tried at the same time.")
@click.option("--growth", is_flag=True, help=f"Compare inputs of {SMALL:,} bytes to the largest.")
@click.option("--only", hidden=True)
@click.option("--current", type=click.Path(path_type=Path), hidden=True)
def main(
    number: int,
    chosen: int | None,
    readers: tuple[str, ...],
    processes: int,
    growth: bool,
    only: str | None,
    current: Path | None,
) -> None:
    """Give hostile inputs to the readers of this package."""
    names = list(readers or READERS)
    if only is not None and current is not None:
        print(json.dumps(_growth_of(only) if growth else _try_one(only, number, chosen or 0, current)))
        return
    chosen = random.randrange(2**32) if chosen is None else chosen
    click.echo(f"seed {chosen}")
    each = max(1, -(-number // len(names)))
    arguments = [f"--inputs={each}", f"--seed={chosen}"]
    arguments += ["--growth"] * growth
    with ThreadPoolExecutor(processes) as pool:
        found = list(pool.map(lambda name: _in_its_own_process(name, arguments), names))
    table = Table("reader", "inputs", "refused", "CPU s", "slowest ms", "memory MB", "failures")
    for name, one in zip(names, found, strict=True):
        counts = [f"{one['inputs']:,}", f"{one['refused']:,}", f"{one['seconds']:.1f}"]
        row = [*counts, f"{one['slowest'] * 1000:.0f}", f"{one['grew']:.0f}", str(len(one["failures"]))]
        table.add_row(name, *row)
    Console(width=110).print(table)
    click.echo(
        f"{sum(one['inputs'] for one in found):,} inputs, {sum(one['refused'] for one in found):,} refused"
    )
    failed = False
    for name, one in zip(names, found, strict=True):
        for kind, shown in one["failures"].items():
            failed = True
            click.echo(f"\n{name}, seed {chosen}: {kind}\n  {shown}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
