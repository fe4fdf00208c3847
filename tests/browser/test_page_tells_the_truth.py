"""The Offsets page denies nothing that it does not know, and shows what all tools have done."""

import re
import threading
from datetime import timedelta

import pytest
from browser import rows_of
from offsets_pages import NOON, columns, held, history, moment, move, now, only_moves, pipeline
from playwright.sync_api import expect

REFUSED = "Failed to load resource"
BROKEN = (500, {"detail": "broken"})
DENIALS = re.compile("No run has|There is no history yet|no run has|No partition|no commit|No pipeline")
LISTENER = {
    "kind": "commit", "dag_id": None, "run_id": None, "task_id": None, "map_index": None, "by": None,
    "tool": "spark listener", "query": "q", "batch": 42, "at": moment(95),
}  # fmt: skip
COMMAND = {**LISTENER, "kind": "reset", "tool": "airflow-kafka-offsets group reset", "at": moment(97)}


def card(page, label):
    return page.locator(".cards > div", has=page.get_by_text(label, exact=True))


def test_nothing_is_denied_while_it_is_being_read(show):
    until = threading.Event()
    page = show(now=held(now(), until), history=held(history(), until))
    expect(page.get_by_text("Asking Kafka")).to_be_visible()
    expect(page.locator(".skeleton").first).to_be_visible()
    assert not DENIALS.search(page.locator("main").inner_text())
    until.set()
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    expect(page.locator(".skeleton:visible")).to_have_count(0)


@pytest.mark.parametrize("which", ["now", "history"])
def test_nothing_is_denied_after_an_error(show, which):
    page = show(**{which: BROKEN}, allowed=(REFUSED,))
    expect(page.get_by_text("broken")).to_be_visible()
    shown = page.locator("main")
    if which == "history":
        expect(rows_of(page, "Moves and waits")).to_have_text("Not known: the history could not be read.")
        expect(card(page, "Last move")).to_contain_text("not known yet")
    else:
        expect(card(page, "Lag")).to_contain_text("not known")
    expect(page.locator(".skeleton:visible")).to_have_count(0)
    assert not DENIALS.search(shown.inner_text())


def test_a_storage_that_does_not_answer_leaves_no_empty_past(show):
    answer = {**history(), "batches": [], "batches_known": False, "problems": ["the storage does not answer"]}
    page = show(history=answer)
    expect(page.get_by_text("Not known: the checkpoint could not be read.")).to_have_count(2)
    expect(page.locator(".plot canvas")).to_have_count(2)


def test_what_is_known_to_be_nothing_is_said(show):
    totals = {**now()["totals"], "lag": None, "without_commit": 6}
    page = show(now=now(totals=totals), history=only_moves())
    expect(rows_of(page, "Moves and waits")).to_have_text("No run has moved or read this pipeline yet.")
    expect(card(page, "Last move")).to_contain_text("the group has no commit")


@pytest.mark.parametrize(
    ("lag", "listed", "value"),
    [(0, "1,200 ?", "0 + ?"), (5, "5 + 1,200 ?", "5 + ?"), (None, "1,200 ?", "not known")],
)
def test_unread_records_without_a_commit_are_not_left_unsaid(show, pages, lag, listed, value):
    without = {"uncounted": 1_200, "unknown_lag": 2, "without_commit": 2, "time_lag": None}
    totals = {**now()["totals"], "lag": lag, **without}
    page = show("", now=now(totals=totals))
    row = page.get_by_role("row", name=re.compile("orders-etl-0"))
    expect(row.get_by_text(listed, exact=True)).to_be_visible()
    expect(row.locator(".status")).to_have_text("no commit")
    page.goto(f"{pages.url}dags/orders")
    expect(card(page, "Lag").locator(".value")).to_have_text(value)
    expect(card(page, "Lag")).to_contain_text("1,200 records more in 2 partitions without a commit")
    if lag is not None:
        expect(card(page, "Lag")).to_contain_text("records in 4 partitions")


def test_an_empty_partition_without_a_commit_is_not_late(show):
    totals = {**now()["totals"], "without_commit": 1, "unknown_lag": 1, "uncounted": 0}
    answer = now(totals=totals, drift=None, checkpoint=None)
    page = show("", pipeline(checkpoint=None), answer, only_moves())
    expect(page.locator(".status")).to_have_text("no checkpoint")
    expect(page.get_by_role("button", name="1 not compared")).to_be_visible()


def test_a_checkpoint_alone_has_no_group_to_compare_with(show, pages):
    answer = now(drift=None, state=None, members=None)
    answer["totals"] = {**answer["totals"], "without_commit": None, "time_lag": None}
    page = show("", of=pipeline(groups=[]), now=answer, history=only_moves())
    expect(page.locator(".status")).to_have_text("no group")
    page.goto(f"{pages.url}dags/orders")
    expect(card(page, "Drift")).to_contain_text("no group to compare with")
    expect(card(page, "Group")).to_contain_text("no group is named")
    expect(card(page, "Last move")).to_contain_text("no run has left a receipt")
    expect(card(page, "Behind")).to_contain_text("not known")


def test_one_value_has_an_axis_of_minutes(new_page, pages):
    pages.give(pipeline(), now=now(), history=only_moves())
    page = new_page(timezone_id="UTC")
    # What uPlot writes at its axes is drawn, not text.
    page.add_init_script(
        "window.drawn = []; const fill = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        " window.drawn.push(text); return fill.call(this, text, ...at); };"
    )
    page.goto(f"{pages.url}dags/orders")
    expect(page.locator(".plot canvas")).to_have_count(2)
    drawn = set(page.evaluate("window.drawn"))
    assert {"13:39", "13:40", "13:41"} <= drawn
    assert not {"12:00", "14:00"} & drawn


def test_commits_of_other_tools_are_moves(show, pages):
    page = show(now=now(commits=[LISTENER]), clock=True)
    expect(rows_of(page, "Moves and waits").first).to_contain_text("spark listener")
    expect(card(page, "Last move")).to_contain_text("commit by spark listener")
    page.goto(pages.url)
    row = page.get_by_role("row", name=re.compile("orders-etl-0"))
    expect(row).to_contain_text("by spark listener")
    page.goto(f"{pages.url}dags/orders")
    expect(rows_of(page, "Moves and waits").first).to_contain_text("spark listener")
    # The group keeps the newest only; the page keeps what it has seen.
    again = now(commits=[COMMAND], read_at=moment(101))
    pages.give(pipeline(), now=again, history=history())
    page.clock.run_for(11_000)
    expect(rows_of(page, "Moves and waits").nth(0)).to_contain_text("airflow-kafka-offsets group reset")
    expect(rows_of(page, "Moves and waits").nth(1)).to_contain_text("spark listener")
    expect(card(page, "Last move")).to_contain_text("reset by airflow-kafka-offsets group reset")


def test_a_commit_of_a_run_that_left_a_receipt_is_one_move(show):
    made = move(minutes=90)
    by_run = {**LISTENER, "tool": None, "dag_id": None, "run_id": made["run_id"], "at": moment(90)}
    page = show(now=now(commits=[by_run]), history=only_moves([made]))
    expect(page.get_by_text("records in 6 partitions")).to_be_visible()
    expect(rows_of(page, "Moves and waits")).to_have_count(1)
    expect(card(page, "Last move").get_by_role("link", name="commit")).to_be_visible()


def test_what_was_read_while_the_page_is_open_is_kept(show):
    answers = iter(range(100))

    def reading():
        number = next(answers)
        rows = columns(2)
        rows["committed"] = [10_000 + number, 10_000]
        at = (NOON + timedelta(seconds=10 * number)).isoformat()
        return now(rows, read_at=at, pace={"records_in": 310, "records_out": 355.2, "seconds_left": 960})

    page = show(now=reading, history=only_moves(), clock=True)
    plot = page.get_by_role("img", name=re.compile("^Offsets, sum"))
    for number in range(1, 4):
        expect(plot).to_have_accessible_name(
            re.compile(f"Committed: {number} values?, the newest 20,00{number - 1}")
        )
        page.clock.run_for(10_500)
    rates = card(page, "Rates")
    expect(rates).to_contain_text("355 /s read")
    expect(rates).to_contain_text("310 /s in; caught up in about 16 min")
