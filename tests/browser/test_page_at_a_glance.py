"""What the Offsets pages show at a glance: the worst first, what to do, and whether a move was taken back."""

import re
from typing import Any

import pytest
from browser import fast_forward, overflow, rows_of
from deadlines import until
from offsets_pages import (
    columns,
    history,
    instance_now,
    moment,
    move,
    now,
    only_moves,
    pipeline,
    task_instance,
)
from playwright.sync_api import expect

TOTALS = now()["totals"]
REMEDIES = {
    "records lost": "load the records again from their source",
    "expiring": "run the query now",
    "group behind": "run the task that commits",
}
READINGS = {
    "lost": now(totals={**TOTALS, "headroom_state": "lost"}, remedies=REMEDIES),
    "soon": now(totals={**TOTALS, "headroom": 50.0}, remedies=REMEDIES),
    "dead": now(error={"message": "the broker does not answer", "since": moment()}),
    "behind": now(drift={"verdict": "group behind", "text": "3 of 6"}, remedies=REMEDIES),
    "alone": now(drift=None, checkpoint=None),
    "fine": now(topics=["payments"]),
}

SECTIONS = {
    "lost-1": ["records-were-deleted"],
    "soon-1": ["headroom-is-short"],
    "dead-1": [],
    "behind-1": ["lag-grows"],
    "fine-9": [],
}
"""Where the link beside each remedy leads in the runbook."""


def give(pages, *groups):
    """Give a pipeline for each group, whose name begins with that of its reading."""
    listed = [pipeline(number, groups=[group], topics=None) for number, group in enumerate(groups)]
    pages.give(*listed, history=history())
    for each, group in zip(listed, groups, strict=True):
        address = f"dags/orders/pipelines/{each['key']}/now"
        pages.answers[address] = READINGS[group.partition("-")[0]]


def names(page):
    return [text.strip() for text in rows_of(page, "Pipelines").locator("th").all_inner_texts()]


def test_the_worst_come_first_and_names_in_their_natural_order(visit, pages):
    give(pages, "fine-10", "alone-1", "behind-1", "fine-9", "dead-1", "soon-1", "lost-1")
    page = visit()
    expect(rows_of(page, "Pipelines")).to_have_count(7)
    expect(page.locator(".skeleton:visible")).to_have_count(0)
    worst = ["lost-1", "soon-1", "dead-1", "behind-1", "alone-1", "fine-9", "fine-10"]
    assert names(page) == worst
    chips = page.get_by_role("group", name="Show only").get_by_role("button")
    expected = ["2 lose records", "1 not known", "1 late", "1 not compared", "2 in step"]
    assert [text for text in chips.all_inner_texts() if text] == expected
    for group, todo in (
        ("lost-1", REMEDIES["records lost"]),
        ("soon-1", REMEDIES["expiring"]),
        ("dead-1", "the broker does not answer"),
        ("behind-1", REMEDIES["group behind"]),
        ("fine-9", "nothing"),
    ):
        cell = page.get_by_role("row", name=re.compile(group)).locator("[data-label='What to do']")
        expect(cell.locator("span").first).to_have_text(todo)
        anchors = [str(link.get_attribute("href")).partition("#")[2] for link in cell.locator("a").all()]
        assert anchors == SECTIONS[group]
    # Of the checkpoint, since the DAG names none.
    expect(page.get_by_role("row", name=re.compile("fine-9"))).to_contain_text("payments")


def test_the_headline_filters(visit, pages):
    give(pages, "fine-1", "lost-1", "lost-2")
    page = visit()
    chip = page.get_by_role("button", name="2 lose records")
    chip.press("Enter")
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("status")).to_have_text("2 pipelines of 3")
    assert names(page) == ["lost-1", "lost-2"]
    page.get_by_label("Filter").fill("payments")
    expect(rows_of(page, "Pipelines")).to_have_text("No pipeline matches this text and this status.")
    chip.press("Enter")
    expect(rows_of(page, "Pipelines")).to_have_count(1)
    assert names(page) == ["fine-1"]


def test_a_pipeline_of_several_dags_is_one_row(visit, pages):
    whole = pipeline()
    recover = pipeline(dag_id="recover")
    gate = pipeline(dag_id="gate", key="other", checkpoint=None)
    elsewhere = pipeline(dag_id="far", key="far", kafka_config_id="kafka_far")
    reset = {**move("reset", 95, dag_id="recover"), "by": None}
    pages.give(whole, recover, gate, elsewhere, now=now(commits=[reset]), history=history())
    pages.answers["dags/far/pipelines/far/now"] = now()
    page = visit()
    expect(page.get_by_role("status")).to_have_text("2 pipelines")
    row = rows_of(page, "Pipelines").filter(has_text="recover")
    expect(row.locator("[data-label=DAG] a")).to_have_text(["gate", "orders", "recover"])
    expect(row.get_by_role("link", name="recover")).to_have_attribute("href", re.compile("dags/recover#key0"))
    expect(row.get_by_role("link", name="reset")).to_be_visible()
    assert not any("gate/pipelines" in address for address in pages.asked)


def test_a_group_of_which_dags_read_other_topics_has_a_row_for_each(visit, pages):
    """The lag of one DAG's topics would hide that of the other DAG's."""
    shared: dict[str, Any] = {"groups": ["shared"], "checkpoint": None}
    one, other = (pipeline(dag_id=name, key=name, topics=[name], **shared) for name in ("clicks", "returns"))
    pages.give(one, other)
    pages.answers |= {f"dags/{name}/pipelines/{name}/now": now() for name in ("clicks", "returns")}
    page = visit(clock=True)
    topics = rows_of(page, "Pipelines").locator("[data-label=Topics]")
    expect(topics).to_have_text(["clicks", "returns"])
    pages.answers["pipelines"]["pipelines"].append(pipeline(dag_id="all", key="all", topics=None, **shared))
    pages.answers["dags/all/pipelines/all/now"] = now(topics=["clicks", "returns"])
    fast_forward(page, 181_000)
    expect(topics).to_have_count(1)
    fast_forward(page, 31_000)
    expect(topics).to_have_text(["clicks, returns"])


def test_the_focus_stays_when_rows_are_drawn_again(visit, pages):
    give(pages, "fine-1", "fine-2")
    page = visit(clock=True)
    expect(rows_of(page, "Pipelines")).to_have_count(2)
    expect(page.locator(".skeleton:visible")).to_have_count(0)
    row = page.get_by_role("row", name=re.compile("fine-2"))
    row.get_by_role("link", name="orders").focus()
    pages.answers["dags/orders/pipelines/key1/now"] = READINGS["lost"]
    fast_forward(page, 31_000)
    expect(rows_of(page, "Pipelines").first).to_contain_text("records lost")
    focused = "[document.activeElement.closest('tr')?.dataset.key, document.activeElement.textContent]"
    key, text = page.evaluate(focused)
    assert key.startswith(row.get_attribute("data-key"))
    assert text == "orders"


def test_what_to_do_is_beside_each_verdict(show):
    cells = columns(4)
    cells["verdict"] = ["group behind", "records lost", "in step", "group behind"]
    answer = now(cells, drift={"verdict": "records lost", "text": ""}, remedies=REMEDIES)
    page = show(now=answer)
    troubles = page.locator(".trouble")
    expect(troubles).to_have_count(2)
    expect(troubles.nth(0)).to_contain_text("records lost: 1 partition (orders 1)")
    expect(troubles.nth(0)).to_contain_text(REMEDIES["records lost"])
    expect(troubles.nth(1)).to_contain_text("group behind: 2 partitions (orders 0, orders 3)")
    expect(troubles.nth(1)).to_contain_text(REMEDIES["group behind"])
    link = troubles.nth(0).get_by_role("link", name="Runbook")
    expect(link).to_have_attribute("href", re.compile(r"/runbook/#records-were-deleted$"))
    expect(link).to_have_attribute("target", "_blank")


def test_plots_show_the_same_time_and_name_its_zone(new_page, pages):
    pages.give(pipeline(), now=now(), history=history())
    page = new_page(timezone_id="Asia/Tokyo")
    page.add_init_script(
        """
        window.drawn = {};
        const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
        const title = (pen) => pen.canvas.closest("figure").querySelector("figcaption").textContent;
        CanvasRenderingContext2D.prototype.clearRect = function (...where) {
          window.drawn[title(this)] = {};
          return clearRect.call(this, ...where);
        };
        CanvasRenderingContext2D.prototype.fillText = function (text, x, ...more) {
          if (/^\\d\\d:\\d\\d$/.test(text)) window.drawn[title(this)][text] = Math.round(x);
          return fillText.call(this, text, x, ...more);
        };
        """
    )
    page.goto(f"{pages.url}dags/orders")
    expect(page.get_by_text("times of Asia/Tokyo")).to_be_visible()
    expect(page.locator(".plot canvas")).to_have_count(4)
    # The plots are drawn again when the history arrives, and when the page gets narrower.
    plots = "Object.values(window.drawn)"
    until(
        lambda: page.evaluate(
            f"{plots}.length == 4 && new Set({plots}.map(JSON.stringify)).size == 1 && '21:00' in {plots}[0]"
        ),
        "the same times, at the same distance from the left",
        seconds=10,
    )


def test_states_are_badges_and_runs_are_times(show):
    moves = [move(state="failed"), move(minutes=10, run_id="by hand", state=None)]
    page = show(history=only_moves(moves), timezone_id="UTC")
    found = rows_of(page, "Moves and waits")
    expect(found.nth(0)).to_contain_text("by hand")
    badge = found.nth(1).get_by_role("link", name="failed")
    expect(badge).to_have_attribute("href", re.compile("/dags/orders/runs/scheduled__.*/tasks/commit$"))
    expect(found.nth(1)).to_contain_text("2026-03-02 12:00:00 scheduled")
    expect(page.get_by_text("no members (normal: Spark does not join the group)")).to_be_visible()


RESET = "dags/orders/runs/r/tasks/reset/-1"
PLACE = {"times": {"before": [None, None], "after": [None, None]}, "read_at": moment(100)}


@pytest.mark.parametrize(
    ("since", "text"),
    [
        # Not the pipeline: nobody asks where the checkpoint is.
        ({"state": "in place"}, "The committed offsets are still those of this move."),
        # Its task may have ended before it moved anything, or its job may have read back up to them.
        ({"state": "taken back"}, "This move is not in place: the committed offsets are those before it."),
        ({"state": "in part"}, "Some partitions are at the offsets of this move"),
        (
            {"state": "moved on", "tool": "spark listener", "at": moment(95)},
            "have moved on since. The newest commit",
        ),
    ],
)
def test_where_the_groups_of_a_move_are_now(show_task, since, text):
    page = show_task(RESET, task_instance(), instance_now(since=since, **PLACE))
    expect(page.get_by_role("status").filter(has_text=text)).to_be_visible()
    if "tool" in since:
        expect(page.get_by_role("status").filter(has_text="by spark listener")).to_be_visible()
    expect(page.get_by_text("add --execute after the word restore")).to_be_visible()


def test_a_page_that_stays_open_does_not_show_an_old_place_of_the_groups(show_task, pages):
    first = instance_now(since={"state": "in place"}, **PLACE)
    page = show_task(RESET, task_instance(), first, clock=True, allowed=("Failed to load resource",))
    told = page.get_by_role("status").filter(has_text="The committed offsets")
    expect(told).to_contain_text("are still those of this move")
    pages.answers[f"{RESET}/now"] = instance_now(since={"state": "moved on", "at": moment(101)}, **PLACE)
    fast_forward(page, 61_000)
    expect(told).to_contain_text("have moved on since")
    pages.answers[f"{RESET}/now"] = (500, {"detail": "broken"})
    fast_forward(page, 61_000)
    expect(page.get_by_text("broken")).to_be_visible()
    expect(told).to_have_count(0)


def test_rows_are_cards_where_the_window_is_narrow(visit, pages):
    give(pages, "fine-1", "lost-1")
    page = visit(viewport={"width": 360, "height": 740})
    row = rows_of(page, "Pipelines").first
    expect(row).to_contain_text(REMEDIES["records lost"])
    assert overflow(page) == 0
    box = row.bounding_box()
    assert box
    assert box["width"] <= 340
    assert row.locator("td").first.evaluate("e => getComputedStyle(e, '::before').content") == '"Status"'
