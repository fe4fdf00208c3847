"""What a reset and its restore conclude from other tasks of their run where tasks are mapped, or missing."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task_group

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

NAMES: dict[str, Any] = {"topics": "orders", "kafka_config_id": "there_is_none"}


class TaskInstance:
    """One of a mapped task, in a run of which the states are given by their keys."""

    dag_id, run_id, task_id = "d", "r", "t"

    def __init__(self, map_index=-1, **states):
        self.map_index, self.states = map_index, {key.replace("__", "."): at for key, at in states.items()}

    def get_task_states(self, dag_id, task_ids, run_ids):
        """Return the states of tasks and, as Airflow names them, of their instances."""
        instances = {f"{name}_{index}" for name in task_ids for index in range(3)}
        return {"r": {key: at for key, at in self.states.items() if key in instances.union(task_ids)}}


@pytest.fixture
def in_a_mapped_group():
    """Give a task of ``reset >> job >> restore.as_teardown(setups=reset)`` in a mapped task group."""
    with DAG("d") as dag:

        @task_group
        def recover(group_id):
            reset = ResetOffsetsOperator(task_id="reset", group_id=group_id, shift_by=-3, **NAMES)
            restore = RestoreOffsetsOperator(
                task_id="restore", receipt=reset.output, group_id=group_id, **NAMES
            )
            reset >> EmptyOperator(task_id="job") >> restore.as_teardown(setups=reset)

        recover.expand(group_id=["a", "b"])

    def task(name):
        found: Any = dag.get_task(f"recover.{name}")
        found.group_id, found.receipt, found._templates = "b", None, {}
        return found

    return task


def test_a_reset_in_a_mapped_group_is_refused_if_its_own_job_was_not_cleared(in_a_mapped_group):
    ti: Any = TaskInstance(1, recover__job_0="failed", recover__job_1="success")
    with pytest.raises(
        AirflowFailException, match=r"recover\.job succeeded in this run, and was not cleared"
    ):
        in_a_mapped_group("reset").execute({"ti": ti})


@pytest.mark.parametrize("other", [None, "running", "failed"])
def test_a_restore_in_a_mapped_group_looks_at_its_own_reset_and_job(in_a_mapped_group, other, capsys):
    states = {"recover__reset_0": "success", "recover__reset_1": "skipped"}
    ti: Any = TaskInstance(1, **states, recover__job_0=other, recover__job_1="skipped")
    assert in_a_mapped_group("restore").execute({"ti": ti}) is None
    assert "there is no receipt, as if the reset has not run" in capsys.readouterr().out


def test_a_mapped_reset_is_refused_if_its_job_was_cleared_for_some_of_its_indexes():
    with DAG("d"):
        reset = ResetOffsetsOperator(task_id="reset", group_id="b", shift_by=-3, **NAMES)
        reset >> EmptyOperator(task_id="job")
    ti: Any = TaskInstance(1, job_0=None, job_1="success")
    with pytest.raises(
        AirflowFailException, match="job succeeded for some of its map indexes .* Clear all map indexes"
    ):
        reset.execute({"ti": ti})


@pytest.mark.usefixtures("memory")
def test_a_mapped_restore_takes_its_receipt_back_although_an_earlier_reset_has_left_none(
    make_topic, produce, new_group, commit, committed
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    commit(group, topic, {0: 8})
    with DAG("d"):
        reset = ResetOffsetsOperator(task_id="reset", to_offset=1, group_id=group, topics=topic)
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output)
        reset >> EmptyOperator(task_id="job") >> restore.as_teardown(setups=reset)
    states = {"reset_0": "failed", "reset_1": "success", "job": None}

    def context(task, index):
        ti: Any = TaskInstance(index, **states)
        ti.task_id, ti.xcom_push = task, lambda **_: None
        return {"ti": ti}

    restore.receipt = reset.execute(context("reset", 1))
    assert committed(group, topic) == {0: 1}
    states["job"] = "failed"
    # Airflow gives the first index the first receipt that there is.
    with pytest.raises(AirflowFailException, match="everything was put back"):
        restore.execute(context("restore", 0))
    assert committed(group, topic) == {0: 8}


@pytest.mark.parametrize("fails", [True, False])
def test_a_mapped_teardown_that_always_restores_hides_no_failed_task_if_the_run_takes_its_state(fails):
    with DAG("d") as dag:
        reset = ResetOffsetsOperator.partial(task_id="reset", shift_by=-3, **NAMES).expand(group_id=["a"])
        restore: Any = RestoreOffsetsOperator.partial(task_id="restore", restore_when="always").expand(
            receipt=reset.output
        )
        restore.as_teardown(setups=reset, on_failure_fail_dagrun=fails)
        reset >> EmptyOperator(task_id="job") >> restore
    group = {"group_id": "a", "before": {"orders": {"0": 5}}, "after": {"orders": {"0": 2}}}
    receipt = {"version": 1, "plan_only": True, "groups": [group]}
    one: Any = dag.get_task("restore").unmap({"receipt": receipt})
    context: Any = {"ti": TaskInstance(0, reset_0="success", job="failed")}
    if fails:
        with pytest.raises(AirflowFailException, match=r"has failed \(job: failed\), so this task fails"):
            one.execute(context)
    else:
        assert one.execute(context) is None


def test_a_task_that_is_mapped_by_itself_or_in_a_group_may_stop_after_a_failure():
    with DAG("d") as dag:
        stops: Any = {"shift_by": -3, "stop_after_failure": True, **NAMES}
        alone = ResetOffsetsOperator.partial(task_id="alone", **stops).expand(group_id=["a", "b"])

        @task_group
        def recover(group_id):
            ResetOffsetsOperator(task_id="reset", group_id=group_id, **stops)

        recover.expand(group_id=["a", "b"])
    tasks: Any = alone.unmap({"group_id": "a"}), dag.get_task("recover.reset")
    assert [task.stop_after_failure for task in tasks] == [True, True]


def recovery(*jobs):
    with DAG("d"):
        reset = ResetOffsetsOperator(task_id="reset", group_id="b", shift_by=-3, **NAMES)
        restore = RestoreOffsetsOperator(task_id="restore", group_id="b", receipt=reset.output, **NAMES)
        reset >> [EmptyOperator(task_id=job) for job in jobs] >> restore.as_teardown(setups=reset)
    # As rendered without an XCom.
    restore.receipt = None
    return restore


def test_a_failed_instance_is_not_taken_for_a_task_of_the_same_name():
    restore = recovery("load", "load_0")

    class Airflow(TaskInstance):
        def get_task_states(self, dag_id, task_ids, run_ids):
            # Both are called load_0, and the last one stays.
            states = {"reset": {"reset": "success"}, "load": {"load_0": "failed", "load_1": "success"}}
            states["load_0"] = {"load_0": "success"}
            return {"r": {key: at for name in sorted(task_ids) for key, at in states[name].items()}}

    ti: Any = Airflow()
    with pytest.raises(AirflowFailException, match="reset has run and has left no receipt"):
        restore.execute({"ti": ti})


def test_a_reset_that_has_succeeded_without_a_receipt_is_no_reset_that_moved_nothing():
    ti: Any = TaskInstance(reset="success", job="skipped")
    with pytest.raises(AirflowFailException, match="reset has run and has left no receipt"):
        recovery("job").execute({"ti": ti})
    skipped: Any = TaskInstance(reset="skipped", job="skipped")
    assert recovery("job").execute({"ti": skipped}) is None


def test_a_reset_in_an_iteration_that_was_cleared_without_the_later_ones_is_refused():
    # Seen on Airflow 3.4.0b2: the states are those of the newest iteration, where nothing is to run.
    with DAG("d"):
        reset = ResetOffsetsOperator(task_id="t", group_id="a", shift_by=-3, **NAMES)
        reset >> EmptyOperator(task_id="job")
    for own, said in (("success", "iteration 0 of the task loop was cleared"), ("running", "there_is_none")):
        ti: Any = TaskInstance(t=own, job=None)
        context: Any = {"ti": ti, "loop": SimpleNamespace(index=0)}
        with pytest.raises(Exception, match=said):
            reset.execute(context)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(("many", "first"), [(False, 0), (True, 0), (False, 2000)])
@pytest.mark.parametrize("of_checkpoint", [False, True])
def test_a_group_that_has_another_index_after_a_clear_is_not_moved_again(
    of_checkpoint, many, first, make_topic, produce, new_group, commit, committed, new_query, monkeypatch
):
    """The list over which the reset is mapped was changed, or has the group twice."""
    if many:  # the metadata of a commit of many partitions names no task and no index
        monkeypatch.setattr("airflow_kafka_offsets.model.commit_metadata.MANY_PARTITIONS", 0)
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    commit(group, topic, {0: 8})
    query = new_query({topic: {0: 8}})
    names = {"checkpoint_location": query.location, "quiet_period": 0} if of_checkpoint else {}
    with DAG("d"):
        reset = ResetOffsetsOperator(task_id="reset", shift_by=-3, group_id=group, **names)
        reset >> EmptyOperator(task_id="job")

    def run(index, tries):
        ti: Any = TaskInstance(index, job=None)
        ti.task_id, ti.max_tries, ti.xcom_push = "reset", tries, lambda **_: None
        ti.run_id = f"manual__{'x' * 40}"
        return reset.execute({"ti": ti})

    run(first, 0)
    with pytest.raises(AirflowFailException, match=f"map index {first} of this task has moved .* twice"):
        run(1, 1)
    assert committed(group, topic) == {0: 5}
    run(first, 1)
    assert committed(group, topic) == {0: 5}
