"""
Wording of parameters and advice in texts, for Python and DAGs or for another interface.

The code that writes a text does not know the interface: a plan that refuses to rewind a group may come from
an operator or from the command line. So a text passes each parameter to :func:`parameter_text`, and each
advice for the author of a DAG to :func:`dag_text`. By default both use Python's syntax. The command line
installs its own :class:`Wording`, which names its options.

The wording is resolved when a text is written: a text with a parameter must not be a constant of a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.text import quote

_NO_VALUE = object()


class Wording:
    """The wording for Python: DAGs, Spark jobs and calls."""

    for_dags = True

    def parameter(self, name: str) -> str:
        """Return a parameter's name."""
        return name

    def assignment(self, name: str, value: object) -> str:
        """Return a parameter with a value; ``...`` means any value."""
        return f"{name}={'...' if value is ... else quote(value)}"


_WORDINGS = [Wording()]
"""The last wording is used. It applies to all threads, because threads write parts of the same texts."""


def parameter_text(name: str, value: object = _NO_VALUE) -> str:
    """
    Return a parameter in the wording of the current interface: ``allow_stateful=True``, ``--allow-stateful``.

    :param value: the parameter's value; ``...`` for any value; by default only the name is returned.
    """
    wording = _WORDINGS[-1]
    return wording.parameter(name) if value is _NO_VALUE else wording.assignment(name, value)


def dag_text(text: str, elsewhere: str = "") -> str:
    """Return advice that only the author of a DAG can follow; ``elsewhere`` for an interface without DAGs."""
    return text if _WORDINGS[-1].for_dags else elsewhere


def parameter_error(parameter: str, text: str, value: object = _NO_VALUE) -> UsageError:
    """
    Return the error for one parameter.

    :param text: the text after the parameter and its value, such as ``": found 3; expected text"``.
    """
    return UsageError(f"{parameter_text(parameter, value)}{text}", parameter=parameter)


def unexpected(parameter: str, value: object, expected: str) -> UsageError:
    """Return the error for a parameter with an unexpected value."""
    return parameter_error(parameter, f": expected {expected}", value)


@contextmanager
def worded(wording: Wording) -> Iterator[None]:
    """Use a wording for all texts of a block."""
    _WORDINGS.append(wording)
    try:
        yield
    finally:
        _WORDINGS.pop()
