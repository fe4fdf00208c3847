"""What a client is refused with before it asks a broker."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_offsets.errors import BrokerError, UsageError
from airflow_kafka_offsets.kafka.connection import Connection

BROKER = {"bootstrap.servers": "127.0.0.1:1"}


def test_an_isolation_level_that_is_none_is_named():
    level: Any = "bogus"
    with pytest.raises(UsageError, match="^isolation_level='bogus': expected one of 'read_uncommitted'"):
        Connection(BROKER, "g", level)


def test_a_refused_setting_may_be_the_connections_or_a_files():
    with pytest.raises(BrokerError, match="SASLL.*; correct the Kafka connection, or the file or option"):
        Connection({**BROKER, "security.protocol": "SASLL"}, "g", "read_uncommitted")
