"""Calls Airflow's public REST API inside the API server, with the login of the current request."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
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
"""Entries of one response; Airflow returns fewer if ``[api] maximum_page_limit`` is lower."""

INSTANCES = 25
"""
Task instances of one response. On PostgreSQL, the first request for 100 instances of all DAGs crashed the API
server of Airflow 3.3.2 (a memory fault, even for plain requests without this package); 25 never did.
"""

DEADLINE = 60.0
"""Seconds after which a request fails, including the time that it waits for its turn."""

# A receipt has up to 10 MB (MAX_SIZE), and takes more as text inside JSON.
_MOST_BYTES = 20 << 20

_AIRFLOW = "kafka_offsets.airflow"
# The headers with a login. No other header of the viewer's request is passed on.
_SENT = (b"authorization", b"cookie")

T = TypeVar("T")

log = logging.getLogger(__name__)


class AirflowError(Exception):
    """A call to Airflow's API failed; the text gives the reason."""


class RefusedError(AirflowError):
    """The user has no permission, or the login has expired."""


class AmbiguousError(AirflowError):
    """The address of a task in a loop (Airflow 3.4) matches several instances of a run."""


class TooLargeError(AirflowError):
    """The answer is larger than any that the tab needs."""


class FindAirflow:
    """
    A root middleware that adds Airflow's app to the requests of the tab.

    Airflow does not pass its app to the apps that a plugin mounts. A root middleware is the documented way to
    get it. This middleware is the innermost one, so it calls Airflow's routes with their own guards, but
    without an access log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with the values that :class:`AsUser` needs."""
        if scope["type"] == "http":
            scope[_AIRFLOW] = (self._app, scope["app"], scope.get("root_path", ""))
        await self._app(scope, receive, send)


class Turns:
    """
    Lets one piece of the tab's work through at a time, so that Airflow's own pages stay fast: a call to
    Airflow's API, or work in a thread, which delays the event loop just as much (there is one GIL).

    After a piece of work, the next one waits until the work takes no more than a share of the time. Work that
    takes up to a burst in total does not wait.

    :param share: share of the time that the work may take.
    :param burst: seconds of work without a wait.
    """

    def __init__(self, share: float = 0.33, burst: float = 1.0) -> None:
        self._share = share
        self._burst = burst
        self._turn = asyncio.Lock()
        self._free = 0.0
        """Time at which the share of the time is balanced again."""

    async def take(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work when its turn comes."""
        async with self._turn:
            if (pause := self._free - self._burst - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                return await work()
            finally:
                took = time.monotonic() - began
                self._free = max(self._free, began) + took / self._share


@dataclass(frozen=True)
class AsUser:
    """
    Client of Airflow's API with the login of one request.

    :param identity: identity of the user, used as key of the cached permissions.
    """

    app: ASGIApp
    scope: Mapping[str, Any]
    identity: str

    @classmethod
    def for_request(cls, request: Request, user: Any) -> AsUser:
        """Return a client with the login of a request."""
        app, airflow, root_path = request.scope[_AIRFLOW]
        headers = [(name, value) for name, value in request.scope["headers"] if name in _SENT]
        same = ("type", "asgi", "http_version", "scheme", "client", "server")
        scope = {
            **{name: request.scope[name] for name in same if name in request.scope},
            "method": "GET",
            "root_path": root_path,
            "headers": headers,
            "app": airflow,
            # Airflow's middleware puts the user here if it has just renewed the login.
            "state": dict(request.scope.get("state") or {}),
        }
        return cls(app, scope, digest(headers, user.get_id(), user.get_name(), length=64))

    async def get(self, *steps: str, **parameters: Any) -> Any:
        """
        Return the parsed response of the API; ``None`` if the resource does not exist.

        :param steps: parts of the path below ``/api/v2``.
        """
        # A name must stay one part of the path.
        if any(step in ("", ".", "..") or "/" in step or not is_plain(step) for step in steps):
            return None
        try:
            async with asyncio.timeout(DEADLINE):
                status, body = await turns().take(lambda: self._call(steps, parameters))
        except TimeoutError:
            raise AirflowError(f"Airflow's API has not answered within {DEADLINE:.0f} seconds") from None
        except AirflowError:
            raise
        except Exception as error:
            log.exception("Airflow's API failed: %s", "/".join(steps))
            raise AirflowError(f"Airflow's API failed ({type(error).__name__})") from None
        if status in (401, 403):
            raise RefusedError("Airflow's API refuses it to your login")
        if status == 404:
            return None
        if status != 200:
            kind = AmbiguousError if status in (400, 409) else AirflowError
            raise kind(f"Airflow's API answered with status {status}")
        # Not in a thread: Python's json lets no other thread run meanwhile.
        return json.loads(body)

    async def pages(self, most: int, *steps: str, of: str, **parameters: Any) -> list[Any]:
        """Return the first entries of a list, at most ``most``; ``of`` is their key in the response."""
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
            # A copy, because Airflow's middleware writes to it.
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
                await asyncio.Event().wait()  # the client never disconnects
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
                    raise TooLargeError(f"an answer of Airflow's API has more than {_MOST_BYTES >> 20} MB")

        await self.app(scope, receive, send)
        return status, b"".join(parts)


_turns: dict[asyncio.AbstractEventLoop, Turns] = {}


def turns() -> Turns:
    """Return the turns of all work in the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns.clear()
        _turns[loop] = Turns()
    return _turns[loop]


async def run_in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run slow work outside the event loop when its turn comes, without using Airflow's threads."""
    return await turns().take(lambda: run_sync(work, *arguments, limiter=anyio.CapacityLimiter(1)))
