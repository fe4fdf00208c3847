"""
What does a query leave behind in Python when a listener has heard of it, and how is that given back?

Spark calls ``onQueryStarted`` on the query's own Java thread, and py4j gives each Java thread that calls Python a
connection and a Python thread. Both stay when the Java thread is gone: one of each for every query of a session
that has any listener in Python.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any


class CallbackConnection:
    """
    The connection on which Java has called this Python thread.

    :param jvm: py4j's view of the driver's JVM.
    """

    def __init__(self, jvm: Any) -> None:
        # A gateway whose threads share their connections (PYSPARK_PIN_THREAD=false) leaves nothing behind.
        of_this_thread = getattr(jvm._gateway_client, "get_thread_connection", None)
        connection = of_this_thread() if of_this_thread is not None else None
        self._socket = getattr(connection, "socket", None)

    def close(self) -> None:
        """End connection and thread, once its Java thread calls no more."""
        if self._socket is not None:
            # The thread waits for the next call, and sees the end of the stream.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None
