"""
The example of an approved reset: a user approves in Airflow's own page what another user has triggered.

``DOCS_IMAGES=yes`` writes the picture of the page.
"""

import contextlib
import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow_users import User
from browser import chromium
from playwright.sync_api import expect
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "docs" / "images" / "approval.png"
SECONDS = 60_000
RECORDS, READ, BACK = 400, 380, 200


@pytest.fixture(scope="module")
def live(airflow_with_users, broker, produce, make_topic):
    """An Airflow with the example; the orders have been read up to 380 of 400, one a minute."""
    lake = Path(airflow_with_users.variables["LAKE"])
    topic = make_topic(2)
    now = datetime.now(tz=timezone.utc)
    times = [int((now - timedelta(minutes=RECORDS - minute)).timestamp() * 1000) for minute in range(RECORDS)]
    produce(topic, {0: RECORDS, 1: RECORDS}, {0: times, 1: times})
    query = Query(lake / "checkpoints" / "orders")
    for batch, offset in enumerate((100, 160, 240, 320, READ)):
        query.run(batch, {topic: {0: offset, 1: offset}})
    partitions = [TopicPartition(topic, number) for number in (0, 1)]
    broker.commit("orders-etl", dict.fromkeys(partitions, READ))
    to = datetime.fromtimestamp(times[BACK] / 1000, tz=timezone.utc).isoformat()
    with contextlib.closing(User(airflow_with_users, "ada")) as ada:
        vars(airflow_with_users).update(ada=ada, to=to, query=query, partitions=partitions)
        yield airflow_with_users
    broker.delete_groups(["orders-etl"])


def test_a_plan_is_approved_in_airflows_page_and_carried_out(live, broker):
    run = live.ada.trigger("approved_reset", {"to_datetime": live.to})
    asked = live.request_of("approved_reset", run)
    approve = asked["options"][0]
    with chromium() as browser, browser.new_context(viewport={"width": 1280, "height": 1100}) as context:
        page = context.new_page()
        page.goto(f"{live.url}/auth/login")
        page.locator("input[name=username]").fill("bob")
        page.locator("input[name=password]").fill("bob-pw")
        page.locator("button[type=submit]").click()
        page.wait_for_url(re.compile(f"^{re.escape(live.url)}/(?!auth)"), timeout=SECONDS)
        page.goto(f"{live.url}/dags/approved_reset/runs/{run}/tasks/approve/required_actions")
        expect(page.get_by_text("Lag that gates will see")).to_be_visible(timeout=SECONDS)
        button = page.get_by_role("button", name=approve)
        expect(button).to_be_visible(timeout=SECONDS)
        if os.environ.get("DOCS_IMAGES"):
            page.screenshot(path=IMAGE)
        # Airflow 3.2 leaves the button enabled: what shows that the answer has arrived is the response.
        with page.expect_response(lambda each: each.request.method == "PATCH", timeout=SECONDS) as answered:
            button.click()
        assert answered.value.ok
    assert set(live.ended("approved_reset", run).values()) == {"success"}
    held = [commit.offset for commit in broker.committed("orders-etl", live.partitions).values()]
    assert (held, live.query.stands()) == ([BACK, BACK], {0: BACK, 1: BACK})
    receipt = live.xcom("approved_reset", run, "reset")
    assert receipt["approval"]["by"] == "bob"
