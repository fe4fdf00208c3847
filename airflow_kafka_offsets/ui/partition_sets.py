"""Names the set of partitions that a sum is over: only sums over the same partitions belong in one line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def partition_set(partitions: Iterable[tuple[str, int]]) -> str | None:
    """
    Return a short text that is the same for the same partitions, ``None`` for no partition.

    :param partitions: topics and numbers, one for each summand: a partition of two groups occurs twice.
    """
    names = sorted(f"{number} {topic}" for topic, number in partitions)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12] if names else None
