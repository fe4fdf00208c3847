"""Many pipelines as one (PIPELINES=60 for sixty): planned, moved in waves, one refused, taken back."""

import json
import os

import pytest
from group_members import member_of
from kafka_shell import parse_describe
from moved_fleet import BACK, READ, SHIFT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# After a failure, fewer than 2 * AT_ONCE more pipelines are moved. Some must be left then.
MANY, AT_ONCE, FAILS = int(os.environ.get("PIPELINES", "24")), 4, 11


@pytest.fixture
def many(pipelines, kafka_tools):
    made = pipelines(MANY)

    def groups():
        # With --all-groups the tool would fail by a group that another test deletes meanwhile.
        named = (word for name in made.names for word in ("--group", name))
        found = {name: set() for name in made.names}
        for row in parse_describe(kafka_tools.consumer_groups("--describe", *named).stdout):
            found[row["group"]].add(row["current_offset"])
        return found

    made.groups = groups  # as Kafka's own tool says
    return made


def test_pipelines_are_moved_in_waves_one_fails_and_all_are_taken_back(many, recovering, bootstrap_servers):
    spark = {name: query.sparks_files() for name, query in many.queries.items()}
    done = recovering("plan", many, *SHIFT)
    assert done.code == 0, done.err
    assert (
        f"of {MANY} pipelines: {9 * MANY:,} records are read again, {39 * MANY:,} until the log end"
        in done.out
    )
    assert done.out.count("| `") == MANY
    assert (many.at(), many.stages()) == ({READ: MANY}, {"planned": MANY})
    digest = json.loads(many.state.read_text())["digest"]

    wrong = recovering("apply", many, "--execute", "--digest", "0" * 8)
    assert (wrong.code, many.stages()) == (1, {"planned": MANY})
    with member_of(bootstrap_servers, many.names[FAILS], many.topic):
        failed = recovering("apply", many, "--execute", "--digest", digest[:8], "--max-active", str(AT_ONCE))
    assert failed.code == 1
    assert f"Error: group {many.names[FAILS]}: nothing was changed: group" in failed.err
    stages = many.stages()
    assert FAILS <= stages["applied"] + 1 <= FAILS + 2 * AT_ONCE
    assert stages["planned"] == MANY - stages["applied"]

    other = recovering("plan", many, "--to-earliest")
    assert other.code == 2
    assert f"a recovery of {stages['applied']} pipelines has begun, and was not undone" in other.err

    done = recovering("apply", many, "--execute", "--max-active", str(AT_ONCE))
    assert done.code == 0, done.err
    assert (many.at(), many.stages()) == ({BACK: MANY}, {"applied": MANY})
    status = recovering("status", many, "--output", "json")
    assert {each["now"] for each in json.loads(status.out)["pipelines"]} == {"moved"}

    done = recovering("restore", many, "--execute")
    assert done.code == 0, done.err
    assert (many.at(), many.stages()) == ({READ: MANY}, {"restored": MANY})
    assert {name: query.sparks_files() for name, query in many.queries.items()} == spark
