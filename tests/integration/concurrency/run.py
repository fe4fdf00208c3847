"""
Sets all pairs of movers against each other, and prints the table of docs/reliability.md.

    python tests/integration/concurrency/run.py --interleavings 50 --seed 1

It starts a Kafka of its own; KAFKA_BOOTSTRAP_SERVERS names another one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

COLUMNS = ("interleavings", "both done", "one refused", "both refused", "finished by the next", "in the gap")


def main() -> int:
    """Run the long test, and print what it has counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--interleavings", type=int, default=50, help="of each pair")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", default="", help="of which the name holds this, such as 'pipeline: reset'")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory, "table.json")
        os.environ |= {
            "LONG_TESTS": "yes",
            "INTERLEAVINGS": str(given.interleavings),
            "INTERLEAVINGS_SEED": str(given.seed),
            "INTERLEAVINGS_PAIRS": given.pairs,
            "INTERLEAVINGS_TABLE": str(table),
        }
        tests = Path(__file__).with_name("test_interleavings.py")
        status = pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "-m", "long", str(tests)])
        rows = json.loads(table.read_text()) if table.exists() else []
    print("|", " | ".join(("pair", *COLUMNS)), "|")
    print("|", " | ".join(["---", *["--:" for _ in COLUMNS]]), "|")
    for where, pair, counts in [*rows, *_totals(rows)]:
        cells = [str(counts.get(name, 0)) for name in COLUMNS]
        print("|", " | ".join([f"{where}: {pair}" if pair else where, *cells]), "|")
    return int(status)


def _totals(rows: list[list[object]]) -> list[list[object]]:
    counted = [counts for *_, counts in rows if isinstance(counts, dict)]
    return [["all", "", {name: sum(each.get(name, 0) for each in counted) for name in COLUMNS}]]


if __name__ == "__main__":
    sys.exit(main())
