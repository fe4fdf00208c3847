"""Addresses of the Offsets tab, for the API server and for tasks that link to the tab."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

PREFIX = "/kafka-offsets"
"""Path of the pages, below the path of ``[api] base_url``."""


def is_on(conf: Any) -> bool:
    """Return whether the API server shows the tab: ``[kafka_offsets] tab``."""
    return bool(conf.getboolean("kafka_offsets", "tab", fallback=True))


def root(conf: Any) -> str:
    """Return the path of the pages, without a host: behind a proxy only the browser knows the host."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PREFIX


def page(conf: Any, *parts: str) -> str:
    """Return the path of a page; each part is escaped."""
    return "/".join([root(conf), *(quote(part, safe="") for part in parts)])
