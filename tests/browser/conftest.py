from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser import chromium
from offsets_pages import OffsetsPages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def pages() -> Iterator[OffsetsPages]:
    with OffsetsPages() as served:
        yield served
