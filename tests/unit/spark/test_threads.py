import threading

import pytest

from airflow_kafka_offsets.spark.listener.threads import (
    BackgroundThread,
    LimitedCalls,
    NoThreadError,
    call_on_daemon,
)

DEADLINE = 10


@pytest.fixture
def never():
    """A call that returns when the test has ended."""
    ended = threading.Event()
    yield ended.wait
    ended.set()


def raise_error():
    raise ArithmeticError("of the function")


def test_what_a_function_returns_or_raises_comes_back():
    assert call_on_daemon(lambda: 7, "asks").result(DEADLINE) == 7
    assert call_on_daemon(lambda: None, "asks").result(DEADLINE) is None
    with pytest.raises(ArithmeticError, match="of the function"):
        call_on_daemon(raise_error, "asks").result(DEADLINE)


def test_a_call_that_does_not_return_is_left_to_a_daemon_thread(never):
    call = call_on_daemon(never, "a call that is left")
    with pytest.raises(TimeoutError):
        call.result(0)
    assert not call.done()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "a call that is left"]
    assert thread.daemon


def test_where_no_thread_can_be_started_nothing_is_called(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThreadError, match="interpreter shutdown"):
        LimitedCalls("asks", DEADLINE)(lambda: pytest.fail("was called"))


def test_while_one_call_has_no_answer_no_other_is_made():
    answer = threading.Event()
    calls = LimitedCalls("asks", 0.01)
    with pytest.raises(TimeoutError):
        calls(answer.wait)
    assert calls.stuck
    with pytest.raises(TimeoutError, match="an earlier call"):
        calls(lambda: pytest.fail("was called"))
    answer.set()
    for late in (thread for thread in threading.enumerate() if thread.name == "asks"):
        late.join(DEADLINE)
    calls.seconds = DEADLINE
    assert calls(lambda: 7) == 7


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_it_works_on_a_daemon_thread_of_its_own_that_ends_when_there_is_nothing_left():
    seen = []
    worker = BackgroundThread(lambda: seen.append(threading.current_thread()), "ends")
    worker.wake()
    for thread in named("ends"):
        thread.join(DEADLINE)
    assert [thread.daemon for thread in seen] == [True]
    assert named("ends") == []
    worker.wake()
    worker.stop(DEADLINE)
    assert len(seen) in (1, 2)


def test_it_is_called_again_when_it_asks_for_that_and_when_it_is_woken():
    pauses, done = [None, 3600.0, 0.01], threading.Event()

    def step():
        pause = pauses.pop()
        if len(pauses) == 1:
            worker.wake()
        if pause is None:
            done.set()
        return pause

    worker = BackgroundThread(step, "again")
    worker.wake()
    assert done.wait(DEADLINE)


def test_nothing_is_lost_that_comes_while_it_works():
    working, go_on, calls = threading.Event(), threading.Event(), []

    def step():
        calls.append(1)
        working.set()
        go_on.wait(DEADLINE)

    worker = BackgroundThread(step, "busy")
    worker.wake()
    assert working.wait(DEADLINE)
    worker.wake()
    go_on.set()
    for thread in named("busy"):
        thread.join(DEADLINE)
    assert len(calls) == 2


def test_once_stopped_it_does_not_begin_again():
    calls = []
    worker = BackgroundThread(lambda: calls.append(1), "stopped")
    worker.stop(DEADLINE)
    worker.wake()
    assert named("stopped") == []
    assert calls == []


def test_an_error_of_the_work_does_not_end_it(caplog):
    second = threading.Event()

    def step():
        if "unexpected error" in caplog.text:
            second.set()
            return
        worker.wake()
        raise RuntimeError("a bug")

    worker = BackgroundThread(step, "unlucky")
    worker.wake()
    assert second.wait(DEADLINE)
    worker.stop(DEADLINE)
