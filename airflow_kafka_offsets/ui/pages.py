"""Serves the pages' HTML and the files that they load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fastapi import HTTPException, Request, Response

SHELL = "offsets.html"
ROOT = b"{root}"
"""Placeholder in the shell for the relative path from the page to the prefix."""

_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def files() -> Mapping[str, tuple[bytes, str]]:
    """Return the data and media type of each file by name; no other file on the disk can be requested."""
    found = sorted(Path(__file__).with_name("static").iterdir())
    return {path.name: (path.read_bytes(), _TYPES.get(path.suffix, "text/plain")) for path in found}


async def static_file(name: str) -> Response:
    """Return a file that the pages load; no browser keeps it, which an upgrade would make an old one."""
    if name not in files():
        raise HTTPException(404, "Not Found")
    data, media_type = files()[name]
    return Response(data, media_type=media_type)


async def page(request: Request) -> Response:
    """Return the page; its script determines from the address what to show."""
    data, media_type = files()[SHELL]
    # Counted in the address as the browser sees it, where a %2F is not a path separator.
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    prefix: str = request.scope.get("root_path", "")
    steps = raw.split(b"?")[0].count(b"/") - prefix.count("/") - 1
    return Response(data.replace(ROOT, b"../" * steps or b"./"), media_type=media_type)
