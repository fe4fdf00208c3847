"""Text that comes from others: how large it may be, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

DescribeValue = Callable[[object], str]
"""How an error text names what was found: :func:`shorten` quotes it, :func:`describe_type` does not."""

MAX_SIZE = 10_000_000
"""Bytes or characters of a text that is read from others: a window of 10,000 partitions has about 600,000."""

MAX_VALUES = 200_000
"""Values in such a text: a receipt of 49,000 partitions has 196,000. One takes up to 500 bytes of memory."""


SHOWN = 120
"""Characters of a value in an error text."""


def is_plain(text: str) -> bool:
    """Whether a text can be handed to a C library: without NUL and lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def too_large_error(what: str, size: int) -> str:
    """Return the error text for a file or a text that is larger than :data:`MAX_SIZE`."""
    return (
        f"{what}: is {size:,} bytes large; expected at most {MAX_SIZE:,}: it is probably another file than "
        "was meant"
    )


def size_error(what: str, text: str, value_marks: str = ",{[", max_values: int = MAX_VALUES) -> str | None:
    """
    Return the error text for a text that would take too much memory to read, ``None`` for any other.

    :param value_marks: characters that there is one of for each value, at least; by default JSON's.
    :param max_values: values that are accepted.
    """
    if len(text) > MAX_SIZE:
        return too_large_error(what, len(text))
    found = sum(map(text.count, value_marks))
    if found <= max_values:
        return None
    return (
        f"{what}: has about {found:,} values; expected at most {max_values:,}: it is probably another file "
        "than was meant"
    )


def escape_controls(text: str) -> str:
    r"""
    Return a text as one line that moves no cursor: control characters, line feeds and the like as ``\n``,
    ``\x1b``.

    For whatever other clients of the broker have chosen: metadata, names of groups and members.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def describe_type(value: object) -> str:
    """Say what a value is without showing what is in it: for the content of files, which may be secret."""
    if value is None or isinstance(value, bool | int | float):
        return shorten(value)
    if isinstance(value, str):
        return f"a text of {len(value):,} characters" if value else "an empty text"
    if isinstance(value, Mapping):
        return f"an object of {len(value):,} keys"
    if isinstance(value, Sequence):
        return f"a list of {len(value):,} values"
    return f"a {type(value).__name__}"


def shorten(value: object, limit: int = SHOWN) -> str:
    """Return a value as text of one line that fits into an error message."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        kind = "an int" if isinstance(value, int) else f"a {type(value).__name__}"
        text = f"{kind} that is too large to be shown"
    text = escape_controls(text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def quote(value: object) -> str:
    """Return a value as :func:`shorten`, a text in quotation marks."""
    return shorten(repr(value[:SHOWN]) if isinstance(value, str) else value)
