"""
Soak the package: move offsets while brokers, connections, disks and workers fail, and check each outcome.

From the development environment::

    python tests/soak/run.py --minutes 10 --seed 7
    python tests/soak/run.py --schedules 500 --seed 7
    python tests/soak/run.py --schedules 500 --seed 7 --spark
    python tests/soak/run.py --schedules 100 --seed 7 --secured
    python tests/soak/run.py --seed 7 --only 42      # replays one schedule

The exit status is 1 if a promise was broken; the schedule that led there is printed.
"""

import itertools
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = [str(ROOT), str(ROOT / "tests" / "support")]
sys.path[:0] = PLACES

import click  # noqa: E402


@click.command()
@click.option("--minutes", type=float, default=None, help="How long schedules are begun.")
@click.option("--schedules", type=int, default=None, help="How many are played at most.")
@click.option(
    "--seed", type=int, default=None, help="What they are drawn from. Default: another one each time."
)
@click.option("--only", type=int, default=None, help="Play this schedule alone.")
@click.option("--at-once", type=int, default=8, show_default=True, help="Schedules at once.")
@click.option("--secured", is_flag=True, help="Let the workers log in, with SCRAM over TLS.")
@click.option("--spark", is_flag=True, help="Let a real Spark write one checkpoint in twenty.")
@click.option("--verbose", is_flag=True, help="Print what happened in each schedule.")
@click.option("--show", is_flag=True, help="Print the schedules, and play none.")
def main(
    minutes: float | None,
    schedules: int | None,
    seed: int | None,
    only: int | None,
    at_once: int,
    secured: bool,
    spark: bool,
    verbose: bool,
    show: bool,
) -> None:
    """Soak the package with faults."""
    from tests.soak.schedule import draw
    from tests.soak.soak import Soak

    seed = random.randrange(1_000_000) if seed is None else seed
    if minutes is None and schedules is None:
        schedules = 100
    numbers = iter([only]) if only is not None else itertools.islice(itertools.count(), schedules)
    if show:
        for number in numbers:
            click.echo(draw(seed, number, secured=secured, spark=spark))
        return
    click.echo(f"seed {seed}")
    began = time.monotonic()
    soak = Soak(
        lanes=1 if only is not None else at_once,
        secured=secured,
        with_spark=spark,
        verbose=verbose or only is not None,
    )
    try:
        click.echo(f"three brokers are ready after {time.monotonic() - began:.0f} s")
        soak.play(seed, numbers, time.monotonic() + (minutes * 60 if minutes is not None else float("inf")))
    finally:
        soak.close()
    for line in soak.report.lines():
        click.echo(line)
    if soak.report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    # Airflow reads it once when it is imported, in the processes that the workers are copies of.
    with tempfile.TemporaryDirectory(prefix="airflow-home-", ignore_cleanup_errors=True) as home:
        os.environ |= {"AIRFLOW_HOME": home, "PYTHONPATH": os.pathsep.join(PLACES)}
        main()
