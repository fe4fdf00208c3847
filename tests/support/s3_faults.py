"""
A proxy in front of an S3 server that lists late and fails as a test says.

What is written or removed while listings are late is missing from them, or still in them; reads
of the object itself are right at once. Everything must go through the proxy: it keeps the names of all
objects.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

Outcome = Literal["slow down", "denied", "ignored", "done, answer lost", "half"]
"""
``slow down``: 503, not carried out. ``denied``: 403. ``ignored``: answered as done, and not carried out.
``done, answer lost``: carried out, and the connection is cut. ``half``, of a removal of several objects:
every second one fails, and the answer, 200, says so.
"""

XML = "http://s3.amazonaws.com/doc/2006-03-01/"
BACKEND_TIMEOUT = 60.0
_DROPPED = {"connection", "expect", "keep-alive", "transfer-encoding"}


class Request(NamedTuple):
    """A request: ``DELETE`` of ``lake/cp/offsets/3``; ``LIST`` of a prefix; ``DELETE MANY`` of a bucket."""

    kind: str
    path: str


class Fault:
    """What happens to requests of a kind; :attr:`met` says to which it has happened."""

    def __init__(self, kind: str, path: str, outcome: Outcome, after: int, times: int) -> None:
        self.kind, self.path, self.outcome = re.compile(kind), re.compile(path), outcome
        self.after, self.times = after, times
        self.met: list[Request] = []

    def meets(self, request: Request) -> bool:
        if not self.kind.fullmatch(request.kind) or not self.path.search(request.path):
            return False
        if self.after > 0 or len(self.met) >= self.times:
            self.after -= 1
            return False
        self.met.append(request)
        return True


class FaultyS3:
    """
    The proxy, from entering to leaving its ``with`` block.

    :param backend: ``host:port`` of the S3 server.
    :param remove: removes an object from it, with credentials of its own: (bucket, key).
    """

    def __init__(self, backend: str, remove: Callable[[str, str], None]) -> None:
        self.backend, self.remove = backend, remove
        self._faults: list[Fault] = []
        self._late = False
        self._keys: set[str] = set()
        self._written: set[str] = set()
        """Objects that listings do not show yet."""
        self._removed: set[str] = set()
        """Objects that listings still show."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.s3 = self

    def __enter__(self) -> FaultyS3:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def fault(
        self, kind: str, path: str, outcome: Outcome, *, after: int = 0, times: int = 1_000_000
    ) -> Iterator[Fault]:
        """Let ``times`` requests fail, after some, whose kind and path fit the regular expressions."""
        fault = Fault(kind, path, outcome, after, times)
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    @contextlib.contextmanager
    def late_listings(self) -> Iterator[None]:
        """Let listings miss what is written and removed; at the end they show everything."""
        self._late = True
        try:
            yield
        finally:
            self._late = False
            self.show_all()

    def show_all(self) -> None:
        """Let listings show everything that was written and removed until now."""
        with self._lock:
            self._written.clear()
            self._removed.clear()

    def fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            return next((fault for fault in self._faults if fault.meets(request)), None)

    def note_written(self, path: str) -> None:
        with self._lock:
            if path not in self._keys and self._late:
                self._written.add(path)
            self._removed.discard(path)
            self._keys.add(path)

    def note_removed(self, path: str) -> None:
        with self._lock:
            # What was never listed is not listed now.
            if path in self._keys and self._late and path not in self._written:
                self._removed.add(path)
            self._written.discard(path)
            self._keys.discard(path)

    def listing(self, bucket: str, prefix: str, delimiter: str, answer: bytes) -> bytes:
        """Return a listing as one who comes too early sees it."""
        with self._lock:
            hidden, ghosts = set(self._written), set(self._removed)
            seen = (self._keys - hidden) | ghosts
        if not hidden and not ghosts:
            return answer
        ET.register_namespace("", XML)
        root = ET.fromstring(answer)
        encoded = root.findtext(f"{{{XML}}}EncodingType") == "url"

        def name(text: str | None) -> str:
            return f"{bucket}/{unquote(text or '') if encoded else text}"

        listed = set()
        for entry in root.findall(f"{{{XML}}}Contents"):
            path = name(entry.findtext(f"{{{XML}}}Key"))
            listed.add(path)
            if path in hidden:
                root.remove(entry)
        for entry in root.findall(f"{{{XML}}}CommonPrefixes"):
            path = name(entry.findtext(f"{{{XML}}}Prefix"))
            listed.add(path)
            if not any(one.startswith(path) for one in seen):
                root.remove(entry)
        for ghost in sorted(ghosts):
            key = ghost.removeprefix(f"{bucket}/")
            if not ghost.startswith(f"{bucket}/{prefix}") or ghost in listed:
                continue
            below = key[len(prefix) :]
            common = delimiter and delimiter in below
            shown = prefix + below.split(delimiter)[0] + delimiter if common else key
            if f"{bucket}/{shown}" in listed:
                continue
            listed.add(f"{bucket}/{shown}")
            entry = ET.SubElement(root, f"{{{XML}}}{'CommonPrefixes' if common else 'Contents'}")
            text = quote(shown) if encoded else shown
            ET.SubElement(entry, f"{{{XML}}}{'Prefix' if common else 'Key'}").text = text
            if not common:
                for tag, value in (
                    ("LastModified", "2026-01-01T00:00:00.000Z"),
                    ("ETag", '"gone"'),
                    ("Size", "1"),
                    ("StorageClass", "STANDARD"),
                ):
                    ET.SubElement(entry, f"{{{XML}}}{tag}").text = value
        filtered: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
        return filtered


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    s3: FaultyS3

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one packet: in two, the client's system takes 40 ms to ask for the second.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def handle_any(self) -> None:
        s3 = self.server.s3
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        path = unquote(url.path).lstrip("/")
        bucket, _, key = path.partition("/")
        body = self._body()
        many = re.findall(r"<Key>([^<]*)</Key>", body.decode()) if "delete" in query else []
        listed = self.command == "GET" and bucket != "" and not key and "location" not in query
        prefix = query.get("prefix", [""])[0]
        request = Request(
            "DELETE MANY" if many else "LIST" if listed else self.command,
            f"{bucket}/{prefix}" if listed else path,
        )
        fault = s3.fault_for(request)
        outcome = None if fault is None else fault.outcome
        if outcome == "slow down":
            return self._error(503, "SlowDown", "Please reduce your request rate.")
        if outcome == "denied":
            return self._error(403, "AccessDenied", "Access Denied")
        if outcome == "ignored":
            return self._answer(204 if self.command == "DELETE" else 200, b"", {"ETag": '"0"'})
        if outcome == "half":
            return self._half(bucket, many)
        status, headers, answer = self._forward(body)
        if status < 300:
            for name in many:
                s3.note_removed(f"{bucket}/{name}")
            written = self.command == "PUT" or "uploadId" in query
            if key and written and "partNumber" not in query:
                s3.note_written(path)
            elif key and self.command == "DELETE":
                s3.note_removed(path)
            elif listed:
                answer = s3.listing(bucket, prefix, query.get("delimiter", [""])[0], answer)
        if outcome == "done, answer lost":
            self.close_connection = True
            return None
        return self._answer(status, answer, headers)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815  # as http.server calls them

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        backend = http.client.HTTPConnection(self.server.s3.backend, timeout=BACKEND_TIMEOUT)
        try:
            # With the host that the client has signed.
            backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _DROPPED | {"content-length"}:
                    backend.putheader(name, value)
            backend.putheader("Content-Length", str(len(body)))
            backend.endheaders(body)
            answer = backend.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            backend.close()

    def _half(self, bucket: str, keys: list[str]) -> None:
        parts = []
        for number, key in enumerate(keys):
            name = f"<Key>{escape(key)}</Key>"
            if number % 2:
                self.server.s3.remove(bucket, key)
                self.server.s3.note_removed(f"{bucket}/{key}")
                parts.append(f"<Deleted>{name}</Deleted>")
            else:
                parts.append(f"<Error>{name}<Code>InternalError</Code><Message>try again</Message></Error>")
        self._answer(200, f'<DeleteResult xmlns="{XML}">{"".join(parts)}</DeleteResult>'.encode(), {})

    def _error(self, status: int, code: str, text: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode(), {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        head = self.command == "HEAD"
        for name, value in headers.items():
            if name.lower() not in _DROPPED and (head or name.lower() != "content-length"):
                self.send_header(name, value)
        if not head:
            self.send_header("Content-Length", str(len(body)))
        elif "Content-Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if not head:
            self.wfile.write(body)
