"""
Checks that many waits are served on time while their admin process is killed: ``python benchmarks/soak.py``.

It polls for waits on different groups, like a triggerer, and kills the admin process every few minutes. It
exits with 1 if a wait had no reading for more than three intervals.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

import click
import psutil
from cluster import Cluster, cluster, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PARTITIONS = 50
INTERVAL = 10.0


@click.command()
@click.option("--waits", default=500, show_default=True)
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--kill-every", default=3.0, show_default=True, help="Minutes between two kills.")
def main(waits: int, minutes: float, kill_every: float) -> None:
    """Poll, kill, and print the results."""
    with cluster(None) as on:
        os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": on.servers}}
        )
        late = asyncio.run(_soak(on, waits, minutes * 60, kill_every * 60))
    sys.exit(1 if late else 0)


async def _soak(on: Cluster, waits: int, seconds: float, kill_every: float) -> int:
    from airflow_kafka_offsets.triggers.poll import poll_repeatedly
    from airflow_kafka_offsets.waits.lag import LagWait
    from airflow_kafka_offsets.waits.wait import Reading

    topic, partitions = on.topic(PARTITIONS), on.partitions(PARTITIONS)
    names = [on.name(f"soak-{number}") for number in range(waits)]
    with on.client() as client:
        for name in names:
            client.commit(name, dict.fromkeys(partitions, 0))
    times: list[list[float]] = [[] for _ in names]
    errors: list[str] = []
    kills = 0
    end = time.monotonic() + seconds

    async def follow(number: int, stream: AsyncIterator[object]) -> None:
        times[number].append(time.monotonic())
        while time.monotonic() < end:
            outcome = await anext(stream)
            if isinstance(outcome, Reading):
                times[number].append(time.monotonic())
            else:
                errors.append(str(outcome))

    async def kill() -> None:
        nonlocal kills
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(kill_every, left))
            for child in psutil.Process().children():
                if "admin_worker" in " ".join(child.cmdline()):
                    child.kill()
                    kills += 1
                    say(f"{end - time.monotonic():.0f} s left; killed {kills}; {_threads()} threads")

    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                aclosing(poll_repeatedly(LagWait(group_id=name, topics=topic, max_lag=0), INTERVAL))
            )
            for name in names
        ]
        killing = asyncio.create_task(kill())
        await asyncio.gather(*(follow(number, stream) for number, stream in enumerate(streams)))
        killing.cancel()
    gaps = [later - earlier for each in times for earlier, later in itertools.pairwise(each)]
    lost = sum(len(each) < 2 for each in times)
    late = lost + sum(gap > 3 * INTERVAL for gap in gaps)
    click.echo(
        f"{waits} waits, {seconds / 60:g} minutes, {kills} kills of the admin process: {len(gaps)} readings, "
        f"{len(errors)} errors; seconds between two readings of a wait: median "
        f"{statistics.median(gaps):.1f}, longest {max(gaps):.1f}; waits lost: {lost}; "
        f"late by more than two intervals: {late}"
    )
    for error in sorted(set(errors))[:5]:
        click.echo(f"error: {error}")
    return late


def _threads() -> int:
    own = psutil.Process()
    return sum(each.num_threads() for each in (own, *own.children()) if "java" not in each.name())


if __name__ == "__main__":
    main()
