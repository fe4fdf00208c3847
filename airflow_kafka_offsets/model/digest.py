"""Digests: short texts that are equal for equal values."""

from __future__ import annotations

import hashlib
import json


def digest(*parts: object, length: int = 16) -> str:
    """
    Return a text of hexadecimal digits that is the same for the same values, whatever the order of keys.

    :param parts: plain JSON; any other value counts by its text.
    :param length: number of digits, 64 at most.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
