"""A DAG in which a recovery could fail unseen, or not be taken back, is refused."""

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

NAMES: dict[str, Any] = {"group_id": "orders", "topics": "orders", "kafka_config_id": "there_is_none"}


def reset(name="reset"):
    return ResetOffsetsOperator(task_id=name, shift_by=-3, **NAMES)


def restore(receipt, **parameters):
    return RestoreOffsetsOperator(task_id="restore", receipt=receipt, **NAMES, **parameters)


def read(dag):
    """Do what Airflow does with a DAG that it has read."""
    dag.validate()
    dag.resolve_template_files()


@pytest.fixture
def recovery():
    """recovery() -> a DAG with a reset and its restore."""
    with DAG("d") as dag:
        first = reset()
        last = restore(first.output)
        first >> EmptyOperator(task_id="job") >> last.as_teardown(setups=first)
    return dag


def after(dag, *rules):
    """Let tasks with these trigger rules come after the restore."""
    before = dag.get_task("restore")
    for number, rule in enumerate(rules):
        task = EmptyOperator(task_id=f"notify_{number}", trigger_rule=rule, dag=dag)
        before >> task
        before = task


@pytest.mark.parametrize(
    "rules", [(), ("all_success",), ("none_failed", "all_success"), ("none_failed_min_one_success",)], ids=str
)
def test_a_restore_whose_failure_fails_the_run_is_accepted(rules, recovery):
    after(recovery, *rules)
    read(recovery)


@pytest.mark.parametrize(
    "rules", [("all_done",), ("all_success", "all_done"), ("one_failed",), ("always",)], ids=str
)
def test_a_task_after_the_restore_that_runs_whatever_happens_is_refused(rules, recovery):
    after(recovery, *rules)
    with pytest.raises(UsageError, match="would succeed although this task fails: .* notify_0 always runs"):
        read(recovery)


def test_a_later_teardown_by_whose_state_airflow_judges_the_run_is_refused(recovery):
    teardown = EmptyOperator(task_id="release", dag=recovery).as_teardown(setups=recovery.get_task("reset"))
    recovery.get_task("restore") >> teardown
    read(recovery)
    teardown.on_failure_fail_dagrun = True
    with pytest.raises(UsageError, match="would succeed although this task fails: .* release always runs"):
        read(recovery)


def test_a_reset_before_the_restore_whose_teardown_it_is_not_may_have_another_receipt(recovery):
    with recovery:
        reset("another") >> recovery.get_task("restore")
    read(recovery)


def test_a_task_beside_the_restore_may_run_whatever_happens(recovery):
    recovery.get_task("job") >> EmptyOperator(task_id="notify", trigger_rule="all_done", dag=recovery)
    read(recovery)


@pytest.mark.parametrize("file", [None, "/saved.csv"])
def test_a_restore_that_always_restores_may_be_followed_by_anything(file):
    with DAG("d") as dag:
        first = reset()
        receipt = None if file else first.output
        last = restore(receipt, from_file=file, restore_when="always")
        first >> EmptyOperator(task_id="job") >> last.as_teardown(setups=first)
    after(dag, "all_done")
    read(dag)


def test_a_teardown_that_is_told_not_to_fail_the_run_is_refused():
    with DAG("d") as dag:
        first = reset()
        restore(first.output).as_teardown(setups=first, on_failure_fail_dagrun=False)
    with pytest.raises(UsageError, match="set on_failure_fail_dagrun=True in as_teardown"):
        read(dag)


def test_a_reset_that_the_receipt_is_not_of_is_refused():
    with DAG("d") as dag:
        first, second = reset(), reset("second")
        restore(first.output).as_teardown(setups=[first, second])
    with pytest.raises(
        UsageError,
        match="teardown of reset, second, and its receipt is of reset: .*receipt=second.output",
    ):
        read(dag)


def test_the_teardown_of_a_mapped_reset_is_mapped_too():
    names = {name: value for name, value in NAMES.items() if name != "group_id"}
    with DAG("d") as dag:
        first = ResetOffsetsOperator.partial(task_id="reset", shift_by=-3, **names).expand(
            group_id=["a", "b"]
        )
        restore(first.output).as_teardown(setups=first.as_setup())
    with pytest.raises(UsageError, match="teardown of the mapped task reset, and is not mapped"):
        read(dag)


@pytest.mark.parametrize("receipt", [None, "{{ ti.xcom_pull(task_ids='reset') | tojson }}"])
def test_a_teardown_needs_the_receipt_of_its_reset(receipt):
    with DAG("d") as dag:
        first = reset()
        file = None if receipt else "/saved.csv"
        restore(receipt, from_file=file).as_teardown(setups=first)
    if receipt is not None:
        read(dag)
    else:
        with pytest.raises(UsageError, match="its receipt is missing"):
            read(dag)


@pytest.mark.parametrize(("fails", "accepted"), [(None, False), (True, True)])
def test_a_mapped_recovery_that_could_not_fail_its_run_is_refused_before_it_moves(fails, accepted):
    with DAG("d") as dag:
        groups = [{"group_id": "a"}, {"group_id": "b"}]
        names = {name: value for name, value in NAMES.items() if name != "group_id"}
        first = ResetOffsetsOperator.partial(task_id="reset", shift_by=-3, **names).expand_kwargs(groups)
        last = RestoreOffsetsOperator.partial(task_id="restore", group_id="a", **names).expand(
            receipt=first.output
        )
        first >> EmptyOperator(task_id="job") >> last.as_teardown(setups=first, on_failure_fail_dagrun=fails)  # type: ignore[arg-type]
    read(dag)
    one: Any = dag.get_task("reset").unmap({"group_id": "a"})
    # What is accepted comes to its connection, which is not defined.
    with pytest.raises(UsageError if accepted else AirflowFailException) as refused:
        one.execute({"ti": None})
    assert ("on_failure_fail_dagrun=True" in str(refused.value)) is not accepted
