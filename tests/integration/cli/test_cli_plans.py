"""Plans that the command line saves, and carries out."""

from __future__ import annotations

import json
from functools import partial

import pytest
from airflow_task import kafka_connection  # noqa: F401

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

ENDS, READ, BACK = {0: 10, 1: 4}, {0: 8, 1: 3}, {0: 6, 1: 1}
QUIET = ("--quiet-period", "0")


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, ENDS)
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, READ)
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


@pytest.fixture
def committed(committed, group, topic):
    """committed() -> {partition: offset} of the group."""
    return partial(committed, group, topic)


@pytest.fixture
def at(bootstrap_servers):
    return ("--bootstrap-server", bootstrap_servers)


@pytest.fixture
def plan(cli, group, query, at, tmp_path):
    """The file of a plan."""
    file = tmp_path / "plan.json"
    done = cli(
        *(
            "group",
            "reset",
            group,
            "--checkpoint",
            query.location,
            "--shift-by",
            "-2",
            "--save-plan",
            str(file),
        ),
        *(*QUIET, *at),
    )
    assert done.code == 0, done.err
    assert f"### Plan {json.loads(file.read_text())['digest'][:8]}" in done.out
    return file


def test_a_plan_is_saved_and_carried_out(cli, plan, query, committed, at, client, group, topic):
    assert (query.stands(), committed()) == (READ, READ)
    shown = cli("group", "reset", "--plan", str(plan), *QUIET, *at)
    assert (shown.code, query.stands()) == (0, READ), shown.err
    done = cli("group", "reset", "--plan", str(plan), "--execute", *QUIET, *at)
    assert done.code == 0, done.err
    assert (query.stands(), committed()) == (BACK, BACK)
    tp = TopicPartition(topic, 0)
    made = CommitMetadata.parse(client.committed(group, [tp])[tp].metadata)
    assert made is not None
    assert made.plan == json.loads(plan.read_text())["digest"]


def test_the_operator_and_the_command_give_the_same_move_the_same_digest(cli, plan, group, query, at):
    from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

    task = ResetOffsetsOperator(
        task_id="plan", group_id=group, checkpoint_location=query.location, shift_by=-2, plan_only=True
    )
    assert task.execute({})["digest"] == json.loads(plan.read_text())["digest"]


def test_a_plan_of_several_groups_without_a_checkpoint_is_carried_out(
    cli, at, topic, new_group, commit, tmp_path, client
):
    groups = [new_group(), new_group()]
    commit(groups[0], topic, READ)
    commit(groups[1], topic, BACK)
    file = tmp_path / "plan.json"
    reset = ("group", "reset", *groups, "--topic", topic, "--shift-by", "-1", "--save-plan", str(file), *at)
    assert cli(*reset).code == 0
    done = cli("group", "reset", "--plan", str(file), "--execute", *at)
    assert done.code == 0, done.err
    held = [
        [
            commit.offset
            for commit in client.committed(group, [TopicPartition(topic, n) for n in (0, 1)]).values()
        ]
        for group in groups
    ]
    assert held == [[7, 2], [5, 0]]


def test_a_plan_that_does_not_hold_any_more_is_refused(cli, plan, query, commit, group, topic, at):
    commit(group, topic, {0: 9})
    done = cli("group", "reset", "--plan", str(plan), "--execute", *QUIET, *at)
    assert (done.code, query.stands()) == (1, READ)
    assert "is no longer valid: group" in done.err
    assert "8 when the plan was made, 9 now" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to-latest",), "--to-latest would be ignored with --plan"),
        (("orders",), "--plan names the groups itself: leave GROUP out"),
        (("--sink", "kafka"), "--sink would be ignored with --plan"),
        (("--save-plan", "x"), "--save-plan would be ignored with --plan"),
    ],
)
def test_what_a_plan_has_decided_cannot_be_given_as_well(cli, plan, at, options, said):
    done = cli("group", "reset", "--plan", str(plan), *options, *at)
    assert done.code == 2
    assert said in done.err


def test_a_plan_is_not_saved_over_a_file_nor_carried_out_at_once(cli, plan, group, query, at):
    how = ("group", "reset", group, "--checkpoint", query.location, "--shift-by", "-2", *QUIET, *at)
    before = plan.read_text()
    again = cli(*how, "--save-plan", str(plan))
    assert (again.code, plan.read_text()) == (2, before)
    assert "the file exists and is not overwritten" in again.err
    assert cli(*how, "--save-plan", f"{plan}.2", "--execute").code == 2


def test_a_file_that_is_no_plan_or_is_not_there_is_named(cli, at, tmp_path):
    file = tmp_path / "secret.txt"
    file.write_text('{"password": "a-secret"}')
    done = cli("group", "reset", "--plan", str(file), *at)
    assert done.code == 1
    assert "expected a plan" in done.err
    assert "a-secret" not in done.err
    gone = cli("group", "reset", "--plan", str(tmp_path / "gone"), *at)
    assert (gone.code, "there is no such file" in gone.err) == (2, True)


def test_a_plan_that_is_too_old_is_refused(cli, plan, at, query):
    value = json.loads(plan.read_text())
    plan.write_text(json.dumps({**value, "created": "2026-01-01T00:00:00+00:00"}))
    done = cli("group", "reset", "--plan", str(plan), "--execute", *QUIET, *at)
    assert (done.code, query.stands()) == (1, READ)
    assert "and --max-age is 1 d: plan again" in done.err
    assert (
        cli("group", "reset", "--plan", str(plan), "--execute", "--max-age", "9999d", *QUIET, *at).code == 0
    )
