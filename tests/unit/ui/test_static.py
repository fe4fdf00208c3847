"""The files of the Offsets tab's pages, and how a body that several viewers get is sent."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from starlette.requests import Request

import airflow_kafka_offsets
from airflow_kafka_offsets.ui.routes import gzip_json, packed_response

ROOT = Path(airflow_kafka_offsets.__file__).parents[1]
STATIC = ROOT / "airflow_kafka_offsets" / "ui" / "static"
OWN = [file for file in sorted(STATIC.iterdir()) if not file.name.startswith("uPlot")]

(SITE,) = re.findall(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
RUNBOOK = f'const RUNBOOK = "{SITE}runbook/";'


def test_the_chart_library_is_the_published_one_with_its_licence():
    lines = (STATIC / "uPlot.sha256").read_text().splitlines()
    sums = {name: digest for digest, name in map(str.split, lines)}
    assert set(sums) == {"uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"}
    for name, expected in sums.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == expected, name
    assert "MIT License" in (STATIC / "uPlot.LICENSE").read_text()


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_the_pages_hold_to_their_security_policy(file):
    text = file.read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
    assert not re.findall(r"\beval\(|new Function", text)
    assert not re.findall(r"setAttribute\(\s*[\"'](?:style|on)", text)
    if file.suffix == ".html":
        assert not re.findall(r"<script(?![^>]* src=)[^>]*>|<style|\sstyle=|\son\w+=", text)
    # No other host, except in the link to the runbook.
    for allowed in ("http://www.w3.org/2000/svg", RUNBOOK):
        text = text.replace(allowed, "")
    assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w", text)


def test_no_script_is_long():
    assert [file.name for file in OWN if len(file.read_text().splitlines()) > 350] == []


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
