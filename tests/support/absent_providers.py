"""
Stands in for providers of platforms that are not installed, so that their example DAGs can be parsed.

A class of such a provider is an operator that takes any parameters. Where the provider is installed, its own
classes are used, and check their parameters.
"""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PLATFORMS = (
    "airflow.providers.apache.livy",
    "airflow.providers.cncf",
    "airflow.providers.databricks",
    "airflow.providers.google",
    "cosmos",
)


def _stand_in(name: str) -> type:
    from airflow.sdk import BaseOperator

    class StandIn(BaseOperator):
        def __init__(self, **parameters: Any) -> None:
            # A task group has no task_id.
            super().__init__(task_id=parameters.get("task_id") or parameters["group_id"])

    StandIn.__name__ = name
    return StandIn


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("Config"):
            return lambda **_: None
        setattr(self, name, _stand_in(name))
        return vars(self)[name]


class _Finder(MetaPathFinder, Loader):
    def __init__(self, absent: tuple[str, ...]) -> None:
        self._absent = absent

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if any(name == each or name.startswith(f"{each}.") for each in self._absent):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Everything is made when it is asked for."""


def stand_in() -> list[str]:
    """Make the absent providers importable, and return their names."""
    absent = tuple(each for each in PLATFORMS if not _is_installed(each))
    sys.meta_path.append(_Finder(absent))
    return list(absent)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
