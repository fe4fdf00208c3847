"""The tables that people read before they approve a plan."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.approval import digest_of_all
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.estimate import Between, Estimate
from airflow_kafka_offsets.model.plan_markdown import plan_markdown, plans_markdown
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan

NOW = datetime(2026, 3, 2, 10, 32, tzinfo=timezone.utc)
LOGS = {"cluster": "c", "topics": {"orders": "t"}}


def plan(group="orders-etl", policy=None, checkpoint=True, **more):
    receipt = {
        "version": 1,
        "group_id": group,
        "before": {"orders": {"0": 5_000, "1": 7_000}},
        "after": {"orders": {"0": 4_000, "1": 6_500}},
        "logs": LOGS,
        "times": {
            "before": {"orders": {"0": "2026-03-02T10:00:00Z", "1": "end"}},
            "after": {"orders": {"0": "2026-03-02T08:00:00Z", "1": "2026-03-02T08:00:07Z"}},
        },
        **more,
    }
    if checkpoint:
        receipt["checkpoint"] = {
            "kind": "seek",
            "location": "s3a://lake/orders",
            "query_id": "q",
            "batch_id": 822,
            "before": {"0": receipt["before"]},
            "after": {"0": receipt["after"]},
            "discarded": [],
            "archive": "0001-seek",
            "logs": LOGS,
        }
    names = Names(group, None, "s3a://lake/orders" if checkpoint else None)
    return estimated(SavedPlan.make(receipt, names, policy or CheckpointPolicy(), now=NOW))


def estimated(saved, **values):
    found = Estimate(1_500, 0, 9_000, 5_000, time_lag=7_200.0, **values)
    return saved.with_notes(estimate=found.as_json())


def row(text, name):
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return line.removeprefix(f"| {name} | ").removesuffix(" |")


def test_a_plan_says_what_moves_from_when_to_when_and_what_that_means():
    saved = estimated(
        plan(), bytes=3_100_000, seconds=Between(120, 300), begin_within=90_000.0, retention="kept"
    )
    text = plan_markdown(saved)
    assert text.startswith(f"### Plan {saved.digest[:8]}, made 2026-03-02 10:32 UTC")
    assert row(text, "Moves") == "group `orders-etl` and checkpoint `s3a://lake/orders` (batch 822)"
    assert row(text, "From") == "2026-03-02T10:00:00Z to the end"
    assert row(text, "To") == "2026-03-02T08:00:00Z to 2026-03-02T08:00:07Z"
    assert row(text, "Read again") == "1,500 records"
    assert row(text, "To read until the log end") == "9,000 records, about 3.1 MB by a sample; 2 min to 5 min"
    assert row(text, "Lost") == "nothing"
    assert row(text, "State") == "the query keeps no state"
    assert row(text, "Retention") == "kept until they are read; begin within 1 d 1 h"
    assert row(text, "Lag that gates will see") == "9,000 records, 5,000 in one partition, 2 h behind"
    assert "| `orders-etl` | `orders` | 2 | -1,500 |" in text


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (CheckpointPolicy(), "not named: a sink that appends gets the records twice"),
        (
            CheckpointPolicy(idempotent_sink=True),
            "overwrites by the records' own key: no record is written twice",
        ),
        (CheckpointPolicy(sink="kafka"), "kafka appends: records that are read again are written twice"),
        (CheckpointPolicy(sink="noop"), "noop"),
    ],
)
def test_a_plan_says_what_comes_twice(policy, says):
    assert row(plan_markdown(plan(policy=policy)), "Sink").startswith(says)


def test_a_plan_says_what_is_lost_left_alone_and_counted_twice():
    saved = plan(lost=120, skipped={"orders": {"2": 9}}, clamped={"orders": {"0": 10}})
    text = plan_markdown(saved.with_notes(stateful=True))
    assert row(text, "Lost") == (
        "120 records deleted by retention; 1 partition left alone; 1 partition moved to an end of the "
        "log instead"
    )
    assert row(text, "State") == "stays as it is: records that are read again are counted twice"


def test_a_plan_lists_what_was_triggered():
    runs = [
        {"dag_id": "reports", "run_id": "asset__1", "state": "success", "at": "2026-03-02T10:00:00Z"},
        {"dag_id": None, "run_id": None, "state": None, "at": "2026-03-02T10:05:00Z"},
    ]
    text = row(plan_markdown(plan().with_notes(triggered=runs)), "Already triggered")
    assert "`reports` asset\\_\\_1 (success)" in text
    assert "an event of 2026-03-02T10:05:00Z that has not started a run yet" in text


def test_a_run_that_several_commits_have_triggered_is_listed_once():
    runs = [
        {"dag_id": dag_id, "run_id": "asset__1", "state": "success", "at": f"2026-03-02T10:{minute:02}:00Z"}
        for dag_id, minutes in (("reports", range(12)), ("alerts", [12]))
        for minute in minutes
    ]
    text = row(plan_markdown(plan().with_notes(triggered=runs)), "Already triggered")
    assert text == "`reports` asset\\_\\_1 (success), `alerts` asset\\_\\_1 (success)"


@pytest.mark.parametrize(
    "notes",
    [
        {"estimate": None},
        {"estimate": {"lag": 5}},
        {"estimate": {**Estimate(1, 2, 3, 4).as_json(), "lag": "5"}},
        {"triggered": [{"dag_id": "reports"}]},
        {"triggered": "reports"},
    ],
    ids=str,
)
def test_notes_that_were_changed_since_are_refused_because_no_digest_covers_them(notes):
    changed = plan().with_notes(**notes)
    for plans in ([changed], [changed, plan("other")]):
        with pytest.raises(OffsetsFormatError, match="plan again"):
            plans_markdown(plans)


def test_several_plans_are_one_table_with_the_digest_of_all():
    plans = [plan(name) for name in ("a", "b", "c")]
    text = plans_markdown(plans)
    shown = digest_of_all([each.digest for each in plans])[:8]
    assert text.startswith(f"### Plan {shown} of 3 pipelines: 4,500 records are read again, 27,000 until")
    assert [line.split(" | ")[0] for line in text.splitlines()[4:]] == ["| `a`", "| `b`", "| `c`"]


@given(st.text(min_size=1, max_size=60).filter(lambda name: name.strip() and name not in ("None", "null")))
def test_a_hostile_name_stays_in_its_cell(name):
    try:
        saved = plan(name)
    except ValueError:
        return
    for text in (plan_markdown(saved), plans_markdown([saved, plan("other")])):
        line = next(line for line in text.splitlines() if line.startswith(("| Moves", "| `")))
        assert line.isprintable()
        unescaped = line.replace("\\|", "")
        assert unescaped.count("|") in (3, 9)


def test_the_table_of_a_fleet_has_what_speaks_against_each_plan():
    plans = []
    for group in ("a", "b"):
        saved = plan(group)
        found = Estimate(5, 10, 9, 9).as_json()
        runs = [{"dag_id": "reports", "run_id": "asset__1", "state": "success"}]
        plans.append(saved.with_notes(estimate=found, stateful=True, triggered=runs))
    text = plans_markdown(plans)
    for note in (
        "10 records passed over unread",
        "keeps state: ",
        "sink: not named: a sink that appends gets the records",
        "already triggered: `reports`",
    ):
        assert text.count(note) == 2, note
