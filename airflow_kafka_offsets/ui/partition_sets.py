"""Names the set of partitions of a sum: only sums over the same partitions belong in one line."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_offsets.model.digest import digest


def partition_set(partitions: Iterable[tuple[str, int]]) -> str | None:
    """
    Return a short text that is equal for equal sets of partitions, ``None`` for no partition.

    :param partitions: topic and number of each summand: a partition of two groups occurs twice.
    """
    names = sorted(f"{number} {topic}" for topic, number in partitions)
    return digest(*names, length=12) if names else None
