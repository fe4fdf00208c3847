"""The app behind the Offsets tab: its routes, their guards and its security headers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.base import BaseHTTPMiddleware

from airflow_kafka_offsets.ui.access import LOGGED_IN, check_frames, check_guards, new_rights
from airflow_kafka_offsets.ui.airflow_api import AirflowError
from airflow_kafka_offsets.ui.dags import Dags
from airflow_kafka_offsets.ui.live_client import FRESH, LiveClient
from airflow_kafka_offsets.ui.routes import dag_routes, user_routes
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response that does not set these headers itself."""

log = logging.getLogger(__name__)


def make_app() -> FastAPI:
    """Return the app; a SetupError if a route has no guard, or if this Airflow version has no tab."""
    check_frames()
    # Only the routes: no schema, so no documentation, and no redirects.
    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[LOGGED_IN],
        lifespan=_lifespan,
        exception_handlers={AirflowError: _unanswered, Exception: _failed},
    )
    app.state.live = LiveClient()
    app.state.rights = new_rights()
    app.state.dags = Dags()
    # The number of values bounds the memory: the values are used for five seconds only.
    app.state.histories = SingleFlightCache(FRESH, 200)
    app.include_router(user_routes)
    app.include_router(dag_routes)
    app.add_middleware(BaseHTTPMiddleware, dispatch=_add_headers)
    check_guards(app)
    return app


async def _add_headers(request: Request, respond: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await respond(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.live.close()


async def _unanswered(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return JSONResponse({"detail": str(error)}, 503)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("%s: %s", request.url.path, type(error).__name__)
    return JSONResponse({"detail": "Internal Server Error"}, 500, HEADERS)
