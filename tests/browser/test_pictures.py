"""The pages on a plausible day; ``DOCS_IMAGES=yes`` writes the pictures of the documentation."""

import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import overflow, quiet_page
from offsets_pages import columns, now
from plausible_day import NOW, RUN, at, give
from playwright.sync_api import expect

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture
def visit(browser, pages):
    """visit(address, name, ready, ...) shows a page, and takes its picture."""

    def visit(address, name, ready, *, width=1280, height=900, scheme="light", whole=False, to=None):
        viewport = {"width": width, "height": height}
        with quiet_page(browser, color_scheme=scheme, viewport=viewport, timezone_id="UTC") as page:
            page.clock.set_fixed_time(at(NOW + 0.1))
            page.goto(pages.url + address)
            expect(page.get_by_text(ready).first).to_be_visible()
            expect(page.locator(".skeleton:visible")).to_have_count(0)
            assert overflow(page) == 0
            if to:
                page.locator(to).evaluate("e => e.scrollIntoView({block: 'center'})")
            if os.environ.get("DOCS_IMAGES"):
                page.screenshot(path=IMAGES / f"offsets-tab-{name}.png", full_page=whole)
            return page.locator("main").inner_text()

    return visit


def test_the_list(visit, pages):
    give(pages)
    text = visit("", "list", "records lost", height=760)
    for shown in ("1 loses records", "1 not known", "3 late", "13 pipelines"):
        assert shown in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_pipeline(visit, pages, scheme):
    give(pages)
    text = visit("dags/orders", f"pipeline-{scheme}", "records in 12", scheme=scheme, height=1400)
    assert "611 /s in" in text


def test_a_narrow_window(visit, pages):
    give(pages)
    visit("dags/orders", "narrow", "records in 12", width=360, height=740)


def test_a_reset(visit, pages):
    give(pages)
    address = f"dags/orders/runs/{quote(RUN)}/tasks/reset_orders/-1"
    visit(address, "reset", "moved on since", whole=True)


def test_a_broker_that_does_not_answer(visit, pages):
    give(pages)
    answer = pages.answers["dags/orders/pipelines/orders-to-lake/now"]
    error = {"message": "connection 'kafka_default': the broker does not answer", "since": at(NOW - 3)}
    pages.answers["dags/orders/pipelines/orders-to-lake/now"] = {
        **answer, "read_at": at(NOW - 3), "error": error,
    }  # fmt: skip
    visit("dags/orders", "no-answer", re.compile("No new numbers since"))


def test_many_partitions(visit, pages):
    give(pages)
    answer = now(columns(2_000, topic="telemetry"), read_at=at(NOW), topics=["telemetry"])
    pages.answers["dags/iot/pipelines/iot-telemetry/now"] = answer
    visit("dags/iot", "partitions", "Show all 2,000", to=".strips")
