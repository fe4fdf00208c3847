from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.spark.read import read_window


@pytest.mark.parametrize("window", ["file://host/window.json", {"window_file": "file://host/window.json"}])
def test_a_window_s_file_on_another_machine_is_not_read_on_this_one(window):
    options = {"kafka.bootstrap.servers": "host:9092"}
    with pytest.raises(UsageError, match="file://host/window.json names a host"):
        read_window(cast("Any", None), window, options)
