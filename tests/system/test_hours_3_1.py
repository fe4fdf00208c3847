"""Complete hours on a real scheduler that names no partitions at run time."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessor
from running_airflow import API_SERVER, DAG_PROCESSOR, SCHEDULER, RunningAirflow

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [
    pytest.mark.system,
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        hasattr(OutletEventAccessor, "add_partitions"), reason="partitions at run time came with 3.3"
    ),
]

DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
PARTS = (API_SERVER, SCHEDULER, DAG_PROCESSOR)


def test_the_events_of_a_run_are_one_with_all_hours_in_its_extra(
    bootstrap_servers, make_topic, produce, broker, postgres, tmp_path
):
    topic = make_topic(1, {"retention.ms": "-1"})
    times = [int((DAY + timedelta(hours=hour, minutes=5)).timestamp() * 1000) for hour in range(5)]
    produce(topic, {0: 5}, {0: times})
    file = Path(__file__).parent / "live_hours_3_1" / "hours.py"
    with RunningAirflow(
        tmp_path / "airflow", bootstrap_servers, [file], postgres, components=PARTS, ORDERS_TOPIC=topic
    ) as live:
        told = []
        for runs, offset in enumerate((2, 5), 1):
            broker.commit(topic, {TopicPartition(topic, 0): offset})
            live.trigger("emits")
            live.wait_for_runs("emits", runs)
            (*_, run) = live.wait_for_runs("reads", runs)
            told.append([key[11:13] for key in live.xcom("reads", run["dag_run_id"], "told")])
        assert told == [["00", "01"], ["02", "03"]]
        live.trigger("emits")
        live.wait_for_runs("emits", 3)
        assert len(live.events("hours")) == 2
        (kept,) = live.api("GET", "variables")["variables"]
        assert kept["key"] == "kafka_offsets.intervals.hours"
