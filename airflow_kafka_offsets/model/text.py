"""Limits and display of values from outside, such as files and other clients' metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard, TypeVar

T = TypeVar("T")

DescribeValue = Callable[[object], str]
"""Describes a value in an error text: :func:`shorten` shows it, :func:`describe_type` only its type."""

MAX_SIZE = 10_000_000
"""Largest text from outside, in bytes or characters; a window of 10,000 partitions has about 600,000."""

MAX_VALUES = 200_000
"""
Largest number of values in a text from outside; a receipt of 49,000 partitions has 196,000. A value takes up
to 500 bytes of memory.
"""

SHOWN = 120


def is_plain(text: str) -> bool:
    """Whether a text can be passed to a C library: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def is_int(value: object, least: int = 0, most: int = 2**63 - 1) -> TypeGuard[int]:
    """Whether a value is an int from ``least`` to ``most``; a bool is not, although Python says so."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def too_large_error(what: str, size: int) -> str:
    """Return the error text for a file or a text that is larger than :data:`MAX_SIZE`."""
    return f"{what}: is {size:,} bytes large; expected at most {MAX_SIZE:,}: it is probably the wrong file"


def size_error(what: str, text: str, value_marks: str = ",{[", max_values: int = MAX_VALUES) -> str | None:
    """
    Return the error text for a text that would take too much memory to parse; ``None`` if it is small enough.

    :param value_marks: each value has at least one of these characters; by default JSON's.
    """
    if len(text) > MAX_SIZE:
        return too_large_error(what, len(text))
    found = sum(map(text.count, value_marks))
    if found <= max_values:
        return None
    return (
        f"{what}: has about {found:,} values; expected at most {max_values:,}: it is probably the wrong file"
    )


def escape_controls(text: str) -> str:
    r"""Return a text of another client as one line, with control characters escaped: ``\n``, ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def plural(number: int, noun: str) -> str:
    """Return a number with a noun: ``1 record``, ``2,000 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_type(value: object) -> str:
    """Describe a value without showing its content, for files that may contain secrets."""
    if value is None or isinstance(value, bool | int | float):
        return shorten(value)
    if isinstance(value, str):
        return f"a text of {len(value):,} characters" if value else "an empty text"
    if isinstance(value, Mapping):
        return f"an object of {plural(len(value), 'key')}"
    if isinstance(value, Sequence):
        return f"a list of {plural(len(value), 'value')}"
    return f"a {type(value).__name__}"


def shorten(value: object, limit: int = SHOWN) -> str:
    """Return a value as a short text of one line for an error message; an empty one as two quotes."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, or deeply nested lists
        kind = "an int" if isinstance(value, int) else f"a {type(value).__name__}"
        text = f"{kind} that is too large to be shown"
    text = escape_controls(text[: limit + 1]) or "''"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def join_first(
    values: Sequence[T], limit: int = 5, show: Callable[[T], str] = str, more: str = "more"
) -> str:
    """Name the first values: ``orders, clicks and 98 more``."""
    shown = ", ".join(map(show, values[:limit]))
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} {more}"


def quote(value: object) -> str:
    """Return a value like :func:`shorten`, but a text in quotation marks."""
    return shorten(repr(value[:SHOWN]) if isinstance(value, str) else value)
