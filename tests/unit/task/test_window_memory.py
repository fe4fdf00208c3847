"""Which records a run has had before, where Airflow does not keep that over the task's success."""

from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import Store

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.audited_rows import TableRows
from airflow_kafka_offsets.model.certificate import Certificate, MissingOffsets
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.task.windows import WindowMemory, load_window, window_xcom, write_certificate

NO_CLIENT: Any = None
REPLAY = GroupSelection.parse(None, "orders", required=False)


def memory(store, try_number=1, clears=0, loop=None, max_tries=1):
    ids = {"dag_id": "d", "run_id": "r", "task_id": "plan", "map_index": -1}
    context: Any = {
        "ti": SimpleNamespace(**ids, try_number=try_number, max_tries=max_tries),
        "task": SimpleNamespace(retries=1),
        "dag_run": SimpleNamespace(clear_number=clears),
        "task_state_store": store,
        **({} if loop is None else {"loop": SimpleNamespace(index=loop)}),
    }
    return WindowMemory(context, None, None)


def test_a_cleared_run_whose_first_try_kept_no_window_has_never_had_one():
    store = Store()
    memory(store).refuse_other_records(NO_CLIENT, REPLAY)
    memory(store, try_number=2, clears=1).refuse_other_records(NO_CLIENT, REPLAY)


def test_a_cleared_run_may_have_had_a_window_where_airflow_has_forgotten_what_was_kept():
    # Airflow 3.4 discards a task's state when the task is cleared, and clear_on_success does it before.
    store = Store()
    memory(store).refuse_other_records(NO_CLIENT, REPLAY)
    store.clear()
    for _ in range(2):
        with pytest.raises(PlanRefusedError, match=r"the records that it read are not known"):
            memory(store, try_number=2, clears=1).refuse_other_records(NO_CLIENT, REPLAY)


def test_a_task_that_was_cleared_while_its_run_goes_on_may_have_had_a_window():
    # Airflow 3.1 then leaves the run's number of clears alone; a job may have read the window.
    memory(None, try_number=2).refuse_other_records(NO_CLIENT, REPLAY)
    with pytest.raises(PlanRefusedError, match="was cleared, and the records that it read are not known"):
        memory(None, try_number=2, max_tries=2).refuse_other_records(NO_CLIENT, REPLAY)


def test_a_retry_is_no_clear_if_the_worker_knows_fewer_retries_than_the_scheduler():
    # Such as after a change of the DAG, or with another [core] default_task_retries.
    memory(None, try_number=2, max_tries=3).refuse_other_records(NO_CLIENT, REPLAY)
    with pytest.raises(PlanRefusedError, match="was cleared"):
        memory(None, try_number=3, max_tries=3).refuse_other_records(NO_CLIENT, REPLAY)


def test_a_later_iteration_of_a_loop_that_was_cleared_may_have_had_a_window():
    # Airflow makes it anew: it is its first try, and nothing is kept.
    memory(Store(), loop=1).refuse_other_records(NO_CLIENT, REPLAY)
    with pytest.raises(PlanRefusedError, match="was cleared, and the records that it read are not known"):
        memory(Store(), clears=1, loop=1).refuse_other_records(NO_CLIENT, REPLAY)


RUN = {"dag_id": "d", "run_id": "r", "task_id": "plan", "map_index": -1}
WINDOW = OffsetWindow({TopicPartition("orders", 0): OffsetRange(3, 5)}, source=RUN)


@pytest.mark.parametrize("other", [{"run_id": "r2"}, {"map_index": 3}, {"iteration": 0}])
def test_a_file_with_the_window_of_another_run_is_refused(tmp_path, other):
    file = tmp_path / "window.json"
    context: Any = {"ti": SimpleNamespace(**RUN, try_number=2), "task_state_store": Store()}
    WindowMemory(context, str(file), None).keep(WINDOW)
    file.write_text(replace(WINDOW, source={**RUN, **other}).as_text())
    with pytest.raises(PlanRefusedError, match="contains the window of another run"):
        WindowMemory(context, str(file), None).recall()


def test_an_empty_window_is_compared_with_its_file_too(tmp_path):
    # Where a group has no commit, the empty window says where it begins.
    file, orders = tmp_path / "window.json", TopicPartition("orders", 0)
    empty = OffsetWindow({orders: OffsetRange(5, 5)}, frozenset({orders}), source=RUN)
    planned = window_xcom(empty, str(file), whole=True)
    assert load_window(planned) == empty
    file.write_text(replace(empty, ranges={orders: OffsetRange(9, 9)}).as_text())
    with pytest.raises(PlanRefusedError, match="was changed since .* planned: found other ranges"):
        load_window(planned)


def test_a_certificate_of_a_run_with_a_long_id_is_not_overwritten_by_another_run_s(tmp_path):
    def write(run_id):
        source = {"dag_id": "d", "run_id": f"{'long_' * 30}{run_id}", "task_id": "plan"}
        window = OffsetWindow({TopicPartition("orders", 0): OffsetRange(0, 5)}, source=source)
        audited, at = {"conn_id": "lake", "table": "orders"}, datetime.now(tz=timezone.utc)
        certificate = Certificate.issue(window, TableRows(5), MissingOffsets(), audited, at)
        write_certificate(str(tmp_path / "certificate.json"), certificate, None)

    write("first")
    write("first")
    with pytest.raises(PlanRefusedError, match="the certificate of another audit .*run_id=long_.*task_id="):
        write("second")
