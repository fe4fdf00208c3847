from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_session import (  # noqa: F401
    grow,
    holds,
    location,
    mark_below,
    options,
    run,
    start,
    stream,
    wait_until,
)

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_below(Path(__file__).parent, items)
