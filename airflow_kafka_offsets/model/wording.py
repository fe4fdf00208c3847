"""
How texts name parameters, and which advice they give: for Python and DAGs, or for another interface.

A text is written where something is found: a plan that refuses to rewind a group does not know whether an
operator or the command line asked for the plan. So a text marks each parameter with :func:`parameter_text`
and each advice for the author of a DAG with :func:`dag_text`. By default both are shown as Python spells
them. The command line installs its own :class:`Wording`, which names its options.

Texts are plain as soon as they are written: no mark is left in an error, a log, a receipt or an XCom.
Therefore a text that has a parameter in it must not be a constant of a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.text import quote

_NO_VALUE = object()


class Wording:
    """The wording of Python: of DAGs, Spark jobs and calls."""

    for_dags = True
    """Whether advice for the author of a DAG is given."""

    def parameter(self, name: str) -> str:
        """Return a parameter's name."""
        return name

    def assignment(self, name: str, value: object) -> str:
        """Return a parameter with a value; ``...`` is any value."""
        return f"{name}={'...' if value is ... else quote(value)}"


_WORDINGS = [Wording()]
"""The last one is used. As with a locale, it counts for all threads: they write parts of the same texts."""


def parameter_text(name: str, value: object = _NO_VALUE) -> str:
    """
    Return a parameter as the running interface names it: ``allow_stateful=True``, ``--allow-stateful``.

    :param value: the parameter's value; ``...`` for any value; by default only the name is returned.
    """
    wording = _WORDINGS[-1]
    return wording.parameter(name) if value is _NO_VALUE else wording.assignment(name, value)


def dag_text(text: str, elsewhere: str = "") -> str:
    """
    Return advice that only the author of a DAG can follow, such as a template.

    :param elsewhere: the text for an interface without DAGs.
    """
    return text if _WORDINGS[-1].for_dags else elsewhere


def parameter_error(parameter: str, text: str, value: object = _NO_VALUE) -> UsageError:
    """
    Return the error about one parameter.

    :param text: follows the parameter, such as ``": found 3; expected text"`` or ``" is empty"``.
    :param value: shown with the parameter, see :func:`parameter_text`.
    """
    return UsageError(f"{parameter_text(parameter, value)}{text}", parameter=parameter)


def unexpected(parameter: str, value: object, expected: str) -> UsageError:
    """Return the error about a parameter that has another value than was expected."""
    return parameter_error(parameter, f": expected {expected}", value)


@contextmanager
def worded(wording: Wording) -> Iterator[None]:
    """Write the texts of a block in a wording."""
    _WORDINGS.append(wording)
    try:
        yield
    finally:
        _WORDINGS.pop()
