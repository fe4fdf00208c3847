from __future__ import annotations

import threading

from airflow_kafka_offsets.spark.listener.worker import Worker

DEADLINE = 10


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_it_works_on_a_daemon_thread_of_its_own_that_ends_when_there_is_nothing_left():
    seen = []
    worker = Worker(lambda: seen.append(threading.current_thread()), "ends")
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

    worker = Worker(step, "again")
    worker.wake()
    assert done.wait(DEADLINE)


def test_nothing_is_lost_that_comes_while_it_works():
    working, go_on, calls = threading.Event(), threading.Event(), []

    def step():
        calls.append(1)
        working.set()
        go_on.wait(DEADLINE)

    worker = Worker(step, "busy")
    worker.wake()
    assert working.wait(DEADLINE)
    worker.wake()
    go_on.set()
    for thread in named("busy"):
        thread.join(DEADLINE)
    assert len(calls) == 2


def test_once_stopped_it_does_not_begin_again():
    calls = []
    worker = Worker(lambda: calls.append(1), "stopped")
    worker.stop(DEADLINE)
    worker.wake()
    assert named("stopped") == []
    assert calls == []


def test_an_error_of_the_work_does_not_end_it(caplog):
    second = threading.Event()

    def step():
        if "nobody expected" in caplog.text:
            second.set()
            return
        worker.wake()
        raise RuntimeError("a bug")

    worker = Worker(step, "unlucky")
    worker.wake()
    assert second.wait(DEADLINE)
    worker.stop(DEADLINE)
