"""JSON that several viewers get: packed once, where Airflow would pack it for each of them."""

from __future__ import annotations

import gzip

from fastapi import Request, Response
from pydantic import BaseModel

_LEVEL = 5
"""Of Airflow's own middleware."""


def pack_model(found: BaseModel) -> bytes:
    """Return a model as packed JSON; of many partitions that takes a while."""
    return gzip.compress(found.model_dump_json().encode(), _LEVEL)


def packed_response(request: Request, body: bytes) -> Response:
    """Return a response with packed JSON, unpacked for a client that does not take it so."""
    # A response that has an encoding is left alone by Airflow's middleware.
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        body, headers = gzip.decompress(body), {"Vary": "Accept-Encoding"}
    return Response(body, headers=headers, media_type="application/json")
