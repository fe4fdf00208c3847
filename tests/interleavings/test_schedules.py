"""
Two movers of one group or pipeline, in every schedule within a bound, see `tests/support/every_schedule.py`.

By default the turn changes twice, and a crash is in the place of both changes (on a group: of one of them).
Where both movers move a checkpoint, it changes twice without a crash, or once with a crash in its place. To
go further:

    SCHEDULE_CHANGES=3 SCHEDULE_CRASH_COSTS=0 pytest -s tests/interleavings/test_schedules.py -k "group"
"""

import os
import time

import pytest
from concurrent_movers import deterministic, group_pairs, new_place, pipeline_pairs
from every_schedule import Script
from judged_pairs import Pair, Scripts, explore

PAIRS = [("group", Pair(*pair)) for pair in group_pairs()]
PAIRS += [("pipeline", Pair(*pair)) for pair in pipeline_pairs()]
NO_CRASH = 99
"""More changes than there are: a crash is in the place of so many."""
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


def cases():
    """Each pair, with the bounds of its schedules."""
    for where, pair in PAIRS:
        name = f"{where}: {pair}"
        bounds = {"": (2, 1 if where == "group" else 2)}
        if where == "pipeline" and all(mover.moves_checkpoint for mover in pair):
            bounds = {", two changes": (2, NO_CRASH), ", a crash": (1, 1)}
        for kind, (changes, crash_costs) in bounds.items():
            limits = {
                "changes": int(os.environ.get("SCHEDULE_CHANGES", changes)),
                "crash_costs": int(os.environ.get("SCHEDULE_CRASH_COSTS", crash_costs)),
            }
            long = name in LARGEST and crash_costs != NO_CRASH
            yield pytest.param(
                where, pair, limits, id=f"{name}{kind}", marks=pytest.mark.long if long else []
            )


@pytest.mark.parametrize(("where", "pair", "limits"), list(cases()))
def test_every_schedule_ends_where_one_of_the_two_has_put_it(where, pair, limits, scripts):
    known, totals = scripts
    with deterministic():
        found = explore(pair, known[where], **limits)
    totals["schedules"] += found.schedules
    totals["states"] += found.states
    assert not found.wrong, found.wrong[0]
    assert found.schedules > 100
