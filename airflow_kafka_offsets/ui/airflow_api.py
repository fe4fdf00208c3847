"""Airflow's public REST API, asked inside the API server as the user whose request is answered."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import anyio
from anyio.to_thread import run_sync
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.text import is_plain

PAGE = 100
"""Entries of one answer; Airflow gives fewer if ``[api] maximum_page_limit`` is lower."""

INSTANCES = 25
"""
Task instances of one answer. On PostgreSQL the first question for 100 of all DAGs ended the API server of
Airflow 3.3.2 (a memory fault, also for plain requests without this package); 25 never did.
"""

DEADLINE = 60.0
"""Seconds after which a question has failed, with the wait for its turn."""

# A receipt that is read has up to 10 MB (MAX_SIZE), and takes more as text inside of JSON.
_MOST_BYTES = 20 << 20
_LARGE = 50_000
"""Bytes of an answer that is parsed outside of the event loop."""

_AIRFLOW = "kafka_offsets.airflow"
# The headers with a login; no other header of the viewer's request goes on.
_SENT = (b"authorization", b"cookie")

T = TypeVar("T")

log = logging.getLogger(__name__)


class AirflowError(Exception):
    """
    Airflow gave no answer; the text says why.

    :param status: of the answer, if it was an error.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class RefusedError(AirflowError):
    """The user may not read that, or his login has ended."""


class FindAirflow:
    """
    A root middleware that tells requests of the tab which app they were mounted in.

    What a plugin mounts is not told. A root middleware is the documented way to be called by that app; as the
    innermost one it has Airflow's routes with their own guards behind it, and no access log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with what :class:`AsUser` needs."""
        if scope["type"] == "http":
            scope[_AIRFLOW] = (self._app, scope["app"], scope.get("root_path", ""))
        await self._app(scope, receive, send)


class Turns:
    """
    Lets one question through at a time, so that Airflow's own pages are as quick as before.

    Where others wait, a question is followed by a pause as long as it took. What takes up to a burst in total
    needs no pause.

    :param share: of the time that questions may take.
    :param burst: seconds.
    """

    def __init__(self, share: float = 0.5, burst: float = 1.0) -> None:
        self._share = share
        self._burst = burst
        self._turn = asyncio.Lock()
        self._free = 0.0
        """When what was taken is paid back."""

    async def take(self, ask: Callable[[], Any]) -> Any:
        """Ask when it is our turn."""
        async with self._turn:
            if (pause := self._free - self._burst - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                return await ask()
            finally:
                took = time.monotonic() - began
                self._free = max(self._free, began) + took / self._share


@dataclass(frozen=True)
class AsUser:
    """
    Asks Airflow with the login of one request.

    :param identity: of the user, by which what he may see is remembered.
    """

    app: ASGIApp
    scope: Mapping[str, Any]
    turns: Turns
    identity: str

    @classmethod
    def for_request(cls, request: Request, user: Any, turns: Turns) -> AsUser:
        """Return what asks as the user of a request."""
        app, airflow, root_path = request.scope[_AIRFLOW]
        headers = [(name, value) for name, value in request.scope["headers"] if name in _SENT]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": request.scope.get("scheme", "http"),
            "root_path": root_path,
            "headers": headers,
            "client": request.scope.get("client"),
            "server": request.scope.get("server"),
            "app": airflow,
            # Airflow's middleware leaves the user there if it has just renewed his login.
            "state": dict(request.scope.get("state") or {}),
        }
        return cls(app, scope, turns, digest(headers, user.get_id(), user.get_name(), length=64))

    async def get(self, *steps: str, **parameters: Any) -> Any:
        """
        Return an answer of the API, parsed; ``None`` if there is no such thing.

        :param steps: of the path below ``/api/v2``.
        :raises RefusedError: if the user may not read it.
        :raises AirflowError: if there is no answer.
        """
        # A name must stay one step of the path; the tilde stands for all.
        if any(step in ("", ".", "..") or "/" in step or not is_plain(step) for step in steps):
            return None
        try:
            async with asyncio.timeout(DEADLINE):
                status, body = await self.turns.take(lambda: self._call(steps, parameters))
        except TimeoutError:
            raise AirflowError(f"Airflow's API has not answered within {DEADLINE:.0f} seconds") from None
        except AirflowError:
            raise
        except Exception as error:
            log.exception("Airflow's API failed: %s", "/".join(steps))
            raise AirflowError(f"Airflow's API failed ({type(error).__name__})") from None
        if status in (401, 403):
            raise RefusedError("Airflow's API refuses it to your login", status)
        if status == 404:
            return None
        if status != 200:
            raise AirflowError(f"Airflow's API answered with status {status}", status)
        return await run_in_thread(json.loads, body) if len(body) > _LARGE else json.loads(body)

    async def pages(self, most: int, *steps: str, of: str, **parameters: Any) -> list[Any]:
        """
        Return the entries of a list, at most so many.

        :param of: the key of the entries in the answer.
        """
        found: list[Any] = []
        while len(found) < most:
            limit = min(INSTANCES if of == "task_instances" else PAGE, most - len(found))
            answer = await self.get(*steps, limit=limit, offset=len(found), **parameters)
            entries = answer[of] if answer else []
            found += entries
            if not entries or len(found) >= (answer.get("total_entries") or 0):
                break
        return found

    async def _call(self, steps: tuple[str, ...], parameters: Mapping[str, Any]) -> tuple[int, bytes]:
        path = "/".join((f"{self.scope['root_path']}/api/v2", *steps))
        given = {name: value for name, value in parameters.items() if value is not None}
        query = urlencode(given, doseq=True)
        scope = {
            **self.scope,
            # A copy: Airflow's middleware writes to it.
            "state": dict(self.scope["state"]),
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": query.encode(),
        }
        status, size, parts = 0, 0, []
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # nobody leaves
            sent = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > _MOST_BYTES:
                    raise AirflowError(f"an answer of Airflow's API has more than {_MOST_BYTES >> 20} MB")

        await self.app(scope, receive, send)
        return status, b"".join(parts)


_limiters: dict[Any, anyio.CapacityLimiter] = {}


async def run_in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Do what takes a while outside of the event loop, one thing at a time: no thread of Airflow's waits."""
    loop = asyncio.get_running_loop()
    if loop not in _limiters:
        _limiters.clear()
        _limiters[loop] = anyio.CapacityLimiter(1)
    return await run_sync(work, *arguments, limiter=_limiters[loop])
