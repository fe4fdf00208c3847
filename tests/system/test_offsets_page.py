"""
The Offsets tab in a real Airflow, with a real Kafka and DAGs that ran, seen through a headless Chromium.

``DOCS_IMAGES=yes`` writes the picture of the tab in Airflow, ``tests/browser/test_pictures.py`` the others.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from browser import quiet_page
from offsets_installation import ROOT, SECONDS, UNREAD, Installation, run_installation
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from own_postgres import OwnPostgres
    from playwright.sync_api import Locator, Page

IMAGES = ROOT / "docs" / "images"

pytestmark = [pytest.mark.integration, pytest.mark.system]


@pytest.fixture(scope="module")
def installation(
    bootstrap_servers: str, postgres: OwnPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("offsets")
    # A picture shows its path.
    lake = Path(tempfile.mkdtemp(prefix="lake-")) if os.environ.get("DOCS_IMAGES") else home / "lake"
    try:
        with run_installation(home / "airflow", bootstrap_servers, lake / "orders", postgres) as running:
            yield running
    finally:
        shutil.rmtree(lake, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """What a busy Airflow has not told within the tab's deadline comes with its next refresh, in a minute."""
    expect.set_options(timeout=2 * SECONDS)
    yield
    expect.set_options(timeout=5_000)


@pytest.fixture
def visit(installation) -> Iterator[Callable[..., Page]]:
    """visit(address) -> a page of the tab; at the end its console must be empty."""
    with ExitStack() as opened:

        def visit(address: str, *, height: int = 900) -> Page:
            how = quiet_page(installation.browser, viewport={"width": 1280, "height": height})
            page = opened.enter_context(how)
            page.set_default_timeout(2 * SECONDS)
            installation.open(address, page)
            return page

        yield visit


def value(page: Page, label: str) -> Locator:
    """Return the number of a card."""
    return page.locator(".cards > div", has=page.get_by_text(label, exact=True)).locator(".value")


def test_the_list_has_every_pipeline(visit):
    page = visit("")
    # At first some DAGs may not be read yet, which the page says in another status.
    expect(page.get_by_role("status")).to_have_text(["43 pipelines"])
    row = page.get_by_role("row", name=re.compile("orders-etl"))
    expect(row).to_contain_text("in step")
    expect(row.get_by_role("cell", name="nothing", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("dead-etl"))).to_contain_text("does not answer")
    row.get_by_role("link", name="orders-etl").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Offsets of orders")


def test_a_pipeline_that_ran(visit):
    page = visit("dags/orders", height=1400)
    expect(value(page, "Drift")).to_have_text("in step")
    expect(value(page, "Checkpoint")).to_have_text("batch 38")
    expect(value(page, "Group")).to_have_text("Empty")
    expect(page.locator(".plot canvas")).to_have_count(4)
    expect(
        page.get_by_role("img", name=re.compile("Records per batch. Records: 3[0-9] values"))
    ).to_be_visible()
    moves = page.get_by_role("region", name="Moves and waits")
    for kind in ("commit", "wait", "drift", "reset", "restore"):
        # On a busy machine the page says that it has not read some results, and shows them when it refreshes.
        link = moves.get_by_role("link", name=kind, exact=True).first
        expect(link).to_be_visible(timeout=2 * SECONDS)
    expect(moves.get_by_text("plan only")).to_be_visible(timeout=2 * SECONDS)
    expect(page.get_by_role("region", name="Partitions").locator("tbody tr")).to_have_count(6)
    expect(value(page, "Lag")).to_have_text(f"{sum(UNREAD):,}")


def test_a_reset_has_a_receipt_and_the_command_that_takes_it_back(visit):
    page = visit("dags/orders")
    moves = page.get_by_role("region", name="Moves and waits")
    moves.locator("tr", has_not_text="plan only").get_by_role("link", name="reset", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Reset by task reset")
    expect(page.get_by_role("region", name="Moved partitions").locator("tbody tr")).to_have_count(6)
    expect(page.locator(".copy code")).to_contain_text("airflow-kafka-offsets")
    expect(page.get_by_role("link", name=re.compile("manual$"))).to_have_attribute(
        "href", re.compile("/team/airflow/dags/orders/runs/")
    )


@pytest.mark.parametrize(
    ("task", "text"), [("gate", "Last reading"), ("drift", "Drift"), ("plan", "plan only")]
)
def test_other_tasks_have_pages_too(visit, task, text):
    page = visit("dags/orders")
    moves = page.get_by_role("region", name="Moves and waits")
    moves.locator("tr", has=page.get_by_text(task, exact=True)).get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(task)
    expect(page.locator("main")).to_contain_text(text)


def test_airflow_links_from_a_task_instance_to_its_pages(installation, visit):
    with installation.browser.new_context() as context:
        installation.log_in(context)
        api = f"{installation.airflow.url}/api/v2/dags/orders/dagRuns"
        run = context.request.get(f"{api}?order_by=-id&limit=1").json()["dag_runs"][0]["dag_run_id"]
        tasks = f"{api}/{quote(run, safe='')}/taskInstances"
        links = {
            task: context.request.get(f"{tasks}/{task}/links").json()["extra_links"]
            for task in ("commit", "gate", "recover")
        }
    # That one is none of this package.
    assert links.pop("recover") == {}
    for task, found in links.items():
        for name, heading in (("DAG", "Offsets of orders"), ("task", task)):
            path = found[f"Offsets of this {name}"]
            assert path.startswith("/team/airflow/kafka-offsets/dags/orders")
            page = visit(path.partition("/kafka-offsets/")[2])
            expect(page.get_by_role("heading", level=1)).to_contain_text(heading)


def test_airflow_shows_it_as_a_tab_of_the_dag(installation):
    with installation.browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        installation.log_in(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        page.goto(f"{installation.airflow.url}/dags/orders/plugin/kafka-offsets-dag")
        tab = page.frame_locator("iframe")
        expect(tab.get_by_role("heading", level=1)).to_have_text("Offsets of orders")
        expect(tab.locator(".plot canvas")).to_have_count(4)
        expect(page.get_by_text("Kafka offsets").first).to_be_visible()
        if os.environ.get("DOCS_IMAGES"):
            page.screenshot(path=IMAGES / "offsets-tab-in-airflow.png")
