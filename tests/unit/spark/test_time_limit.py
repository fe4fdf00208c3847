from __future__ import annotations

import threading

import pytest

from airflow_kafka_offsets.spark.listener.time_limit import DaemonCall, LimitedCalls, NoThreadError

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
    assert DaemonCall(lambda: 7, "asks").wait(DEADLINE) == 7
    assert DaemonCall(lambda: None, "asks").wait() is None
    with pytest.raises(ArithmeticError, match="of the function"):
        DaemonCall(raise_error, "asks").wait(DEADLINE)


def test_a_call_that_does_not_return_is_left_to_a_daemon_thread(never):
    call = DaemonCall(never, "a call that is left")
    with pytest.raises(TimeoutError):
        call.wait(0)
    assert not call.ended
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
    (late,) = [thread for thread in threading.enumerate() if thread.name == "asks"] or [None]
    if late is not None:
        late.join(DEADLINE)
    calls.seconds = DEADLINE
    assert calls(lambda: 7) == 7
