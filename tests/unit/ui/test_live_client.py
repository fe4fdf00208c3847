"""One child process that asks for all viewers."""

import asyncio
import errno
import json
import os
import signal
import time
from contextlib import contextmanager

import pytest

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.ui import live_client, worker_process
from airflow_kafka_offsets.ui.live_client import Answer, LiveClient, pack_json
from airflow_kafka_offsets.ui.provenance import as_provenance
from airflow_kafka_offsets.ui.routes import json_response

WITHIN = 20.0
RUNNERS: list[asyncio.Runner] = []
"""That of the test: all of its requests are in one event loop, as in a server."""


@pytest.fixture
def start(monkeypatch):
    support = os.path.join(os.path.dirname(__file__), "..", "..", "support")  # noqa: PTH118, PTH120
    monkeypatch.setenv("PYTHONPATH", os.path.abspath(support))  # noqa: PTH100
    started = []

    monkeypatch.setattr(live_client, "WORKER", "echo_worker")

    def make(**limits):
        for name, limit in limits.items():
            monkeypatch.setattr(live_client, name, limit)
        started.append(LiveClient())
        return started[-1]

    with asyncio.Runner() as runner:
        RUNNERS.append(runner)
        yield make
        RUNNERS.remove(runner)
        for live in started:
            live.close()


def ask_all(live, *group_ids):
    """Ask about all of them at once."""

    async def ask():
        async with asyncio.timeout(WITHIN):
            return await asyncio.gather(*(live.ask("now", {"group_id": group_id}) for group_id in group_ids))

    return RUNNERS[0].run(ask())


def ask(live, group_id="g"):
    return ask_all(live, group_id)[0]


@contextmanager
def hasty(seconds=0.2):
    """Within it there is little time for an answer: the process that is to give it has started before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_client, "DEADLINE", seconds)
        yield


def test_a_hundred_viewers_ask_once(start):
    live = start()
    answers = ask_all(live, *["slow"] * 100)

    assert {answer.value["asked"] for answer in answers} == {1}
    assert ask(live, "other").value["asked"] == 2


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (BlockingIOError(errno.EAGAIN, "Resource unavailable"), "Resource unavailable"),
    ],
)
def test_a_process_that_cannot_be_started_is_the_answer_of_those_who_ask(start, monkeypatch, error, why):
    def refused(*_):
        raise error

    monkeypatch.setattr("airflow_kafka_offsets.ui.live_client.WorkerProcess", refused)
    live = start(FRESH=0.0)
    for _ in range(2):
        assert ask(live).error == f"the process that reads from Kafka cannot be started ({why})"


def test_an_answer_is_asked_for_again_when_it_is_no_longer_fresh(start):
    live = start(FRESH=0.2)

    first = ask(live)
    assert ask(live).value == first.value
    time.sleep(0.3)

    assert ask(live).value["asked"] == 2


def test_a_server_that_ends_does_not_cancel_what_the_process_is_about_to_answer(start):
    live = start()

    async def end_at_once():
        viewer = asyncio.ensure_future(live.ask("now", {"group_id": "slow"}))
        while live._child is None or not live._child._open:
            await asyncio.sleep(0.01)
        viewer.cancel()

    RUNNERS[0].run(end_at_once())
    assert ask(live, "other").value["asked"] == 2


def test_a_failure_keeps_the_last_good_answer(start):
    live = start(FRESH=0.0)
    good = ask(live)
    os.kill(good.value["pid"], signal.SIGSTOP)

    with hasty():
        failed = ask(live)
    again = ask(live)

    assert good.error is None
    assert (failed.value, failed.read_at) == (good.value, good.read_at)
    assert failed.error == "no answer in time"
    assert failed.since >= failed.read_at
    # Another process has answered.
    assert (again.error, again.since) == (None, None)
    assert again.value["pid"] != good.value["pid"]


def test_a_large_question_does_not_wait_in_the_event_loop_for_a_process_that_hangs(start):
    live = start()
    os.kill(ask(live).value["pid"], signal.SIGSTOP)

    async def ask_beside_others():
        asked = asyncio.ensure_future(live.ask("times", {"group_id": "g"}, moved="g" * 5_000_000))
        since = time.monotonic()
        while not live._child._open:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        return time.monotonic() - since, await asked

    with hasty(1.0):
        took, answer = RUNNERS[0].run(ask_beside_others())
    assert took < 0.5
    assert answer.error == "no answer in time"


def test_a_process_that_reads_nothing_is_replaced(start):
    live = start(FRESH=0.0)
    first = ask(live)
    os.kill(first.value["pid"], signal.SIGSTOP)

    with hasty():
        unread = ask(live, "g" * 500_000)
    after = ask(live)

    assert unread.error == "no answer in time"
    assert after.value["pid"] != first.value["pid"]


def test_the_answers_that_are_kept_have_a_bound_in_bytes(start):
    live = start(KEPT=2_500)

    asked = [ask(live, f"g{number}").value["asked"] for number in range(3)]
    kept = ask(live, "g2").value["asked"]
    again = ask(live, "g0").value["asked"]

    assert (asked, kept, again) == ([1, 2, 3], 3, 4)
    assert live._answers._size <= 2_500


def test_a_large_answer_is_kept_as_few_bytes():
    names = ("committed", "log_end", "lag")
    columns = {"topic": ["orders"] * 2_000, **{name: list(range(100_000, 102_000)) for name in names}}

    packed = pack_json(columns)

    assert len(packed) < len(json.dumps(columns)) / 3
    assert Answer(packed).value == columns


def test_metadata_that_is_no_text_can_be_sent_to_the_page():
    made_by = CommitMetadata.parse('{"user": "\\ud800é", "run": "r"}')
    value = Answer(pack_json({"commits": [as_provenance(made_by)]})).value
    assert value is not None
    assert '"by":"?é"' in bytes(json_response(value).body).decode()


def test_failures_say_since_when(start):
    live = start(FRESH=0.0)

    first, second = ask(live, "fail"), ask(live, "fail")

    assert (first.value, first.read_at, first.error) == (None, None, "it failed")
    assert second.since == first.since


def test_a_question_without_an_answer_does_not_concern_the_others(start):
    live = start(FRESH=0.0)
    first = ask(live)

    async def ask_both():
        hung = asyncio.ensure_future(live.ask("now", {"group_id": "hang 1"}))
        await asyncio.sleep(0)
        meanwhile = await live.ask("now", {"group_id": "g"})
        return hung.done(), meanwhile, await hung

    with hasty(0.4):
        was_late, meanwhile, after = RUNNERS[0].run(ask_both())

    assert not was_late
    assert meanwhile.value["pid"] == first.value["pid"]
    assert after.error == "no answer in time"
    assert ask(live).value["pid"] == first.value["pid"]


def test_a_process_that_gives_up_at_its_deadline_has_answered_in_time(start):
    """Else requests that wait for a slow broker would count as hanging, and the process would be replaced."""
    live = start(FRESH=0.0)
    ask(live)

    with hasty(1.5):
        assert ask(live, "late").error is None


def test_an_answer_counts_that_came_while_the_event_loop_was_busy(start):
    live = start()
    ask(live)

    async def ask_and_block():
        asked = asyncio.ensure_future(live.ask("now", {"group_id": "slow"}))
        while not live._child._open:
            await asyncio.sleep(0)
        time.sleep(1.0)
        return await asked

    with hasty(0.6):
        assert RUNNERS[0].run(ask_and_block()).error is None


def test_a_process_that_leaves_many_questions_unanswered_is_replaced(start):
    live = start(FRESH=0.0)
    first = ask(live)

    with hasty():
        *hung, _ = ask_all(live, *(f"hang {number}" for number in range(4)), "g")
    assert {each.error for each in hung} == {"no answer in time"}
    after = ask(live)

    assert after.error is None
    assert after.value["pid"] != first.value["pid"]
    end = time.monotonic() + 5
    while _runs(first.value["pid"]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(first.value["pid"])


def test_a_process_that_dies_is_started_again(start):
    live = start(FRESH=0.0)

    died = ask(live, "die")

    assert died.error == "the process that reads from Kafka has ended; it is started again"
    assert ask(live).error is None


def test_a_process_that_ends_at_its_start_is_not_started_for_each_question(start, monkeypatch):
    monkeypatch.setattr(live_client, "WORKER", "no_such_worker")
    live = start(FRESH=0.0)

    first, child = ask(live), live._child
    again = ask(live)

    assert {first.error, again.error} == {
        "the process that reads from Kafka ends at its start, see the log of the API server; it is started "
        "again within a minute"
    }
    assert live._child is child
    monkeypatch.setattr(worker_process, "_START", 0.0)
    monkeypatch.setattr(live_client, "WORKER", "echo_worker")
    assert ask(live).error is None


def test_a_pipeline_that_is_a_template_is_not_asked_about(start):
    live = start()

    answer = ask(live, "{{ params.group }}")

    assert answer.error == "no run has rendered group_id yet, or Airflow has cut it off or masked it"
    assert live._child is None


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
