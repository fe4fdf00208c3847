"""Plans that the command line saves, and carries out."""

import json

import pytest

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.usefixtures("memory")

READ, BACK = {0: 8, 1: 3}, {0: 6, 1: 1}
RESET = "group reset GROUP --checkpoint URI --shift-by -2"


@pytest.fixture
def plan(do, tmp_path):
    """The file of a plan."""
    file = tmp_path / "plan.json"
    done = do(f"{RESET} --save-plan {file}")
    assert done.code == 0, done.err
    assert f"### Plan {json.loads(file.read_text())['digest'][:8]}" in done.out
    return file


@pytest.fixture
def apply(do, plan):
    """apply(options) -> what a reset to the plan did."""
    return lambda options="--execute": do(f"group reset --plan {plan} --quiet-period 0 {options}")


def test_a_plan_is_saved_and_carried_out(apply, plan, query, committed, client, group, topic):
    assert (query.stands(), committed()) == (READ, READ)
    shown = apply("")
    assert (shown.code, query.stands()) == (0, READ), shown.err
    done = apply()
    assert done.code == 0, done.err
    assert (query.stands(), committed()) == (BACK, BACK)
    tp = TopicPartition(topic, 0)
    made = CommitMetadata.parse(client.committed(group, [tp])[tp].metadata)
    assert made.plan == json.loads(plan.read_text())["digest"]


def test_the_operator_and_the_command_give_the_same_move_the_same_digest(plan, group, query):
    from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

    task = ResetOffsetsOperator(
        task_id="plan", group_id=group, checkpoint_location=query.location, shift_by=-2, plan_only=True
    )
    assert task.execute({})["digest"] == json.loads(plan.read_text())["digest"]


def test_a_plan_does_not_name_a_connection_that_a_typed_broker_has_replaced(
    do, tmp_path, monkeypatch, bootstrap_servers
):
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_KAFKA_CONFIG_ID", "production")
    file = tmp_path / "plan.json"
    assert do(f"{RESET} --bootstrap-server {bootstrap_servers} --save-plan {file}").code == 0
    assert json.loads(file.read_text())["names"]["kafka_config_id"] is None


def test_a_plan_of_several_groups_without_a_checkpoint_is_carried_out(
    do, topic, new_group, commit, tmp_path, broker
):
    groups = [new_group(), new_group()]
    commit(groups[0], topic, READ)
    commit(groups[1], topic, BACK)
    file = tmp_path / "plan.json"
    assert do(f"group reset {' '.join(groups)} --topic TOPIC --shift-by -1 --save-plan {file}").code == 0
    done = do(f"group reset --plan {file} --execute")
    assert done.code == 0, done.err
    held = [sorted(broker.committed_everywhere(group).items()) for group in groups]
    assert [[commit.offset for _, commit in each] for each in held] == [[7, 2], [5, 0]]


def test_a_plan_that_does_not_hold_any_more_is_refused(apply, query, commit, group, topic):
    commit(group, topic, {0: 9})
    done = apply()
    assert (done.code, query.stands()) == (1, READ)
    assert "is no longer valid: group" in done.err
    assert "8 when the plan was made, 9 now" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--to-latest", "--to-latest would be ignored with --plan"),
        ("orders", "--plan names the groups itself: leave GROUP out"),
        ("--sink kafka", "--sink would be ignored with --plan"),
        ("--save-plan x", "--save-plan would be ignored with --plan"),
    ],
)
def test_what_a_plan_has_decided_cannot_be_given_as_well(apply, options, said):
    done = apply(options)
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_plan_is_not_saved_over_a_file_nor_carried_out_at_once(do, plan):
    before = plan.read_text()
    again = do(f"{RESET} --save-plan {plan}")
    assert (again.code, plan.read_text()) == (2, before)
    assert "the file exists and is not overwritten" in again.err
    for option in ("--execute", "--quiet-period 1"):
        assert do(f"{RESET} --save-plan {plan}.2 {option}").code == 2


def test_a_file_that_is_no_plan_or_is_not_there_is_named(cli, tmp_path):
    file = tmp_path / "secret.txt"
    file.write_text('{"password": "a-secret"}')
    done = cli("group", "reset", "--plan", file)
    assert done.code == 1
    assert "expected a plan" in done.err
    assert "a-secret" not in done.err
    gone = cli("group", "reset", "--plan", tmp_path / "gone")
    assert (gone.code, "there is no such file" in gone.err) == (2, True)


def test_a_plan_that_is_too_old_is_refused(apply, plan, query):
    value = json.loads(plan.read_text())
    plan.write_text(json.dumps({**value, "created": "2026-01-01T00:00:00+00:00"}))
    done = apply()
    assert (done.code, query.stands()) == (1, READ)
    assert "and --max-age is 1 d: plan again" in done.err
    assert apply("--execute --max-age 9999d").code == 0
