import json
from typing import Any, cast

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark.read import load_window, read_window
from airflow_kafka_offsets.task.windows import window_xcom

NO_SESSION = cast("Any", None)


@pytest.mark.parametrize("window", ["file://host/window.json", {"window_file": "file://host/window.json"}])
def test_a_window_s_file_on_another_machine_is_not_read_on_this_one(window):
    options = {"kafka.bootstrap.servers": "host:9092"}
    with pytest.raises(UsageError, match="file://host/window.json names a host"):
        read_window(NO_SESSION, window, options)


@pytest.mark.parametrize("as_text", [False, True])
def test_the_xcom_of_a_window_that_is_too_large_for_it_leads_to_its_file(tmp_path, as_text):
    file = tmp_path / "window.json"
    source = {"run_id": "monday", "logs": {"cluster": "c-1"}}
    window = OffsetWindow({TopicPartition("orders", 0): OffsetRange(3, 5)}, source=source)
    file.write_text(window.as_text())
    small = window_xcom(window, str(file), whole=False)
    assert load_window(NO_SESSION, json.dumps(small) if as_text else small) == window
    for other in (
        OffsetWindow(window.ranges, source={**source, "run_id": "tuesday"}),
        OffsetWindow({TopicPartition("orders", 0): OffsetRange(2, 4)}, source=source),
    ):
        file.write_text(other.as_text())
        with pytest.raises(UsageError, match="contains another window than the planned one"):
            load_window(NO_SESSION, small)
