"""Which records a run has had before, where Airflow does not keep that over the task's success."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from waiting import Store

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.groups import Groups
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
