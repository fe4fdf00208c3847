"""The pages of the Offsets tab in states that a test chooses; the real ones are in ``tests/system``."""

import re
import threading
from datetime import datetime, timezone

import pytest
from browser import fast_forward, overflow, quiet_page, rows_of
from offsets_pages import (
    OffsetsPages,
    columns,
    held,
    history,
    instance_now,
    moment,
    move,
    now,
    only_moves,
    pipeline,
    slowly,
    task_instance,
)
from playwright.sync_api import expect

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
RIGHT_TO_LEFT = "\u202egnp.exe"
ALL_TEXTS = """() => [...document.querySelectorAll("main, main *")].flatMap(
    (each) => [each.getAttribute("title"), each.getAttribute("aria-label"),
        ...[...each.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data)],
).join(" ")"""
REFUSED = "Failed to load resource"
RESET = "dags/orders/runs/r/tasks/reset/-1"


def test_nothing_is_there_yet(visit, pages):
    pages.give()
    page = visit()
    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_visible()
    expect(page.get_by_text("CommitOffsetsOperator(")).to_be_visible()


def test_a_refusal_is_explained_and_can_be_tried_again(visit, pages):
    pages.give(pipeline())
    listed = pages.answers["pipelines"]
    pages.answers["pipelines"] = (401, {"detail": "broken"})
    page = visit(allowed=(REFUSED,))
    alert, again = page.get_by_role("alert"), page.get_by_role("button", name="Try again")
    expect(alert).to_contain_text("You are not logged in")
    for status, text in (
        (403, "You do not have permission"),
        (404, "This page does not exist"),
        (500, "broken"),
    ):
        pages.answers["pipelines"] = (status, {"detail": "broken"})
        again.press("Enter")
        expect(alert).to_contain_text(text)
    pages.answers["pipelines"] = listed
    again.press("Enter")
    expect(page.get_by_role("link", name="orders-etl-0")).to_be_visible()


def test_names_of_others_are_text(new_page, pages):
    turned = f"a\tb{RIGHT_TO_LEFT}"
    named = pipeline(groups=[HOSTILE, RIGHT_TO_LEFT], topics=[HOSTILE, turned], unresolved=[HOSTILE])
    rows = columns(3, topic=HOSTILE)
    member = {**dict.fromkeys(("group_id", "member_id", "client_id", "host"), HOSTILE), "partitions": 1}
    error = {"message": f"{HOSTILE} {turned}", "since": moment(90)}
    pages.give(
        *(named, pipeline(groups=[turned], key="other")),
        now=now(rows, members=[member], error=error, problems=[HOSTILE, turned]),
        history={**history(), "problems": [turned]},
    )
    page = new_page()
    for address in ("", "dags/orders"):
        page.goto(pages.url + address)
        expect(page.locator("main")).to_contain_text(HOSTILE)
        expect(page.locator("main")).to_contain_text("\\u{202e}gnp.exe")
        assert not page.locator("main img, main script").count()
        if address:
            expect(page.get_by_role("heading", name="Members")).to_be_visible()
        assert not re.search(r"[\u202e\t]", page.evaluate(ALL_TEXTS))


def test_a_dead_broker_leaves_the_history(show, pages):
    error = {"message": "the broker does not answer", "since": moment(61)}
    page = show(now={"error": error, "read_at": None, "commits": []})
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("No numbers since 2026-03-02")
    expect(alert).to_contain_text("the broker does not answer")
    expect(page.locator(".card", has_text="Headroom")).to_contain_text("not known")
    expect(page.locator(".plot canvas")).to_have_count(4)
    expect(page.get_by_role("region", name="Moves and waits")).to_contain_text("restore")
    page.goto(pages.url)
    expect(page.get_by_role("row", name=re.compile("orders-etl-0"))).to_contain_text(
        "the broker does not answer"
    )


def test_old_numbers_say_so(show):
    page = show(now=now(error={"message": "timed out", "since": moment(61)}))
    expect(page.get_by_role("alert")).to_contain_text("The numbers shown are from 2026-03-02")
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    expect(page.locator(".cards")).to_have_class("cards stale")
    colour = "e => getComputedStyle(e).color"
    assert page.locator(".cards .value.good").first.evaluate(colour) == "rgb(24, 24, 27)"
    cells = rows_of(page, "Partitions").first.locator("td")
    assert {each.evaluate(colour) for each in cells.all()} == {"rgb(91, 91, 101)"}


def test_a_slow_broker_does_not_hold_up_the_history(show):
    until = threading.Event()
    page = show(now=held(now(), until))
    expect(page.locator(".plot canvas")).to_have_count(4)
    expect(page.get_by_text("Asking Kafka")).to_be_visible()
    until.set()
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()


def test_records_that_are_lost_are_named_although_the_lag_is_small(show):
    rows = columns(500)
    rows["verdict"][499], rows["headroom_state"][499] = "records lost", "lost"
    totals = {**now(rows)["totals"], "headroom": None, "headroom_state": "lost"}
    page = show(now=now(rows, totals=totals))
    expect(page.get_by_text("records lost: 1 partition (orders 499)")).to_be_visible()
    expect(page.locator(".cards .value.bad")).to_have_text("records lost")


def cell_colours(page):
    """Return the colour of each cell of the strip."""
    return page.locator(".strips canvas").evaluate(
        """canvas => {
            const {width, height} = canvas;
            const data = canvas.getContext("2d").getImageData(0, Math.floor(height / 2), width, 1).data;
            return Array.from({length: width / height}, (_, index) => {
                const start = 4 * Math.floor((index + 0.5) * height);
                return data.slice(start, start + 3).join(" ");
            });
        }"""
    )


def test_a_partition_in_trouble_is_red_without_a_verdict(show):
    rows = columns(4)
    rows["verdict"] = [None] * 4
    rows["headroom"], rows["headroom_state"] = [None, 50.0, 50.0, None], ["lost", "time", "unknown", "none"]
    page = show(of=pipeline(checkpoint=None), now=now(rows), history=only_moves(), color_scheme="light")
    expect(page.get_by_text("The pipeline names no checkpoint.")).to_have_count(2)
    expect(page.get_by_text("records lost: 1 partition (orders 0)")).to_be_visible()
    expect(page.get_by_text("expiring within an hour: 2 partitions (orders 1, orders 2)")).to_be_visible()
    assert [colour == "200 30 30" for colour in cell_colours(page)] == [True, True, True, False]


@pytest.fixture
def show_each(visit, pages):
    """show_each(readings, address) -> the page of as many pipelines, and a way to choose one of them."""

    def show_each(readings, address="dags/orders"):
        listed = [pipeline(number) for number in range(len(readings))]
        pages.give(*listed, history=history())
        for each, reading in zip(listed, readings, strict=True):
            pages.answers[f"dags/orders/pipelines/{each['key']}/now"] = reading
        page = visit(address, color_scheme="light")
        return page, lambda number: page.get_by_label("Pipeline", exact=True).select_option(f"key{number}")

    return show_each


def test_a_lag_that_is_not_known_is_not_caught_up(show_each):
    texts: tuple[tuple[list[int | None], str], ...] = (
        ([0, 0], "No partition of 2 is behind."),
        ([None, 0], "No partition of 2 is known to be behind, 1 not known."),
        ([None, None], "No partition of 2 is known to be behind, 2 not known."),
        ([None, 8], "1 partition of 2 is behind, 1 not known; half of the known lag is in 1 partition."),
    )
    page, choose = show_each([now({**columns(2), "lag": lags}) for lags, _ in texts])
    for number, (lags, text) in enumerate(texts):
        choose(number)
        expect(page.locator("section > div > p").get_by_text(text)).to_be_visible()
        assert [colour == "180 83 9" for colour in cell_colours(page)] == [lag is None for lag in lags]


def test_headroom(show_each):
    values = (
        ({"headroom_state": "none"}, "no limit", "good"),
        ({"headroom_state": "unknown", "headroom": None}, "unknown", "quiet"),
        ({"headroom_state": "unknown", "headroom": 50.0}, "at most 50 s", "bad"),
        ({"headroom_state": "unknown"}, "at most 5 d 19 h", "quiet"),
        ({"headroom": 1_800.0}, "30 min", "bad"),
    )
    page, choose = show_each([now(totals={**now()["totals"], **totals}) for totals, *_ in values])
    value = page.locator(".cards > div", has_text="Headroom").locator(".value")
    for number, (_, text, tone) in enumerate(values):
        choose(number)
        expect(value).to_have_text(text)
        expect(value).to_have_class(f"value {tone}")


def test_a_table_is_sorted_with_the_keyboard(show):
    page = show(now=now(columns(120)))
    region = page.get_by_role("region", name="Partitions")
    header = region.get_by_role("columnheader", name="Partition", exact=True)
    first = region.locator("tbody tr").first.locator("td").first
    expect(region.get_by_role("columnheader", name="Lag")).to_have_attribute("aria-sort", "descending")
    header.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(first).to_have_text("119")
    page.keyboard.press("Space")
    expect(header).to_have_attribute("aria-sort", "ascending")
    expect(first).to_have_text("0")
    expect(region.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Show all 120").press("Enter")
    expect(region.locator("tbody tr")).to_have_count(120)


def test_each_plot_has_a_table_and_a_sentence(show):
    page = show()
    lag = page.get_by_role("img", name=re.compile("Lag in records. Lag: "))
    expect(lag).to_be_visible()
    page.locator("summary", has_text="Table: lag in records").press("Enter")
    table = page.get_by_role("region", name="Lag in records")
    expect(table.locator("tbody tr").first).to_contain_text("2026-03-02")
    strip = page.get_by_role("img", name=re.compile("partitions? of 6 "))
    expect(strip).to_be_visible()


def test_what_is_open_and_focused_stays_when_the_numbers_come_again(show, pages):
    page = show(now=lambda: now(read_at=datetime.now(tz=timezone.utc).isoformat()), clock=True)
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    page.get_by_role("region", name="Moves and waits").get_by_role("link").first.focus()
    page.locator("summary", has_text="Table: records per batch").click()
    page.get_by_role("region", name="Moves and waits").get_by_role("link").first.focus()
    before = sum("/now" in address for address in pages.asked)
    with page.expect_response(lambda response: "/now" in response.url):
        page.clock.run_for(11_000)
    expect(page.locator("details[open]")).to_have_count(1)
    assert sum("/now" in address for address in pages.asked) == before + 1
    assert page.evaluate("document.activeElement.tagName") == "A"


def test_a_hidden_page_asks_nothing(show, pages):
    page = show(clock=True)
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.clock.run_for(60_000)
    assert sum("/now" in address for address in pages.asked) == 1
    with page.expect_response(lambda response: "/now" in response.url):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        page.clock.run_for(100)
    assert sum("/now" in address for address in pages.asked) == 2


def test_the_receipt_of_a_reset(visit, pages):
    run = "manual__2026-03-02T12:00:00+00:00"
    pages.answers[f"dags/orders/runs/{run}/tasks/reset/-1"] = task_instance()
    page = visit(f"dags/orders/runs/{run.replace('+', '%2B')}/tasks/reset/-1")
    expect(page.get_by_role("heading", level=1)).to_have_text("Reset by task reset")
    rows = rows_of(page, "Moved partitions")
    expect(rows.nth(0)).to_contain_text("1,000")
    expect(rows.nth(1)).to_contain_text("\u2013")
    expect(page.locator("code")).to_have_text(task_instance()["restore_command"])
    expect(page.get_by_text("As shown, the command only prints its plan")).to_be_visible()
    assert page.get_by_role("button").all_inner_texts()[-1] == "Copy"


def test_a_plan_is_marked_and_needs_no_restore(show_task):
    values = task_instance(restore_command=None, move=move("reset", plan_only=True))
    values["receipt"]["plan_only"] = True
    page = show_task(RESET, values)
    expect(page.get_by_text("This is a plan only: nothing was moved")).to_be_visible()
    expect(page.get_by_text("2 would change, of 2")).to_be_visible()
    expect(page.get_by_text("Take it back")).to_have_count(0)


def test_a_receipt_shows_who_has_approved_it(show_task):
    values = task_instance()
    values["receipt"]["approval"] = {"by": "<b>ada</b>", "at": moment(-60)}
    page = show_task(RESET, values)
    expect(page.locator(".facts").last).to_contain_text(re.compile(r"Approved by\s*<b>ada</b>, "))


def test_record_times_of_a_receipt(show_task, pages):
    times = {"before": [moment(-3_000), None], "after": ["deleted", "end"]}
    answer = instance_now(read_at=moment(100), times=times, problems=[f"topic {HOSTILE} is another"])
    page = show_task(RESET, task_instance(), slowly(answer, 0.5), timezone_id="UTC")
    rows = rows_of(page, "Moved partitions")
    expect(rows.nth(0)).to_contain_text("…")
    expect(rows.nth(0)).to_contain_text("2026-02-28 10:00:00")
    expect(rows.nth(0)).to_contain_text("deleted")
    expect(rows.nth(1)).to_contain_text("end")
    expect(page.get_by_text("read from the log at")).to_contain_text("2026-03-02 13:40:00")
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    assert sum("/now" in asked for asked in pages.asked) == 1


@pytest.mark.parametrize(
    "answer", [instance_now(problems=["the broker does not answer"]), (500, {"detail": "broken"})]
)
def test_a_receipt_of_which_no_times_are_known(show_task, answer):
    page = show_task(RESET, task_instance(), answer, allowed=(REFUSED,))
    expect(page.get_by_text("The times of the records at these offsets")).to_be_visible()
    expect(page.get_by_text("the broker does not answer").or_(page.get_by_text("broken"))).to_be_visible()
    rows = rows_of(page, "Moved partitions")
    expect(rows.nth(0)).to_contain_text("1,000")
    expect(rows.nth(0)).not_to_contain_text("…")


def test_a_receipt_shows_what_did_not_move_and_the_times_that_it_has(show_task):
    values = task_instance()
    values["receipt"]["totals"] |= {"skipped": 1, "clamped": 2, "lost": 1_200}
    values["receipt"]["partitions"] |= {
        "note": ["left alone", f"asked for {HOSTILE}"],
        "time_before": ["deleted", None],
        "time_after": [moment(-3_000), None],
    }
    page = show_task(RESET, values, (500, {"detail": "broken"}), allowed=(REFUSED,), timezone_id="UTC")
    expect(page.get_by_text("1,200 records")).to_be_visible()
    expect(page.get_by_text("2 partitions", exact=True)).to_be_visible()
    rows = rows_of(page, "Moved partitions")
    for text in ("left alone", "deleted", "2026-02-28 10:00:00"):
        expect(rows.nth(0)).to_contain_text(text)
    expect(rows.nth(1)).to_contain_text(f"asked for {HOSTILE}")
    expect(page.get_by_text("when the move was planned")).to_be_visible()


READING = {
    "version": 1,
    "total_lag": 67_600,
    "progress": {"records_per_second": 310.4, "seconds_left": 180},
    "topics": {"orders": 67_600},
    "partitions": [{"topic": "orders", "partition": 1_000, "committed": None, "lag": 67_600}],
}
GATE = "dags/orders/runs/r/tasks/gate/-1"


def gate(state, reading=READING):
    return task_instance(
        operator="ConsumerGroupLagSensor",
        state=state,
        receipt=None,
        restore_command=None,
        report=reading,
        report_kind="reading",
    )


def test_the_reading_of_a_sensor(show_task, pages):
    page = show_task(GATE, gate("success"))
    expect(page.get_by_role("heading", name="Last reading")).to_be_visible()
    # What has ended has no time left.
    expect(page.get_by_text("310 records/s")).to_have_text("310 records/s")
    expect(page.get_by_role("row", name="orders 1000 \u2013 67,600")).to_be_visible()
    assert "[object" not in page.locator("main").inner_text()
    assert not any("/now" in asked for asked in pages.asked)


def test_the_progress_of_a_wait_is_shown_while_it_runs(show_task, pages):
    waits = [
        {"done": False, "moving": False, "remaining": 80_000, "of": 80_000, "pace": None},
        {"done": False, "moving": False, "remaining": 67_600, "of": 80_000,
         "pace": "12,400 of 80,000 read, 310/s, about 3 min"},
        {"done": True, "moving": False, "remaining": 0, "of": 80_000, "pace": None},
    ]  # fmt: skip
    answers = iter([instance_now(state="deferred", read_at=moment(100), wait=wait) for wait in waits])
    page = show_task(GATE, gate("deferred"), lambda: next(answers), clock=True, allowed=(REFUSED,))
    expect(page.get_by_role("heading", name="Reading when the wait began")).to_be_visible()
    expect(page.get_by_text("80,000 records of 80,000")).to_be_visible()
    expect(page.get_by_text("Pace", exact=True)).to_have_count(0)
    page.clock.run_for(11_000)
    expect(page.get_by_text("67,600 records of 80,000")).to_be_visible()
    expect(page.get_by_text("12,400 of 80,000 read, 310/s, about 3 min")).to_be_visible()
    page.clock.run_for(11_000)
    expect(page.get_by_text("the task ends at its next poll")).to_be_visible()
    pages.answers |= {GATE: (500, {"detail": "broken"}), f"{GATE}/now": instance_now(state="success")}
    page.clock.run_for(11_000)
    expect(page.get_by_text("broken")).to_be_visible()
    pages.answers[GATE] = gate("success")
    page.clock.run_for(11_000)
    expect(page.get_by_role("heading", name="Last reading")).to_be_visible()
    expect(page.get_by_role("heading", name="Progress")).to_have_count(0)
    asked = len(pages.asked)
    page.clock.run_for(60_000)
    assert len(pages.asked) == asked


@pytest.mark.parametrize(
    "answer",
    [
        instance_now(state="running"),
        instance_now(
            state="running",
            wait={"done": False, "moving": True, "remaining": None, "of": None, "pace": None},
        ),
    ],
)
def test_nothing_is_said_of_a_wait_of_which_nothing_is_known(new_page, pages, answer):
    pages.answers |= {GATE: gate("running", None), f"{GATE}/now": answer}
    page = new_page()
    with page.expect_response(re.compile("/now")):
        page.goto(pages.url + GATE)
    expect(page.get_by_text("running")).to_be_visible()
    expect(page.get_by_role("heading", name="Progress")).to_have_count(0)


def test_a_wait_without_a_new_reading_shows_no_old_one(show_task):
    wait = {"done": False, "moving": True, "remaining": 67_600, "of": None, "pace": "lag falls by 310/s net"}
    more = ({"wait": wait}, {"problems": ["the broker does not answer"]})
    answers = iter([instance_now(state="deferred", read_at=moment(100), **each) for each in more])
    page = show_task(GATE, gate("deferred"), lambda: next(answers), clock=True)
    expect(page.get_by_text("lag falls by 310/s net")).to_be_visible()
    page.clock.run_for(11_000)
    expect(page.get_by_text("There is no new reading: the broker does not answer")).to_be_visible()
    expect(page.get_by_text("lag falls by 310/s net")).to_have_count(0)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("success", "no reading: it does not move or wait"),
        ("failed", "no reading: the task ended before it had one, or it does not move or wait"),
        (None, "no reading: the task has not run yet, or it does not move or wait"),
    ],
)
def test_another_kind_of_task_has_nothing_to_show(show_task, state, why):
    nothing = task_instance(
        operator="BashOperator", move=None, receipt=None, restore_command=None, state=state
    )
    page = show_task("dags/orders/runs/r/tasks/other/-1", nothing)
    expect(page.get_by_text("has stored no receipt and no reading")).to_contain_text(why)


def test_the_list_is_filtered_and_sorted(visit, pages):
    pages.give(*(pipeline(number) for number in range(40)), now=now(), history=history())
    page = visit()
    expect(page.get_by_role("status")).to_have_text("40 pipelines")
    page.get_by_label("Filter").fill("ETL-3")
    expect(page.get_by_role("status")).to_have_text("11 pipelines of 40")
    page.get_by_role("button", name="Pipeline", exact=True).click()
    page.get_by_role("button", name="Pipeline", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text("orders-etl-39")
    page.locator("tbody a").first.click()
    expect(page.get_by_label("Pipeline")).to_have_value("key39")
    assert all("partitions=false" in address for address in pages.asked if "key0/now" in address)


def test_the_list_shows_what_a_reading_lacks(show_each):
    without_commit, without_partition = (
        {**now()["totals"], **more} for more in ({"lag": None, "without_commit": 6}, {"partitions": 0})
    )
    readings = (
        (now(), "nothing", "good"),
        (now(totals=without_commit), "6 of 6 partitions without", "good"),
        (now(totals=without_partition), "no partition is known yet", "good"),
        (now(problems=["the right Describe is missing"]), "the right Describe is missing", "good"),
        (now(error={"message": "timed out", "since": moment()}), "timed out", "quiet"),
    )
    page, _ = show_each([answer for answer, *_ in readings], "")
    for number, (_, reading, headroom) in enumerate(readings):
        row = page.get_by_role("row", name=re.compile(f"orders-etl-{number}"))
        expect(row.locator("[data-label='What to do']")).to_contain_text(reading)
        expect(row.get_by_text("5 d 19 h")).to_have_class(f"tag {headroom}")
        expect(row.locator("[data-label=Behind] span.quiet")).to_have_count(int(headroom == "quiet"))


def test_the_list_says_from_when_its_numbers_are(visit, pages):
    pages.give(pipeline(0), pipeline(1), pipeline(2), now=now(), history=history())
    pages.answers["dags/orders/pipelines/key1/now"] = now(read_at=moment(97))
    # Old numbers, which are grey.
    pages.answers["dags/orders/pipelines/key2/now"] = now(
        read_at=moment(1), error={"message": "timed out", "since": moment(2)}
    )
    page = visit(timezone_id="UTC")
    said = "Numbers read between 2026-03-02 13:37:00 and 2026-03-02 13:40:00"
    expect(page.get_by_text(said)).to_be_visible()


def test_visible_lines_are_read_again_while_the_others_take_long(visit, pages):
    released = threading.Event()
    pages.give(*(pipeline(number) for number in range(110)), now=now(), history=history())
    for number in range(100, 110):
        pages.answers[f"dags/orders/pipelines/key{number}/now"] = held(now(), released)
    try:
        page = visit(clock=True)
        expect(page.get_by_role("button", name="100 in step")).to_be_visible(timeout=20_000)
        pages.answers["dags/orders/pipelines/key0/now"] = now(drift={"verdict": "group behind", "text": ""})
        page.clock.fast_forward(31_000)
        row = page.get_by_role("row", name=re.compile("orders-etl-0 "))
        expect(row).to_contain_text("group behind")
    finally:
        released.set()


def test_a_task_that_has_not_run_is_no_alarm(visit, pages):
    unnamed = {"groups": [], "topics": None, "checkpoint": None, "unresolved": ["group_id"]}
    pages.give(
        pipeline(0, tasks=["recover"], not_run=True, **unnamed),
        # Airflow has cut off the name of a pipeline that runs.
        pipeline(1, tasks=["commit"], **unnamed),
        now={"error": {"message": "no run has rendered group_id yet", "since": moment()}, "read_at": None},
        history=history(),
    )
    page = visit()
    recover, commit = (page.get_by_role("row", name=re.compile(name)) for name in ("recover", "commit"))
    expect(recover).to_contain_text(re.compile("^not run yet.*nothing", re.DOTALL))
    expect(commit).to_contain_text(re.compile("^not known.*no run has rendered group_id yet", re.DOTALL))
    expect(page.get_by_role("button", name="1 not compared")).to_be_visible()
    page = visit("dags/orders")
    expect(page.get_by_text("no group is named")).to_be_visible()
    expect(page.get_by_text("Not known, because no run has rendered")).to_be_visible()
    expect(page.get_by_text("No numbers since")).to_have_count(0)
    page.get_by_label("Pipeline", exact=True).select_option("commit")
    expect(page.get_by_text("No numbers since")).to_be_visible()


def test_airflows_theme_wins_over_the_systems(show):
    background = "getComputedStyle(document.documentElement).backgroundColor"
    page = show("", color_scheme="light")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    assert page.evaluate(background) == "rgb(17, 17, 17)"


def test_two_thousand_partitions_take_few_elements(visit, pages):
    pages.give(*(pipeline(number) for number in range(40)), now=now(columns(2_000)), history=history())
    page = visit("dags/orders")
    expect(page.get_by_role("button", name="Show all 2,000")).to_be_visible()
    expect(rows_of(page, "Partitions")).to_have_count(50)
    expect(page.locator(".strips canvas")).to_have_count(1)
    assert page.locator("body *").count() < 2_000


@pytest.mark.parametrize("width", [360, 1280, 3840])
def test_nothing_is_wider_than_the_window(pages, browser, width):
    with OffsetsPages("/behind/a/sub-path") as pages:
        long = "x" * 249
        pages.give(
            pipeline(groups=[long], topics=[long], checkpoint=f"s3a://{long}"),
            pipeline(1), now=now(columns(300, topic=long)), history=history(),
        )  # fmt: skip
        pages.answers[RESET] = task_instance(restore_command=f"airflow-kafka-offsets {long}")
        viewport = {"width": width, "height": width * 9 // 16 if width > 400 else 740}
        with quiet_page(browser, viewport=viewport) as page:
            for address in ("", "dags/orders", RESET):
                page.goto(pages.url + address)
                expect(page.locator("main")).to_have_attribute("aria-busy", "false")
                expect(page.locator("main")).to_contain_text(long)
                assert overflow(page) == 0, address


def test_what_is_enlarged_in_a_plot_stays_when_the_numbers_come_again(show):
    answers = iter([now(), now(columns(7), read_at=moment(101))])
    page = show(now=lambda: next(answers), clock=True)
    figure = page.locator("figure", has_text="Lag in records")
    plot, canvas, drawn = figure.locator(".u-over"), figure.locator("canvas"), "e => e.toDataURL()"
    expect(plot).to_be_visible()
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    before = canvas.evaluate(drawn)
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 50)
    page.mouse.up()
    page.mouse.move(0, 0)
    enlarged = canvas.evaluate(drawn)
    assert enlarged != before
    page.clock.run_for(11_000)
    expect(page.get_by_text("records in 7 partitions")).to_be_visible()
    assert canvas.evaluate(drawn) == enlarged


def test_numbers_are_not_green_while_airflow_does_not_answer(new_page, pages):
    pages.give(pipeline(), now=now(), history=history())
    page = new_page(allowed=(REFUSED,))
    page.clock.install()
    for address in ("", "dags/orders"):
        pages.answers["dags/orders/pipelines/key0/now"] = now()
        page.goto(pages.url + address)
        expect(page.locator(".good").first).to_be_visible()
        pages.answers["dags/orders/pipelines/key0/now"] = (500, {"detail": "broken"})
        fast_forward(page, 31_000)
        expect(page.get_by_text("broken")).to_be_visible()
        expect(page.get_by_text("5 d 19 h").first).to_be_visible()
        colours = page.locator(".good:visible").evaluate_all("all => all.map(e => getComputedStyle(e).color)")
        assert set(colours) <= {"rgb(24, 24, 27)", "rgb(91, 91, 101)"}, address
    expect(page.get_by_role("alert")).to_contain_text("The numbers shown are from 2026-03-02")
    expect(page.locator(".cards")).to_have_class("cards stale")


def test_new_pipelines_and_moves_appear_in_the_list(visit, pages):
    pages.give()
    page = visit(clock=True, allowed=(REFUSED,))
    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_visible()
    pages.give(pipeline(), now=now(commits=[{**move("commit", 90), "by": None}]), history=history())
    fast_forward(page, 181_000)
    row = page.get_by_role("row", name=re.compile("orders-etl-0"))
    expect(row).to_be_visible()
    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_hidden()
    fast_forward(page, 31_000)
    expect(row.locator("[data-label='What to do']")).to_have_text("nothing")
    expect(row).to_contain_text("commit")
    pages.give(pipeline(), now=now(commits=[{**move("restore", 95), "by": None}]), history=history())
    fast_forward(page, 181_000)
    expect(row).to_contain_text("restore")
    expect(row.get_by_text("5 d 19 h")).to_be_visible()
    pages.answers["pipelines"] = (500, {"detail": "broken"})
    fast_forward(page, 181_000)
    expect(page.get_by_text("The list is not up to date: broken")).to_be_visible()
    expect(row).to_contain_text("restore")


def test_a_list_that_is_not_whole_is_asked_for_again_soon_and_is_not_called_empty(visit, pages):
    pages.give()
    pages.answers["pipelines"]["problems"] = ["5 DAGs are not read yet"]
    page = visit(clock=True)
    expect(page.get_by_role("status")).to_have_text("5 DAGs are not read yet")
    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_hidden()
    pages.give(pipeline(), now=now(), history=history())
    fast_forward(page, 31_000)
    expect(page.get_by_role("row", name=re.compile("orders-etl-0"))).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("1 pipeline")
    fast_forward(page, 31_000)
    fast_forward(page, 31_000)
    assert [each.endswith("api/pipelines") for each in pages.asked].count(True) == 2


def test_a_click_counts_although_the_row_changes_between_press_and_release(show, pages):
    page = show("", clock=True)
    row = page.get_by_role("row", name=re.compile("orders-etl-0"))
    expect(row).to_contain_text("nothing")
    row.get_by_role("link", name="orders-etl-0").hover()
    page.mouse.down()
    pages.answers["dags/orders/pipelines/key0/now"] = now(commits=[{**move("commit", 90), "by": None}])
    fast_forward(page, 31_000)
    fast_forward(page, 1_000)
    page.mouse.up()
    expect(page).to_have_url(re.compile("dags/orders"))


def test_a_row_that_changed_while_a_button_was_pressed_is_shown_when_it_is_released(show, pages):
    page = show("", clock=True)
    row = page.get_by_role("row", name=re.compile("orders-etl-0"))
    expect(row).to_contain_text("nothing")
    row.locator("td").last.hover()
    page.mouse.down()
    pages.answers["dags/orders/pipelines/key0/now"] = now(commits=[{**move("commit", 90), "by": None}])
    fast_forward(page, 31_000)
    fast_forward(page, 1_000)
    expect(row).not_to_contain_text("commit")
    page.mouse.up()
    fast_forward(page, 1_000)
    expect(row).to_contain_text("commit")


def test_new_pipelines_and_moves_appear_on_the_page_of_a_dag(visit, pages):
    pages.give()
    page = visit("dags/orders", clock=True, allowed=(REFUSED,))
    expect(page.get_by_text("No task of this DAG names a Kafka pipeline")).to_be_visible()
    pages.give(pipeline(1), now=now(), history=history())
    fast_forward(page, 181_000)
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    expect(page.get_by_text("No task of this DAG names a Kafka pipeline")).to_be_hidden()
    expect(page.get_by_label("Pipeline", exact=True)).to_be_hidden()
    restored = {**history(), "moves": [*history()["moves"], move("restore", 95)]}
    pages.give(pipeline(0), pipeline(1), now=now(), history=restored)
    asked = sum("key0" in each for each in pages.asked)
    fast_forward(page, 181_000)
    expect(page.get_by_label("Pipeline", exact=True)).to_have_value("key1")
    expect(page.locator(".cards").get_by_role("link", name="restore")).to_be_visible()
    # The one that is shown stays.
    assert sum("key0" in each for each in pages.asked) == asked
    pages.answers["dags/orders/pipelines"] = (500, {"detail": "broken"})
    fast_forward(page, 181_000)
    expect(page.get_by_text("The list of pipelines is not up to date: broken")).to_be_visible()
    expect(page.get_by_label("Pipeline", exact=True)).to_have_value("key1")
    pages.give(pipeline(0), now=now(), history=history())
    fast_forward(page, 181_000)
    expect(page.locator(".facts").first).to_contain_text("orders-etl-0")
    expect(page.get_by_text("is old")).to_have_count(0)


def test_a_page_says_that_it_shows_another_pipeline_than_that_of_its_address(visit, pages):
    open_ = pipeline(1, groups=[], checkpoint=None, topics=None, tasks=["later"], unresolved=["group_id"])
    pages.give(pipeline(0), open_, now=now(), history=history())
    page = visit("dags/orders#gone")
    told, choice = page.get_by_text("The page shows another one"), page.get_by_label("Pipeline", exact=True)
    expect(told).to_be_visible()
    expect(choice).to_have_value("key0")
    choice.select_option("later")
    expect(told).to_be_hidden()


def test_a_pipeline_that_is_no_longer_shown_is_no_longer_asked_about(visit, pages):
    pages.give(pipeline(0), pipeline(1), now=now(), history=history())
    pages.answers["dags/orders/pipelines/key0/now"] = slowly(now(), 1.0)
    page = visit("dags/orders", clock=True)
    # While the first is being asked about.
    page.get_by_label("Pipeline", exact=True).select_option("key1")
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    page.wait_for_timeout(1_500)
    asked = sum("key0" in each for each in pages.asked)
    page.clock.run_for(61_000)
    page.wait_for_timeout(300)
    assert sum("key0" in each for each in pages.asked) == asked


def test_a_sum_of_some_partitions_is_no_point_of_the_sum_of_all(show):
    moves = [
        move(minutes=0, over="all"),
        move("reset", 10, over="one of them"),
        move(minutes=20, offset=None, over="all"),
        move(minutes=30, over="all"),
        # By a command, which has moved the checkpoint only.
        move("seek", 35, run_id=None, offset=None, log_end=None, lag=None, checkpoint=500, over="all"),
    ]
    rows = columns(6)
    rows["committed"][0] = None
    totals = {**now(rows)["totals"], "over": "all"}
    batches = [{**batch, "over": "two topics"} for batch in history()["batches"]]
    answer = {"batches": batches, "moves": moves, "problems": []}
    page = show(now=now(rows, totals=totals), history=answer)
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    plot = page.get_by_role("img", name=re.compile("^Offsets, sum"))
    expect(plot).to_have_accessible_name(re.compile("Log end: 4 values, the newest 157,759"))
    expect(plot).to_have_accessible_name(re.compile("Committed: 2 values, the newest 31,000"))
    expect(plot).to_have_accessible_name(re.compile("Checkpoint: 2 values, the newest 60,000"))
    expect(page.get_by_text("Left out of the sums: 91 values of other partitions.")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Lag in records. Lag: 4 values"))).to_be_visible()
    expect(rows_of(page, "Moves and waits")).to_have_count(5)


def test_the_run_of_another_dag_is_told_from_one_of_this_dag(show):
    moves = [move(), move("reset", 10, dag_id="recover")]
    page = show(history=only_moves(moves))
    rows = rows_of(page, "Moves and waits")
    expect(rows).to_have_count(2)
    other, own = (rows.nth(number).locator("td").nth(1) for number in range(2))
    expect(other).to_have_text("recover: 2026-03-02 12:10:00 scheduled")
    expect(other.get_by_title(moves[1]["run_id"])).to_be_visible()
    expect(own).to_have_text("2026-03-02 12:00:00 scheduled")


@pytest.mark.parametrize("tls", [True, False])
def test_a_command_is_copied_as_it_is_shown(show_task, tls):
    command = "cat <<'EOF'\n{\"a\": 1}\nEOF\nairflow-kafka-offsets group restore"
    left = task_instance(restore_command=command)
    page = show_task(RESET, left, permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("code")).to_have_text(command)
    if not tls:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("status")).to_have_text("copied" if tls else "selected: press Ctrl+C")
    if not tls:
        page.keyboard.press("Control+c")
    assert page.evaluate("navigator.clipboard.readText()") == command


CERTIFICATE = {
    "version": 1,
    "verdict": "incomplete",
    "counts": {"offsets": 10, "rows": 8, "lost": 2},
    "lost": {"orders": {"0": [[3, 5]]}},
    "doubled": {},
    "foreign": [{"topic": "orders", "partition": 7, "first": 1, "last": 2, "rows": 2}],
    "undecided": {},
    "problems": [],
    "audited": {"table": HOSTILE},
    "at": moment(3),
    "digest": "0f" * 32,
}


@pytest.mark.parametrize(
    ("kind", "tones", "report", "heading"),
    [
        (
            "mirror",
            {"exact": "good", "safe": "warn", "unknown": "bad"},
            {"version": 1, "verdict": "unknown", "behind": 7, "notes": [HOSTILE]},
            "Failover to the mirror",
        ),
        (
            "audit",
            {"complete": "good", "undecided": "warn", "incomplete": "bad"},
            CERTIFICATE,
            "Certificate",
        ),
    ],
)
def test_a_check_shows_its_verdict_beside_other_moves_and_its_report(
    visit, pages, kind, tones, report, heading
):
    checks = [move(kind, number, run_id=verdict, verdict=verdict) for number, verdict in enumerate(tones)]
    plan = move("window", 0, task_id="plan", plan_only=True)
    pages.give(pipeline(), now=now(), history=only_moves([plan, *checks]))
    verdict = report["verdict"]
    pages.answers[f"dags/orders/runs/{verdict}/tasks/{kind}/-1"] = task_instance(
        move=checks[2],
        receipt=None,
        restore_command=None,
        report=report,
        report_kind="certificate" if kind == "audit" else kind,
    )
    page = visit("dags/orders")
    for each, tone in tones.items():
        tag = page.get_by_role("row", name=kind).locator(".tag", has_text=re.compile(f"^{each}$"))
        expect(tag).to_have_class(f"tag {tone}")
    page.get_by_role("row", name=verdict).get_by_role("link", name=kind).click()
    expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.locator("section .tag.bad")).to_have_text(verdict)
    expect(page.get_by_text("This task has stored no receipt")).to_be_hidden()
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    if kind == "audit":
        expect(page.get_by_text("lost: 2", exact=True)).to_be_visible()
        expect(page.get_by_text('orders: {"0":[[3,5]]}')).to_be_visible()
