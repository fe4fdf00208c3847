from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from browser import chromium, quiet_page
from offsets_pages import OffsetsPages, history, now, pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def pages() -> Iterator[OffsetsPages]:
    with OffsetsPages() as served:
        yield served


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """new_page(...) takes the parameters of quiet_page, which fails a test whose page writes an error."""
    with ExitStack() as opened:
        yield lambda **context: opened.enter_context(quiet_page(browser, **context))


@pytest.fixture
def visit(new_page: Callable[..., Page], pages: OffsetsPages) -> Callable[..., Page]:
    """visit("dags/orders", clock=True, ...) opens a page; with clock the test moves the page's time."""

    def visit(address: str = "", *, clock: bool = False, **context: Any) -> Page:
        page = new_page(**context)
        if clock:
            page.clock.install()
        page.goto(pages.url + address)
        return page

    return visit


@pytest.fixture
def show(visit: Callable[..., Page], pages: OffsetsPages) -> Callable[..., Page]:
    """show("dags/orders", pipeline(), now=..., history=..., ...) opens a page about one pipeline."""

    def show(
        address: str = "dags/orders",
        of: Any = pipeline(),  # noqa: B008
        now: Any = now(),  # noqa: B008
        history: Any = history(),  # noqa: B008
        **how: Any,
    ) -> Page:
        pages.give(of, now=now, history=history)
        return visit(address, **how)

    return show


@pytest.fixture
def show_task(visit: Callable[..., Page], pages: OffsetsPages) -> Callable[..., Page]:
    """show_task(RESET, task_instance(), instance_now(), ...) opens the page of a task instance."""

    def show_task(address: str, left: Any, now: Any = None, **how: Any) -> Page:
        pages.answers[address] = left
        if now is not None:
            pages.answers[f"{address}/now"] = now
        return visit(address, **how)

    return show_task
