"""Consumers that are members of groups, and commit nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer


@contextmanager
def member_of(servers: str, group: str, topic: str, **more: object) -> Iterator[None]:
    """Let a consumer with client id a-reader be in a group; ``more`` are further settings of it."""
    settings = {"bootstrap.servers": servers, "group.id": group, "client.id": "a-reader"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0, **more})
    joined, stop = threading.Event(), threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: joined.set())

    def read() -> None:
        while not stop.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert joined.wait(30)
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()
