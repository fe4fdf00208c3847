"""
Recoveries on a real scheduler: tasks that are cleared, runs that are given up, a reset that is killed
half-way.
"""

from pathlib import Path

import airflow
import pytest
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.drift import pipeline_drift

pytestmark = [pytest.mark.system, pytest.mark.integration, pytest.mark.timeout(400)]

READ, BACK, END = 60, 57, 100
JUDGED = ("marked", "commit_marked", "taken_back", "timed_out", "deleted", "whole")
HANGS, FAILS = ("marked", "whole"), ("taken_back", "timed_out", "deleted")
NAMES = ("cleared", "given_up", "broken", "half_way")
RESETS = ("both", "group")


@pytest.fixture(scope="module")
def topic(airflow_with_users, produce):
    name = airflow_with_users.variables["RECOVERY_TOPIC"]
    produce(name, {0: END})
    return name


@pytest.fixture(scope="module")
def live(airflow_with_users, topic, broker):
    """An Airflow with the recoveries, whose queries have stopped at 60 of 100 records."""
    variables = airflow_with_users.variables
    pipelines = Path(variables["RECOVERY_HOME"])
    for name in (*NAMES, *JUDGED, "scheduled"):
        query = Query(pipelines / name, f"11111111-2222-3333-4444-{name:x>12.12}")
        for batch, offset in enumerate((10, READ)):
            query.run(batch, {topic: {0: offset}})
        broker.commit(f"{name}-{topic}", {TopicPartition(topic, 0): READ})
    (pipelines / "given_up" / "job").write_text("fail")
    (pipelines / "broken" / "job").write_text("fail for good")
    (pipelines / "half_way" / "kill").touch()
    for name in (*HANGS, *FAILS):
        (pipelines / name / "job").write_text("hang" if name in HANGS else "fail")
    (pipelines / "commit_marked" / "no-commit").touch()
    broker.commit(f"alone-{topic}", {TopicPartition(topic, 0): READ})
    for reset in RESETS:
        (pipelines / "scheduled" / f"fail-{reset}").touch()
    # All begin at once; each test waits for its own.
    begun = {name: airflow_with_users.trigger(name) for name in NAMES}
    vars(airflow_with_users).update(pipelines=pipelines, begun=begun)
    return airflow_with_users


def state_of(live, dag_id, run_id):
    return live.api("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"]


def end_of(live, dag_id, run_id):
    """Wait for the end of a run, and return its state."""
    live.ended(dag_id, run_id)
    return state_of(live, dag_id, run_id)


def test_clearing_one_commit_of_a_green_recovery_leaves_the_pipeline_where_it_is(live, at):
    run = live.begun["cleared"]
    assert (end_of(live, "cleared", run), at("cleared")) == ("success", (END, END))
    with_it = {"reset", "restore"} if airflow.__version__ >= "3.3" else set()
    assert live.clear("cleared", run, "commit") == {"commit"} | with_it
    assert (end_of(live, "cleared", run), at("cleared")) == ("success", (END, END))
    # With what comes after it, it is the whole recovery again.
    assert live.clear("cleared", run, "reset", downstream=True) == {"reset", "job", "commit", "restore"}
    assert (end_of(live, "cleared", run), at("cleared")) == ("success", (END, END))
    archives = live.pipelines / "cleared" / "_kafka_offsets"
    assert sorted(each.name for each in archives.iterdir()) == ["0001-seek", "0002-seek"]


def test_a_reset_that_is_cleared_alone_is_refused(live, at):
    run = live.begun["cleared"]
    before = at("cleared")
    live.clear("cleared", run, "reset")
    assert (end_of(live, "cleared", run), live.states("cleared", run)["reset"]) == ("failed", "failed")
    assert at("cleared") == before


def test_a_recovery_that_is_marked_as_failed_while_its_job_waits_is_restored_and_fails(live, at):
    run = live.begun["given_up"]
    live.wait_until(lambda: live.states("given_up", run)["job"] == "up_for_retry", "the job to fail once")
    assert at("given_up") == (BACK, BACK)
    live.api("PATCH", f"dags/given_up/dagRuns/{run}", json={"state": "failed"})
    live.ended("given_up", run)
    assert at("given_up") == (READ, READ)
    states = live.states("given_up", run)
    assert (states["job"], states["restore"], state_of(live, "given_up", run)) == (
        "skipped",
        "failed",
        "failed",
    )
    assert live.xcom("given_up", run, "restore")["after"] == {live_topic(live): {"0": READ}}


def test_a_recovery_whose_job_fails_is_a_failed_run_and_everything_is_where_it_was(live, at):
    run, topic = live.begun["broken"], live_topic(live)
    live.ended("broken", run)
    assert live.states("broken", run) == {
        "reset": "success",
        "job": "failed",
        "commit": "upstream_failed",
        # It has put everything back, and fails so that the run does.
        "restore": "failed",
    }
    assert (state_of(live, "broken", run), at("broken")) == ("failed", (READ, READ))
    receipt = live.xcom("broken", run, "restore")
    assert (receipt["before"], receipt["after"]) == ({topic: {"0": BACK}}, {topic: {"0": READ}})
    assert receipt["verified"] is True


def test_a_reset_that_was_killed_half_way_is_finished_when_it_is_cleared(live, at):
    run = live.begun["half_way"]
    assert (end_of(live, "half_way", run), at("half_way")) == ("failed", (READ, BACK))
    live.clear("half_way", run, "reset", downstream=True)
    assert (end_of(live, "half_way", run), at("half_way")) == ("success", (END, END))
    receipt = live.xcom("half_way", run, "reset")
    topic = live_topic(live)
    assert (receipt["before"], receipt["after"]) == ({topic: {"0": READ}}, {topic: {"0": BACK}})
    assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": READ}}}


# --- what the tasks say, and what the world says


@pytest.fixture(scope="module")
def judged(live):
    """The runs that wait for nobody else, begun together; those that hang are begun by their tests."""
    return {name: live.trigger(name) for name in JUDGED if name not in HANGS}


@pytest.fixture
def drift(live, topic, broker):
    """drift(name) -> what a drift check says of a pipeline."""

    def check(name):
        checkpoint = SparkCheckpoint(str(live.pipelines / name))
        (report,) = pipeline_drift(broker, checkpoint, GroupSelection.parse(f"{name}-{topic}"))
        assert report.drifted
        return report.summary()

    return check


def waits_for_its_retry(live, dag_id, run, task_id):
    live.wait_until(lambda: live.states(dag_id, run)[task_id] == "up_for_retry", f"{task_id} to fail once")


def mark(live, dag_id, run, task_id):
    """Mark a task as a success, as the UI does."""
    live.api("PATCH", f"dags/{dag_id}/dagRuns/{run}/taskInstances/{task_id}", json={"new_state": "success"})


def has_begun_a_batch(live, dag_id):
    live.wait_until((live.pipelines / dag_id / "offsets" / "2").exists, "the job to begin its batch")


def test_a_job_that_is_marked_in_the_middle_of_its_batch_is_taken_back(live, at, judged):
    run = live.trigger("marked")
    has_begun_a_batch(live, "marked")
    mark(live, "marked", run, "job")
    live.ended("marked", run)
    states = live.states("marked", run)
    assert (states["job"], states["restore"], state_of(live, "marked", run)) == (
        "success",
        "failed",
        "failed",
    )
    assert at("marked") == (READ, READ)


def test_a_commit_that_is_marked_leaves_no_group_behind(live, at, judged):
    run = judged["commit_marked"]
    waits_for_its_retry(live, "commit_marked", run, "commit")
    mark(live, "commit_marked", run, "commit")
    assert (end_of(live, "commit_marked", run), at("commit_marked")) == ("failed", (READ, END))


def test_a_reset_that_another_dag_has_taken_back_is_not_finished_and_its_newer_reset_stays(live, at, judged):
    run = judged["taken_back"]
    waits_for_its_retry(live, "taken_back", run, "job")
    other = live.trigger("another", receipt=live.xcom("taken_back", run, "reset"))
    assert (end_of(live, "another", other), at("taken_back")) == ("success", (30, 30))
    for task_id in ("job", "commit"):
        mark(live, "taken_back", run, task_id)
    assert (end_of(live, "taken_back", run), at("taken_back")) == ("failed", (30, 30))
    archives = live.pipelines / "taken_back" / "_kafka_offsets"
    assert sorted(each.name for each in archives.iterdir()) == ["0001-seek", "0002-restore", "0003-seek"]
    assert not (archives / "0003-seek" / "undone").exists()


@pytest.mark.long
def test_a_run_that_was_cleared_as_a_whole_while_its_job_ran_goes_on(live, at, judged):
    run = live.trigger("whole")
    has_begun_a_batch(live, "whole")
    live.api("POST", f"dags/whole/dagRuns/{run}/clear", json={"dry_run": False, "only_failed": False})
    assert (end_of(live, "whole", run), at("whole")) == ("success", (END, END))


def test_a_recovery_that_is_deleted_is_named_by_the_drift_check(live, at, judged, drift):
    run = judged["deleted"]
    waits_for_its_retry(live, "deleted", run, "job")
    # A run that is running cannot be deleted, and marking it as failed would let the teardown begin.
    live.pause("deleted")
    live.api("PATCH", f"dags/deleted/dagRuns/{run}", json={"state": "queued"})
    live.api("DELETE", f"dags/deleted/dagRuns/{run}")
    assert at("deleted") == (BACK, BACK)
    assert f"recovery 0001-seek (run {run} of deleted.reset" in drift("deleted")


def test_a_recovery_that_times_out_is_named_by_the_drift_check(live, at, judged, drift):
    run = judged["timed_out"]
    live.ended("timed_out", run)
    assert live.states("timed_out", run)["restore"] in ("skipped", None)
    assert (state_of(live, "timed_out", run), at("timed_out")) == ("failed", (BACK, BACK))
    assert "is neither finished nor undone: checkpoint" in drift("timed_out")


@pytest.mark.long
def test_a_scheduled_run_that_is_created_again_moves_again_and_its_tries_and_clears_do_as_before(
    live, at, broker, topic
):
    tp = TopicPartition(topic, 0)

    def positions():
        return (*at("scheduled"), broker.committed(f"alone-{topic}", [tp])[tp].offset)

    live.pause("scheduled", paused=False)
    live.wait_until(lambda: live.runs("scheduled"), "the schedule's run")
    (run,) = (each["dag_run_id"] for each in live.runs("scheduled"))
    live.wait_until(lambda: live.states("scheduled", run)["both"] == "up_for_retry", "the reset to fail once")
    live.clear("scheduled", run, "beside")
    # Tried again, and another task of the run was cleared meanwhile: it was moved once.
    assert (end_of(live, "scheduled", run), positions()) == ("success", (READ - 3,) * 3)

    for reset in RESETS:
        (live.pipelines / "scheduled" / f"fail-{reset}").touch()
    live.clear("scheduled", run, *RESETS, "behind")
    # Cleared with what comes after it, before anything was committed: it goes on from its own move.
    assert (end_of(live, "scheduled", run), positions()) == ("success", (READ - 3,) * 3)

    live.api("DELETE", f"dags/scheduled/dagRuns/{run}")
    live.wait_until(lambda: live.runs("scheduled"), "the schedule's run, once more")
    assert [each["dag_run_id"] for each in live.runs("scheduled")] == [run]
    assert (end_of(live, "scheduled", run), positions()) == ("success", (READ - 6,) * 3)


def live_topic(live):
    return live.environment["RECOVERY_TOPIC"]
