from __future__ import annotations

from pathlib import Path

import pytest
from spark_session import holds, location, run, start, stream, wait_until  # noqa: F401

HERE = Path(__file__).parent
MARKS = (
    pytest.mark.integration,
    pytest.mark.spark,
    # PySpark leaves sockets to its JVM open until the process ends.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    # What PySpark's own modules say of themselves: 3.5 and 4.2, in this order.
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            for mark in MARKS:
                item.add_marker(mark)
