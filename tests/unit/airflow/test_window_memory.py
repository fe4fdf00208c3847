"""Which records a run has had before, where Airflow does not keep that over the task's success."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import Store

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.task.window_file import write_window
from airflow_kafka_offsets.task.window_memory import WindowMemory

NO_CLIENT: Any = None
REPLAY = Groups.parse(None, "orders", required=False)


@pytest.fixture
def cleared():
    context: Any = {
        "ti": SimpleNamespace(dag_id="d", run_id="r", task_id="plan", map_index=-1, try_number=2),
        "dag_run": SimpleNamespace(clear_number=1),
        "task_state_store": Store(),
    }
    return WindowMemory(context, None, None)


def test_a_cleared_run_without_a_window_has_never_had_one(cleared):
    cleared.refuse_other_records(NO_CLIENT, REPLAY)


def test_a_cleared_run_may_have_had_a_window_where_airflow_forgets_what_a_success_has_kept(
    cleared, monkeypatch
):
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    with pytest.raises(
        PlanRefusedError, match=r"was cleared, and which records it read is not known any more"
    ):
        cleared.refuse_other_records(NO_CLIENT, REPLAY)


RUN = {"dag_id": "d", "run_id": "r", "task_id": "plan", "map_index": -1}
WINDOW = OffsetWindow({TopicPartition("orders", 0): OffsetRange(3, 5)}, source=RUN)


def planned(path, window, kept=None):
    """What a task finds that has planned a window into a file before."""
    context: Any = {"ti": SimpleNamespace(**RUN, try_number=2), "task_state_store": Store()}
    WindowMemory(context, str(path), None).keep(window)
    if kept is not None:
        write_window(str(path), kept, None)
    return WindowMemory(context, str(path), None)


def test_a_window_comes_back_from_its_file(tmp_path):
    assert planned(tmp_path / "window.json", WINDOW).recall() == WINDOW


@pytest.mark.parametrize("other", [{"run_id": "r2"}, {"map_index": 3}])
def test_a_file_with_the_window_of_another_run_is_refused(tmp_path, other):
    theirs = replace(WINDOW, source={**RUN, **other})
    with pytest.raises(PlanRefusedError, match="holds the window of another run"):
        planned(tmp_path / "window.json", WINDOW, theirs).recall()


def test_a_file_whose_window_was_changed_is_refused(tmp_path):
    changed = replace(WINDOW, ranges={TopicPartition("orders", 0): OffsetRange(3, 9)})
    with pytest.raises(PlanRefusedError, match="was changed since it was planned: found other ranges"):
        planned(tmp_path / "window.json", WINDOW, changed).recall()
