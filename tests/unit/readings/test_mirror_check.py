"""What a check of a mirror sees in the records of both clusters."""

from typing import Any

import pytest

from airflow_kafka_offsets.kafka.record_reads import Record
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.readings.mirror import last_reads
from airflow_kafka_offsets.readings.mirror_check import copies_aborted_records

TP = TopicPartition("orders", 0)


class Cluster:
    """
    A cluster with one partition, whose records are single letters; those of aborted transactions are x.

    :param slow: whether only committed records are read in time.
    """

    def __init__(self, values: str, *, slow: bool = False) -> None:
        self.values, self.slow = values, slow
        self.logs = {TP: LogRange(0, len(values))}

    def read_records(
        self, ranges: Any, take: Any, *, isolation_level: str = "read_uncommitted", **_: Any
    ) -> Any:
        if self.slow and isolation_level == "read_uncommitted":
            return {tp: start for tp, (start, _) in ranges.items()}
        for tp, (start, end) in ranges.items():
            for offset in range(start, end):
                value = self.values[offset]
                if value != "x" or isolation_level == "read_uncommitted":
                    take(tp, Record(offset, 1_000, None, value.encode()))
        return {tp: end for tp, (_, end) in ranges.items()}

    def topic_settings(self, topics: Any) -> Any:
        return {topic: {"cleanup.policy": "delete"} for topic in topics}


@pytest.mark.parametrize(
    ("source", "mirror", "expected"),
    [
        ("abxc", "abxc", True),
        ("abxc", "abc", False),
        ("abxc", "ab", None),  # it has not come to the aborted record yet
        ("abcx", "abc", None),  # nothing follows it that the mirror could have copied
        ("abc", "abc", None),
        ("abxc", "", None),
    ],
)
def test_aborted_records_are_missing_only_where_the_mirror_has_what_follows_them(source, mirror, expected):
    here, there = Cluster(source), Cluster(mirror)
    found: Any = copies_aborted_records(
        here,  # type: ignore[arg-type]
        there,  # type: ignore[arg-type]
        Mirror.parse({"kafka_config_id": "standby"}),
        here.logs,
        there.logs,
    )
    assert found is expected


@pytest.mark.parametrize(
    ("values", "slow", "others"),
    [("ab", False, 0), ("abxx", False, 2), ("abxx", True, 2)],
)
def test_a_mirror_may_have_copied_what_was_not_read_in_time_after_the_last_record(values, slow, others):
    cluster: Any = Cluster(values, slow=slow)
    (last,) = last_reads(cluster, {TP: len(values)}, cluster.logs).values()
    assert (last.identity.offset, last.others) == (1, others)
