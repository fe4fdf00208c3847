"""Serves the pages' HTML and the files that they load."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import HTTPException, Request, Response

SHELL = "offsets.html"
ROOT = b"{root}"
"""Placeholder in the shell for the relative path from the page to the prefix."""

_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class File:
    """A file that pages load."""

    data: bytes
    media_type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """Return the files by name; no other file on the disk can be requested."""
    found = {}
    for path in sorted(Path(__file__).with_name("static").iterdir()):
        if path.is_file():
            data = path.read_bytes()
            kind = _TYPES.get(path.suffix, "text/plain")
            found[path.name] = File(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


async def static_file(request: Request, name: str) -> Response:
    """Return a file that the pages load, or status 304 if it has not changed."""
    file = files().get(name)
    if file is None:
        raise HTTPException(404, "Not Found")
    # Revalidated each time, so that no browser runs an old script against new routes after an upgrade.
    headers = {"ETag": file.etag, "Cache-Control": "private, no-cache"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)


async def page(request: Request) -> Response:
    """Return the page; its script determines from the address what to show."""
    data = files()[SHELL].data
    # Counted in the address as the browser sees it, where a %2F is not a path separator.
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    prefix: str = request.scope.get("root_path", "")
    steps = raw.split(b"?")[0].count(b"/") - prefix.count("/") - 1
    return Response(data.replace(ROOT, b"../" * steps or b"./"), media_type="text/html")
