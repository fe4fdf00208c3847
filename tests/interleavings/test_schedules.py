"""
Two movers of one group or pipeline, in every schedule within a bound, see `tests/support/every_schedule.py`.

By default the turn changes twice, and a crash is in the place of both changes (on a group: of one of them);
where both movers move a checkpoint the turn changes once, and a crash is in its place. To go further:

    SCHEDULE_CHANGES=3 SCHEDULE_CRASH_COSTS=0 pytest -s tests/interleavings/test_schedules.py -k "group"
"""

from __future__ import annotations

import os
import time

import pytest
from concurrent_movers import deterministic, group_pairs, new_place, pipeline_pairs
from every_schedule import Script
from judged_pairs import Pair, Scripts, explore

PAIRS = [("group", Pair(*pair)) for pair in group_pairs()]
PAIRS += [("pipeline", Pair(*pair)) for pair in pipeline_pairs()]
LARGEST = {"pipeline: restore, restore", "pipeline: reset, same reset"}


@pytest.fixture(scope="module")
def scripts():
    """Those of movers on a group, and those on a pipeline; prints how much was explored."""
    totals = {"schedules": 0, "states": 0}
    start, runs = time.process_time(), Script.runs
    with deterministic():
        places = {"group": new_place(checkpoint=False), "pipeline": new_place(checkpoint=True)}
    yield {where: Scripts(place) for where, place in places.items()}, totals
    seconds = time.process_time() - start
    found = totals["schedules"]
    print(
        f"\n{found:,} schedules, {totals['states']:,} states, {Script.runs - runs:,} runs of movers", end=""
    )
    print(f" in {seconds:.1f} s: {found / seconds:,.0f} schedules a second")


def bounds(where: str, pair: Pair) -> dict[str, int]:
    heavy = where == "pipeline" and all(mover.moves_checkpoint for mover in pair)
    changes = int(os.environ.get("SCHEDULE_CHANGES", "1" if heavy else "2"))
    costs = 1 if where == "group" else changes
    return {"changes": changes, "crash_costs": int(os.environ.get("SCHEDULE_CRASH_COSTS", costs))}


@pytest.mark.parametrize(
    ("where", "pair"),
    [
        pytest.param(*each, id=name, marks=pytest.mark.long if name in LARGEST else [])
        for each in PAIRS
        if (name := f"{each[0]}: {each[1]}")
    ],
)
def test_every_schedule_ends_where_one_of_the_two_has_put_it(where, pair, scripts):
    known, totals = scripts
    limits = bounds(where, pair)
    with deterministic():
        found, _ = explore(pair, known[where], **limits)
    totals["schedules"] += found.schedules
    totals["states"] += found.states
    assert not found.wrong, found.wrong[0]
    assert found.schedules > 100
