"""
Compares the package with other clients and with its targets: ``python benchmarks/run.py``.

It starts a separate Kafka, creates topics with up to 10,000 partitions, runs every contestant in each round,
and prints medians and ratios. Needs the extra ``demo`` and the dependency group ``bench``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import checkpoint
import click
import commits
import groups
import growth
import imports
import intervals
import lag
import processes
import report
import simulated
import spark_jobs
import triggerer
from cluster import cluster, say
from measuring import Section

SIZES = [100, 1_000, 10_000]
PROCESS_SIZES = [100, 10_000]

# The order matters: the 200 groups must be the only groups on the broker.
NAMES = (
    "groups",
    "growth",
    "lag",
    "far",
    "commit",
    "reset",
    "intervals",
    "process",
    "checkpoint",
    "imports",
    "simulated",
    "spark",
    "triggerer",
)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure only this; may be repeated.")
@click.option("--quick", is_flag=True, help="Few partitions and few rounds, as a smoke test.")
@click.option("--rounds", type=int, default=7, show_default=True, help="Rounds of each measurement.")
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the tables here."
)
@click.option("--bootstrap-server", "servers", help="Use this broker; topics and groups are left on it.")
def main(only: tuple[str, ...], quick: bool, rounds: int, markdown: Path | None, servers: str | None) -> None:
    """Measure, and print the tables."""
    if quick:
        rounds = min(rounds, 2)
    sizes = [100] if quick else SIZES
    with cluster(servers) as on:
        measurements: dict[str, Callable[[], Section | list[Section]]] = {
            "groups": lambda: groups.measure(on, ((5, 2), (10, 2)) if quick else groups.SIZES, rounds),
            "growth": lambda: growth.measure(on, (1, 5) if quick else growth.PIPELINES),
            "lag": lambda: lag.measure(on, sizes, rounds),
            "far": lambda: lag.measure_far(on, [100] if quick else [1_000, 10_000], rounds),
            "commit": lambda: commits.measure_commit(on, sizes, rounds),
            "reset": lambda: commits.measure_reset(on, sizes, rounds),
            "intervals": lambda: (
                intervals.measure(on, (1, 20), 5, rounds)
                if quick
                else intervals.measure(on, intervals.SIZES, intervals.PIPELINES, rounds)
            ),
            "process": lambda: processes.measure(on, [500] if quick else PROCESS_SIZES, rounds),
            "checkpoint": lambda: checkpoint.measure(on, 500 if quick else 50_000, rounds),
            "imports": lambda: imports.measure(rounds),
            "simulated": lambda: (
                simulated.measure(3, 4, 50, rounds) if quick else simulated.measure(100, 200, 1_000, rounds)
            ),
            "spark": lambda: spark_jobs.measure(on, (2,) if quick else spark_jobs.SIZES, rounds),
            "triggerer": lambda: (
                triggerer.measure(on, sensors=5, sizes=(2,), settle=5, seconds=5)
                if quick
                else triggerer.measure(on)
            ),
        }
        sections: list[Section] = []
        for name in (name for name in NAMES if name in (only or NAMES)):
            say(f"measuring {name}")
            found = measurements[name]()
            sections += found if isinstance(found, list) else [found]
            if markdown:
                # Print the finished measurements even if a later one fails.
                markdown.write_text(report.markdown(sections), encoding="utf-8")
    click.echo(report.markdown(sections))


if __name__ == "__main__":
    main()
