"""One short fingerprint for all values that are compared later, maybe by another process or version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set


def digest(*parts: object, length: int = 16) -> str:
    """
    Return a fingerprint that is the same only for the same parts, in the same order.

    It is the beginning of the SHA-256 of the parts as one JSON list with sorted keys, in hexadecimal digits.
    A set is written as a sorted list, and another value that JSON does not know as ``str`` shows it.

    The result must never change for the same parts. It is stored in commit metadata (a task's ``key`` and
    ``token``), in archives of a checkpoint (``request``), in the XCom of a window (``ranges``), in asset
    events (the set of partitions) and in the task state store. A task that is retried after an upgrade would
    otherwise not find its own commit, and would move a group twice.

    :param parts: plain JSON; keys of mappings are texts.
    :param length: digits, 64 at most. Twelve are enough within one run, 64 where a collision shows values to
        another user.
    """
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _plain(value: object) -> object:
    # The text of a set differs from process to process, and that of a mapping with the order of its keys.
    if isinstance(value, Set):
        return sorted(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
