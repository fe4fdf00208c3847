"""Task loops of Airflow 3.4 on a real scheduler: iterations, their retries and their Clear."""

from pathlib import Path

import airflow.sdk
import pytest
from running_airflow import API_SERVER, DAG_PROCESSOR, SCHEDULER, RunningAirflow

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [
    pytest.mark.system,
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not hasattr(airflow.sdk, "LoopDecision"), reason="task loops came with Airflow 3.4"),
]

END = 12


@pytest.fixture(scope="module")
def topic(make_topic, produce, broker):
    name = make_topic(1)
    produce(name, {0: END})
    for group, offset in (("first", END), ("second", END), ("outside", END - 2)):
        broker.commit(f"{group}-{name}", {TopicPartition(name, 0): offset})
    return name


@pytest.fixture(scope="module")
def live(bootstrap_servers, topic, postgres, tmp_path_factory):
    home = tmp_path_factory.mktemp("loops-live") / "airflow"
    file = Path(__file__).parent / "live_loop" / "loops.py"
    parts = (API_SERVER, SCHEDULER, DAG_PROCESSOR)
    with RunningAirflow(
        home, bootstrap_servers, [file], postgres, components=parts, LOOP_TOPIC=topic
    ) as live:
        # All begin at once; each test waits for its own.
        vars(live).update(begun={name: live.trigger(name) for name in ("windows", "resets", "outside")})
        yield live


@pytest.fixture(scope="module")
def committed(broker, topic):
    return lambda group: (
        broker.committed(f"{group}-{topic}", [TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset
    )


def test_each_iteration_has_a_window_of_its_own_also_after_a_retry(live, committed):
    live.wait_for_runs("windows", 1)
    assert live.xcom("windows", live.begun["windows"], "told") == [2, 2, 2]
    assert committed("windows") == 6


def test_a_cleared_loop_reads_no_other_records_for_the_iterations_it_had(live, committed):
    live.wait_for_runs("windows", 1)
    live.clear("windows", live.begun["windows"], "batch.plan", downstream=True)
    # Airflow has discarded what the task had kept.
    live.wait_for_runs("windows", 1, "failed")
    assert live.states("windows", live.begun["windows"])["batch.plan"] == "failed"
    assert committed("windows") == 6
    live.trigger("windows")
    live.wait_until(
        lambda: [run["state"] for run in live.runs("windows")] == ["failed", "success"], "a new run"
    )
    assert committed("windows") == 12


def test_a_mapped_reset_moves_in_each_iteration_once_also_after_a_retry(live, committed):
    live.wait_for_runs("resets", 1)
    assert (committed("first"), committed("second")) == (END - 3, END - 3)


def test_what_all_iterations_have_planned_is_no_window(live, committed):
    live.wait_for_runs("outside", 1, "failed")
    assert live.states("outside", live.begun["outside"])["commit"] == "failed"
    assert committed("outside") == END - 2
