"""The plan of a failover that is saved, approved, and applied later, or refused."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_task import TaskInstance
from mirrored_clusters import READ

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import MoveUnfinishedError, OffsetsFormatError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.saved_plan import SavedPlan
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.integration

NOWHERE = {0: None, 1: None}


def apply(plan: Any, **how: Any) -> dict[str, Any]:
    task = FailOverOperator(task_id="fail_over", plan=plan, quiet_period=0, **how)
    run: Any = SimpleNamespace(triggering_user_name=None)
    return task.execute({"ti": TaskInstance(), "dag_run": run})


def approval(plan: dict[str, Any], chosen: str | None = None) -> dict[str, Any]:
    return {
        "chosen_options": [chosen or f"Approve {plan['digest'][:8]}"],
        "params_input": {},
        "responded_at": "2026-03-02T10:40:00Z",
        "responded_by_user": {"id": "ada", "name": "ada"},
        "digests": [plan["digest"]],
    }


def test_a_plan_says_what_it_would_write_and_changes_nothing(pipeline, mirrored):
    plan = pipeline.plan()
    assert pipeline.is_unmoved()
    source, target = mirrored.on_source.cluster_id(), mirrored.on_target.cluster_id()
    text = plan["markdown"]
    assert text.startswith(f"### Plan {plan['digest'][:8]}, made ")
    assert f"| From | cluster `{source}` |" in text
    assert f"| To | cluster `{target}`: " in text
    assert "| Translation | 2 exact (record) |" in text
    assert "| Never mirrored | none |" in text
    assert "| Read again | nothing |" in text
    assert plan["estimate"]["records_passed"] == 0
    assert plan["estimate"]["lag"] == 75
    assert plan["failover"]["left"]["cluster"] == source
    assert set(plan["failover"]["left"]["topics"]) == {pipeline.topic}
    assert plan["checkpoint"]["logs"]["cluster"] == target
    assert plan["names"]["mirror"] == pipeline.names["mirror"]


def test_without_an_exact_translation_the_table_shows_what_is_read_again(pipeline):
    plan = pipeline.plan(ask_source=False)
    again = plan["failover"]["again"]
    assert again > 0
    assert f"| Read again | at most {again:,} records |" in plan["markdown"]
    assert plan["estimate"]["records_again"] == again


def test_it_is_applied_as_planned_and_names_who_approved_it(pipeline, mirrored, connections):
    plan = pipeline.plan()
    connections("primary", "127.0.0.1:1")  # the old cluster is not needed any more
    receipt = apply(plan, approval=approval(plan), allow_self_approval=False, **pipeline.names)
    assert receipt["verified"]
    assert receipt["plan"] == plan["digest"]
    assert receipt["approval"] == {"by": "ada", "user_id": "ada", "at": "2026-03-02T10:40:00Z"}
    assert receipt["failover"] == plan["failover"]
    assert (receipt["before"], receipt["after"]) == (plan["before"], plan["after"])
    assert pipeline.committed() == READ
    assert pipeline.at() == {tp: READ[tp.partition] for tp in pipeline.copies}
    commit = mirrored.on_target.committed(pipeline.group, pipeline.copies)[pipeline.copies[0]]
    made = CommitMetadata.parse(commit and commit.metadata)
    assert (made.tool, made.plan, made.approved_by) == ("failover", plan["digest"], "ada")
    (archive,) = ArchivedMoves(SparkCheckpoint(pipeline.query.location))
    assert archive.made_by.plan == plan["digest"]
    assert archive.left_logs.cluster == mirrored.on_source.cluster_id()


def test_a_plan_names_its_pipeline_and_is_applied_once_and_taken_back(pipeline):
    plan = pipeline.plan()
    receipt = apply(plan)
    assert receipt["names"] == {**plan["names"], "kafka_config_id": "standby"}
    once = pipeline.query.files()
    again = apply(plan)
    assert (again["before"], again["after"]) == (plan["before"], plan["after"])
    assert (pipeline.committed(), pipeline.query.files()) == (READ, once)
    # The receipt names the pipeline too.
    restore = RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", quiet_period=0
    )
    restore.execute({"ti": TaskInstance()})
    assert pipeline.at() == {TopicPartition(pipeline.topic, number): at for number, at in READ.items()}


def test_a_failover_that_was_interrupted_is_finished_at_any_age(pipeline, monkeypatch):
    plan = pipeline.plan()
    with monkeypatch.context() as broken:
        broken.setattr("airflow_kafka_offsets.moves.apply.commit_groups", die)
        with pytest.raises(OSError, match="the process ends here"):
            apply(plan)
    assert pipeline.at() == {tp: READ[tp.partition] for tp in pipeline.copies}
    assert pipeline.committed() == NOWHERE
    # Another request does not finish it.
    with pytest.raises(MoveUnfinishedError, match="was begun and not finished"):
        FailOverOperator(task_id="other", quiet_period=0, **pipeline.names).execute({"ti": TaskInstance()})
    receipt = apply(plan, max_age="0s")
    assert receipt["after"] == plan["after"]
    assert pipeline.committed() == READ


def die(*_: object, **__: object) -> None:
    raise OSError("the process ends here")


# --- what is refused


def test_a_plan_is_refused_once_the_mirror_has_deleted_a_position_and_not_before(pipelines, mirrored):
    pipeline = pipelines(topic=mirrored.filled_topic())
    plan = pipeline.plan()
    mirrored.delete_records(pipeline.copies[0].topic, {0: 90})
    with pytest.raises(AirflowFailException, match="deleted"):
        apply(plan)
    assert pipeline.is_unmoved()
    # Planned on the shorter log it may be clamped; a log start that moves below it does not matter.
    plan = pipeline.plan(on_out_of_range="clamp")
    mirrored.delete_records(pipeline.copies[0].topic, {0: 90})
    apply(plan)
    assert pipeline.committed() == {0: 90, 1: 55}


def made_digest(plan: dict[str, Any]) -> str:
    try:
        SavedPlan.parse(plan)
    except OffsetsFormatError as error:
        return str(error).partition("have digest ")[2].partition(":")[0]
    return str(plan["digest"])


@pytest.mark.parametrize("part", ["after", "left"])
def test_the_digest_covers_what_would_be_written_and_the_cluster_that_is_left(pipeline, part):
    plan = pipeline.plan()
    if part == "left":
        plan["failover"]["left"]["cluster"] = "another"
    else:
        plan["checkpoint"]["after"]["0"][pipeline.copies[0].topic]["0"] = 71
    assert made_digest(plan) != plan["digest"]


def test_a_group_that_a_running_mirror_copies_is_refused_unless_that_is_allowed(
    pipelines, new_group, mirrored, cli
):
    pipeline = pipelines(group=f"other-{new_group()}")  # the mirror copies these
    commit = ("group", "commit", pipeline.group, "--checkpoint", pipeline.query.location, "--execute")
    assert cli(*commit, "--bootstrap-server", mirrored.source).code == 0
    mirrored.until(lambda: None not in pipeline.committed().values(), "the group")
    refused = cli("failover", "plan", *pipeline.options)
    assert (refused.code, "a mirror is still running" in refused.err) == (1, True)
    assert "--allow-running-mirror" in refused.err
    allowed = cli("failover", "plan", *pipeline.options, "--allow-running-mirror")
    assert (allowed.code, "a mirror is still running" in allowed.out) == (0, True)
    with pytest.raises(AirflowFailException, match="a mirror is still running"):
        pipeline.plan()
    plan = pipeline.plan(allow_running_mirror=True)
    strict = {**plan, "policy": {**plan["policy"], "allow_running_mirror": False}}
    strict["digest"] = made_digest(strict)
    with pytest.raises(AirflowFailException, match="a mirror is still running"):
        apply(strict)
    assert apply(plan)["verified"]
    assert pipeline.committed() == READ


def test_a_reset_refuses_the_plan_of_a_failover_and_a_failover_that_of_a_reset(pipeline, mirrored):
    plan = pipeline.plan()
    with pytest.raises(AirflowFailException, match="is of a failover.*FailOverOperator"):
        ResetOffsetsOperator(task_id="reset", plan=plan, quiet_period=0).execute({"ti": TaskInstance()})
    (reset,) = PlanResetsOperator(task_id="plans", pipelines=[pipeline.names], to_offset="earliest").execute(
        {"ti": TaskInstance()}
    )
    assert reset["names"]["mirror"] == pipeline.names["mirror"]
    with pytest.raises(AirflowFailException, match="is of a reset.*ResetOffsetsOperator"):
        apply(reset)
    assert pipeline.is_unmoved()


# --- on the command line


@pytest.fixture
def saved(cli, pipeline, tmp_path):
    """The file of a plan."""
    file = tmp_path / "plan.json"
    done = cli("failover", "plan", *pipeline.options, "--save-plan", file)
    assert done.code == 0, done
    assert f"### Plan {json.loads(file.read_text())['digest'][:8]}" in done.out
    assert pipeline.is_unmoved()
    return file


def test_the_command_line_saves_a_plan_and_applies_it(cli, saved, pipeline, mirrored):
    plan = json.loads(saved.read_text())
    assert plan["digest"] == pipeline.plan()["digest"]
    to = ("--to-bootstrap-server", mirrored.target, "--quiet-period", "0")
    done = cli("failover", "apply", "--plan", saved, *to)
    assert done.code == 0, done
    assert f"the positions are those of the saved plan {plan['digest']}: 2 exact (record)" in done.out
    assert pipeline.committed() == READ
    commit = mirrored.on_target.committed(pipeline.group, pipeline.copies)[pipeline.copies[0]]
    made = CommitMetadata.parse(commit and commit.metadata)
    assert made.plan == plan["digest"]


def test_the_command_line_refuses_a_plan_that_does_not_hold_any_more(cli, saved, pipeline, mirrored):
    to = ("--to-bootstrap-server", mirrored.target, "--quiet-period", "0")
    done = cli("failover", "apply", "--plan", saved, *to, "--max-age", "0s")
    assert done.code == 1
    assert "--max-age is 0" in done.err
    done = cli("group", "reset", "--plan", saved, "--bootstrap-server", mirrored.target)
    assert done.code == 1
    assert "failover apply --plan" in done.err
    pipeline.query.run(3, {pipeline.topic: {0: 90, 1: 55}})
    done = cli("failover", "apply", "--plan", saved, *to)
    assert done.code == 1
    assert "the query has run since" in done.err
    assert pipeline.committed() == NOWHERE
