"""The fingerprint for values that another process or a later version compares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Set


def digest(*parts: object, length: int = 16) -> str:
    """
    Return the first digits of the SHA-256 of the parts as one JSON list with sorted keys.

    A set becomes a sorted list; any other type that JSON does not know becomes its ``str``.

    The result for the same parts must stay the same in every version. It is stored in commit metadata (a
    task's ``key`` and ``token``), in archives of a checkpoint (``request``), in XComs, in saved plans and in
    the task state store. If it changed, a task that is retried after an upgrade would not find its own commit
    and would move a group twice.

    :param parts: plain JSON; keys of mappings are strings.
    :param length: number of digits, at most 64. Twelve are enough within one run; 64 are needed if a
        collision would show values to another user.
    """
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def partitions_digest(partitions: Iterable[tuple[str, int]]) -> str | None:
    """
    Return a fingerprint of a set of partitions, for sums: those over other partitions are not comparable.

    :param partitions: topic and number of each summand; a partition of two groups occurs twice.
    """
    names = sorted(f"{number} {topic}" for topic, number in partitions)
    return digest(*names, length=12) if names else None


def _plain(value: object) -> object:
    # ``str`` of a set differs between processes, and ``str`` of a mapping depends on the order of its keys.
    if isinstance(value, Set):
        return sorted(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
