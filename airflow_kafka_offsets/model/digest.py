"""One short fingerprint for all values that are compared later, maybe by another process or version."""

from __future__ import annotations

import hashlib
import json


def digest(*parts: object, length: int = 16) -> str:
    """
    Return a fingerprint that is the same only for the same parts, in the same order.

    It is the beginning of the SHA-256 of the parts as one JSON list with sorted keys, in hexadecimal digits.
    Values that JSON does not know are written as ``str`` shows them, so their text must not change by itself,
    as that of a set does.

    The result must never change for the same parts. It is stored in commit metadata (a task's ``key`` and
    ``token``), in archives of a checkpoint (``request``), in the XCom of a window (``ranges``), in asset
    events (the set of partitions) and in the task state store. A task that is retried after an upgrade would
    otherwise not find its own commit, and would move a group twice.

    :param parts: plain JSON; keys of mappings are texts.
    :param length: digits, 64 at most. Twelve are enough within one run, 64 where a collision shows values to
        another user.
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
