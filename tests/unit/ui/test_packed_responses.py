"""A body that several viewers get is packed once."""

import gzip
import json

import pytest
from starlette.requests import Request

from airflow_kafka_offsets.ui.routes import gzip_json, packed_response


@pytest.mark.parametrize(
    ("accepted", "encoding"), [("gzip, deflate, br", "gzip"), ("identity", None), (None, None)]
)
def test_a_client_gets_what_it_takes(accepted, encoding):
    headers = [] if accepted is None else [(b"accept-encoding", accepted.encode())]
    body = gzip_json({"text": "ü" * 2_000, "share": float("nan")})

    response = packed_response(Request({"type": "http", "headers": headers}), body)

    sent = gzip.decompress(response.body) if encoding else response.body
    assert json.loads(bytes(sent)) == {"text": "ü" * 2_000, "share": None}
    assert response.headers.get("content-encoding") == encoding
    assert response.headers["content-length"] == str(len(response.body))
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["content-type"] == "application/json"
