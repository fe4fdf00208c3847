"""JSON responses that are compressed once for all viewers; Airflow would compress them for each viewer."""

from __future__ import annotations

import gzip

from fastapi import Request, Response
from pydantic import BaseModel

_LEVEL = 5
"""Compression level of Airflow's own middleware."""


def pack_model(found: BaseModel) -> bytes:
    """Return a model as compressed JSON, which takes a while for many partitions."""
    return gzip.compress(found.model_dump_json().encode(), _LEVEL)


def packed_response(request: Request, body: bytes) -> Response:
    """Return a response with compressed JSON, decompressed for a client that does not accept gzip."""
    # Airflow's middleware does not change a response that has an encoding.
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        body, headers = gzip.decompress(body), {"Vary": "Accept-Encoding"}
    return Response(body, headers=headers, media_type="application/json")
