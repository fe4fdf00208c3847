"""
Breaks the package in a hundred small ways, one at a time, and runs the tests that must notice.

    python tests/mutations/run.py
    python tests/mutations/run.py retry- claim-second-look --jobs 1

Names choose the mutations that begin with them. Each file in tests/mutations/patches says what it breaks, and
which tests must fail then. All of it happens in copies in a temporary directory. First the tests must pass on
the package as it is. Tests that need a Kafka share one; KAFKA_BOOTSTRAP_SERVERS names another one. The exit
status is 1 if a mutation survives that does not say why, or is caught although it says so.
"""

import argparse
import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from mutations import Mutation, all_mutations

ROOT = Path(__file__).parents[2]
COPIED = ("airflow_kafka_offsets", "dags_examples", "docs", "tests", "pyproject.toml")
BROKER = "KAFKA_BOOTSTRAP_SERVERS"
LIMIT = 300
"""Seconds for the tests of one mutation; who takes longer hangs, and is caught by that."""
TESTS_FAILED = 1
"""Pytest's exit status; any other one but 0 means that the tests were not run."""


class Outcome(NamedTuple):
    """What the tests have said to a mutation."""

    verdict: str
    seconds: float
    said: str = ""
    """The end of what pytest has printed."""


class Copy:
    """A copy of the package and its tests, in which one mutation after another is tried."""

    def __init__(self, directory: Path) -> None:
        self._home = directory
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, directory / name)
            else:
                shutil.copy2(ROOT / name, directory / name)

    def run(self, tests: Iterable[str], *options: str) -> Outcome:
        """Run tests on the package as it is now."""
        begun = time.monotonic()
        # Python's own path begins with the working directory, so that the copy is imported.
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests]
        environment = os.environ | {"PYTHONPATH": str(self._home)}
        try:
            done = subprocess.run(
                command,
                cwd=self._home,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome("caught", time.monotonic() - begun, f"not finished after {LIMIT} s")
        said, seconds = done.stdout[-3_000:], time.monotonic() - begun
        if done.returncode == TESTS_FAILED:
            return Outcome("caught", seconds, said)
        if done.returncode or re.search(r"\d+ skipped", said):
            return Outcome("not run", seconds, said)
        return Outcome("survived", seconds, said)

    def try_out(self, mutation: Mutation) -> Outcome:
        """Run the tests of a mutation with it, and take it back."""
        file = self._home / mutation.path
        original = file.read_text(encoding="utf-8")
        try:
            self._write(file, mutation.apply(original))
            return self.run(mutation.tests)
        finally:
            self._write(file, original)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        # A file of the same size that was written in the same second would be taken from Python's cache.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def broker(tests: Iterable[str]) -> Iterator[None]:
    """Start one Kafka for all tests, if one of them needs it."""
    if BROKER in os.environ or not any(test.startswith("tests/integration") for test in tests):
        yield
        return
    from airflow_kafka_offsets.local.kafka import EmbeddedKafka

    with EmbeddedKafka() as kafka:
        os.environ[BROKER] = kafka.bootstrap_servers
        yield


def main() -> int:
    """Try the mutations, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the names of the mutations begin; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="mutations that are tried at the same time")
    parser.add_argument("--show", action="store_true", help="what the tests said to those that survived")
    given = parser.parse_args()
    chosen = [each for each in all_mutations() if each.name.startswith(tuple(given.names) or "")]
    if not chosen:
        parser.error(f"no mutation begins with {given.names}")
    tests = sorted({test for each in chosen for test in each.tests})
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory, broker(tests):
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(given.jobs):
            home = Path(directory, str(number))
            home.mkdir()
            copies.put(Copy(home))
        first = copies.get()
        unchanged = first.run(tests, "-rs")
        copies.put(first)
        if unchanged.verdict != "survived":
            print(f"The tests do not pass on the package as it is:\n{unchanged.said}")
            return 1
        print(f"{len(tests)} tests pass on the package as it is, in {unchanged.seconds:.0f} s", flush=True)
        print("| mutation | breaks | outcome | s |\n|---|---|---|--:|", flush=True)

        def one(mutation: Mutation) -> Outcome:
            copy = copies.get()
            try:
                return copy.try_out(mutation)
            finally:
                copies.put(copy)

        counts = {"caught": 0, "explained": 0, "wrong": 0}
        with ThreadPoolExecutor(given.jobs) as pool:
            for mutation, outcome in zip(chosen, pool.map(one, chosen), strict=True):
                expected = "survived" if mutation.survives else "caught"
                right = outcome.verdict == expected
                kind = ("explained" if mutation.survives else "caught") if right else "wrong"
                counts[kind] += 1
                verdict = outcome.verdict + (f": {mutation.survives}" if mutation.survives else "")
                row = (mutation.name, mutation.breaks, verdict, f"{outcome.seconds:.0f}")
                print("|", " | ".join(row), "|", flush=True)
                if not right and (given.show or outcome.verdict == "not run"):
                    print(outcome.said, flush=True)
    print(
        f"{len(chosen)} mutations: {counts['caught']} caught, {counts['explained']} explained, "
        f"{counts['wrong']} not as expected, in {time.monotonic() - begun:.0f} s"
    )
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
