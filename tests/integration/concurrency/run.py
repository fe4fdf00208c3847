"""
Sets all pairs of movers against each other, and prints the table of docs/reliability.md.

    python tests/integration/concurrency/run.py --interleavings 50 --seed 1

It starts a Kafka of its own; KAFKA_BOOTSTRAP_SERVERS names another one. Each row is printed when it is
finished, what broke a rule right after it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = (
    "interleavings",
    "both done",
    "one refused",
    "both refused",
    "finished by the next",
    "waited",
    "in the gap",
)


class Table:
    """Prints what each pair has counted, and hands the pairs out to the processes one by one."""

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()

    def pytest_sessionstart(self) -> None:
        print("|", " | ".join(("pair", *COLUMNS)), "|")
        print("|", " | ".join(["---", *["--:" for _ in COLUMNS]]), "|", flush=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for pair, counts in report.user_properties:
                assert isinstance(counts, dict)
                self.row(pair, counts)
                self._total.update(counts)
        if report.failed:
            print(report.longreprtext, flush=True)

    def pytest_sessionfinish(self) -> None:
        self.row("all", self._total)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        counted = report.when == "call" or not report.passed
        return report.outcome if counted else "", "", ""  # no dot in the table

    def row(self, name: str, counts: Mapping[str, int]) -> None:
        print("|", " | ".join([name, *(str(counts.get(column, 0)) for column in COLUMNS)]), "|", flush=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        from xdist.scheduler import LoadScheduling

        config.option.maxschedchunk = 1
        return LoadScheduling(config, log)


def main() -> int:
    """Run the long test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--interleavings", type=int, default=50, help="of each pair")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", default="", help="of which the name holds this, such as 'pipeline: reset'")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no interleaving is begun")
    parser.add_argument("--processes", type=int, default=2, help="that share the pairs and one Kafka")
    given = parser.parse_args()
    os.environ |= {
        "LONG_TESTS": "yes",
        "INTERLEAVINGS": str(given.interleavings),
        "INTERLEAVINGS_SEED": str(given.seed),
        "INTERLEAVINGS_PAIRS": given.pairs,
        "INTERLEAVINGS_UNTIL": str(time.time() + 60 * given.minutes),
    }
    tests = Path(__file__).with_name("test_interleavings.py")
    options = ["-q", "--no-header", "--tb=no", f"-n{given.processes}", "-p", "no:cacheprovider", "-m", "long"]
    return int(pytest.main([*options, str(tests)], plugins=[Table()]))


if __name__ == "__main__":
    sys.exit(main())
