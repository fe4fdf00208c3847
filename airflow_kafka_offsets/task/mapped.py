"""
Reads classes and parameters of Airflow's mapped operators; no other module uses their private attributes.

Remove when ``airflow.sdk`` exports their classes, and a documented way to an operator's class and parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial as OperatorPartial


def operator_class(task: Any) -> Any:
    """Return the operator class of a task, mapped or not."""
    return getattr(task, "operator_class", type(task))


def values_of(task: Any, name: str) -> list[Any]:
    """Return the values of a task's parameter; for a mapped task, all values that may contain it."""
    if hasattr(task, "partial_kwargs"):
        mapped = task._get_specified_expand_input().value
        found = [task.partial_kwargs.get(name), mapped.get(name) if isinstance(mapped, dict) else mapped]
    else:
        found = [getattr(task, name, None)]
    return [value for value in found if value is not None]


def is_being_mapped(task: object) -> bool:
    """Return whether a task is an index of a mapped task, whose constructor runs when the task runs."""
    return bool(getattr(task, "_BaseOperator__from_mapped", False))


def is_group_argument(value: object) -> bool:
    """Return whether a value is an argument of a mapped task group, known only when the task runs."""
    # Airflow does not export the class, and its module has moved between versions.
    return type(value).__name__ == "MappedArgument"
