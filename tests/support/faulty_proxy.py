"""A proxy before a Kafka that changes or cuts what is said, as brokers and networks in trouble do."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from airflow_kafka_offsets.local.broker_config import LOOPBACK

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10


class Proxy:
    """
    Stands between clients and a broker that advertises it, and changes error codes in some answers.

    refuse(api_keys, code, times=None) puts ``code`` into the next ``times`` answers to these requests;
    cut(api_key, times) ends the connection instead of passing the next ``times`` of these requests on.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._refuse: dict[int, tuple[int, int | None]] = {}
        self.refused = 0
        self._cut: dict[int, int] = {}
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def refuse(self, api_keys: tuple[int, ...], code: int, times: int | None = None) -> None:
        with self._lock:
            self._refuse = dict.fromkeys(api_keys, (code, times))
            self.refused = 0

    def cut(self, api_key: int, times: int) -> None:
        with self._lock:
            self._cut = {api_key: times}

    @property
    def cuts_left(self) -> int:
        return sum(self._cut.values())

    def close(self) -> None:
        # A thread in accept() or recv() is woken by this, not by close().
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((LOOPBACK, self._upstream))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            asked: dict[int, tuple[int, int, int]] = {}
            self._start(self._pass_on, near, far, lambda frame, asked=asked: self._note(frame, asked))
            self._start(self._pass_on, far, near, lambda frame, asked=asked: self._change(frame, asked))

    def _pass_on(
        self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError, struct.error):
            stream = source.makefile("rb")
            with stream:
                while size := stream.read(4):
                    frame = change(stream.read(*struct.unpack(">i", size)))
                    target.sendall(struct.pack(">i", len(frame)) + frame)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _note(self, frame: bytes, asked: dict[int, tuple[int, int, int]]) -> bytes:
        api_key, version, correlation = struct.unpack_from(">hhi", frame)
        with self._lock:
            if self._cut.get(api_key):
                self._cut[api_key] -= 1
                raise ConnectionAbortedError
            code, times = self._refuse.get(api_key, (0, 0))
            if times == 0:
                return frame
            if times is not None:
                self._refuse = dict.fromkeys(self._refuse, (code, times - 1))
            self.refused += 1
        asked[correlation] = (api_key, version, code)
        # What is said to be refused must not be written: the broker writes it for nobody's group.
        return frame.replace(b"group-", b"nobody", 1) if api_key == OFFSET_COMMIT else frame

    def _change(self, frame: bytes, asked: dict[int, tuple[int, int, int]]) -> bytes:
        (correlation,) = struct.unpack_from(">i", frame)
        if correlation not in asked:
            return frame
        api_key, version, code = asked.pop(correlation)
        changed = bytearray(frame)
        for position in _error_codes(frame, api_key, version):
            struct.pack_into(">h", changed, position, code)
        return bytes(changed)


def _error_codes(frame: bytes, api_key: int, version: int) -> list[int]:
    """Where the error codes are, in the versions that today's librdkafka speaks."""
    if api_key == FIND_COORDINATOR:
        assert version <= 2, f"FindCoordinator v{version}"
        return [4 if version == 0 else 8]
    assert version in (8, 9), f"request {api_key} v{version}"
    if api_key == OFFSET_FETCH:
        # The last field; behind it the tags of the answer and of the (one) group.
        return [len(frame) - 4]
    return _commit_error_codes(frame)


def _commit_error_codes(frame: bytes) -> list[int]:
    position = 9  # behind the header and the throttle time

    def count() -> int:
        nonlocal position
        number = shift = 0
        while True:
            byte = frame[position]
            position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number - 1
            shift += 7

    found = []
    for _ in range(count()):
        length = count()
        position += length
        for _ in range(count()):
            found.append(position + 4)
            position += 7
        position += 1
    return found
