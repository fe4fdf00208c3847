"""A headless Chromium for tests: the machine's own, or Debian's, which a CI installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest
from playwright.sync_api import sync_playwright

from airflow_kafka_offsets.local.cache import lock_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

# The shell has no windows of its own to draw: the same pages take less than half of the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
UPDATE, INSTALL = 120, 300
# In a container there is neither a user namespace nor room in /dev/shm.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")

_RUNNING: WeakKeyDictionary[Page, set[Request]] = WeakKeyDictionary()


@cache
def find_chromium() -> str:
    """Return the path of a Chromium; without one a CI fails, and others skip the test."""
    if found := _installed():
        return found
    if not os.environ.get("CI"):
        pytest.skip("no Chromium is here: install one (apt-get install chromium), or name it in CHROMIUM")
    if shutil.which("apt-get") and os.geteuid() == 0:
        lock = Path(tempfile.gettempdir()) / "airflow-kafka-offsets-chromium.lock"
        with lock_file(lock, "installing Chromium", UPDATE + INSTALL):
            if not _installed():
                _install()
    found = _installed()
    assert found, "no Chromium is here, and apt-get has not installed one: name one in CHROMIUM"
    return found


def _install() -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command, seconds in (
        (["apt-get", "update", "-q"], UPDATE),
        # Without a font there is no text to see.
        (["apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES], INSTALL),
    ):
        subprocess.run(command, check=True, timeout=seconds, env=quiet, stdout=subprocess.DEVNULL)


def _installed() -> str | None:
    if named := os.environ.get("CHROMIUM"):
        return named
    for name in NAMES:
        if found := shutil.which(name):
            return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless Chromium."""
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def quiet_page(browser: Browser, *, allowed: tuple[str, ...] = (), **context: object) -> Iterator[Page]:
    """
    Open a page in a context of its own, and fail if it writes an error to the console or breaks its policy.

    :param allowed: parts of messages that the test expects.
    """
    messages: list[str] = []
    with browser.new_context(**context) as opened:  # type: ignore[arg-type]
        page = opened.new_page()
        running: set[Request] = set()
        _RUNNING[page] = running
        # Playwright takes no built-in methods.
        page.on("request", lambda request: running.add(request))
        page.on("requestfinished", lambda request: running.discard(request))
        page.on("requestfailed", lambda request: running.discard(request))

        def listen(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                messages.append(f"{message.text} ({message.location.get('url')})")

        page.on("console", listen)
        page.on("pageerror", lambda error: messages.append(str(error)))
        yield page
        unexpected = [text for text in messages if not any(part in text for part in allowed)]
    assert not unexpected, unexpected


def fast_forward(page: Page, milliseconds: int) -> None:
    """
    Let time pass on a page of :func:`quiet_page` once no response is outstanding.

    The page's clock, which the test moves, also ends the requests that take longer than their deadline.
    """
    deadline = time.monotonic() + 10
    while _RUNNING[page]:
        assert time.monotonic() < deadline, f"no response: {[request.url for request in _RUNNING[page]]}"
        page.wait_for_timeout(5)
    page.clock.fast_forward(milliseconds)


def rows_of(page: Page, region: str) -> Locator:
    """Return the rows of a table."""
    return page.get_by_role("region", name=region).locator("tbody tr")


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
