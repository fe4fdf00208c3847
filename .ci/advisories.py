"""
Compares pinned versions with a clone of PyPA's advisory database.

It needs no network, unlike ``pip-audit``, and knows what was published up to the newest commit of the clone,
which may be bare::

    git clone https://github.com/pypa/advisory-database
    python .ci/advisories.py advisory-database constraints.txt

The exit status is 1 if an advisory is about a pinned version, or something could not be compared.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import VERSION_PATTERN, Version


def read_pins(text: str) -> list[tuple[str, Version]]:
    """Return names and versions of a constraints file, for all Python versions and platforms."""
    pins: list[tuple[str, Version]] = []
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        requirement = Requirement(line)
        (only,) = requirement.specifier
        if only.operator != "==":
            raise ValueError(f"{line!r} is not a pinned version")
        pins.append((canonicalize_name(requirement.name), Version(only.version)))
    return pins


def affects(advisory: Mapping[str, Any], name: str, version: Version) -> bool:
    """Decide by the rules of the OSV format whether a version is affected."""
    if "withdrawn" in advisory:
        return False
    for package in advisory["affected"]:
        if canonicalize_name(package["package"]["name"]) != name:
            continue
        ranges = [each["events"] for each in package.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
        listed = package.get("versions") or ()
        if not ranges and not listed:
            raise ValueError("it names no versions, only commits")
        if any(_same(each, version) for each in listed) or any(_inside(each, version) for each in ranges):
            return True
    return False


def _same(listed: str, version: Version) -> bool:
    # A number that is older than the rules for versions cannot be pinned.
    return re.fullmatch(VERSION_PATTERN, listed, re.VERBOSE | re.IGNORECASE) is not None and (
        Version(listed) == version
    )


def _inside(events: Sequence[Mapping[str, str]], version: Version) -> bool:
    inside = False
    found = ((kind, Version(at)) for event in events for kind, at in event.items())
    for kind, at in sorted(found, key=lambda event: event[1]):
        if kind == "introduced" and (version >= at or at == Version("0")):
            inside = True
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            inside = False
    return inside


def read_advisories(clone: Path, names: set[str]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Return path, package and content of the advisories on some packages in the newest commit of a clone."""
    with tarfile.open(fileobj=io.BytesIO(_git(clone, "archive", "HEAD", "vulns"))) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            name = canonicalize_name(path.parent.name)
            if path.suffix == ".yaml" and name in names and (file := archive.extractfile(member)):
                # Every scalar as its text: 3.10 is a version and no number.
                yield str(path), name, yaml.load(file, yaml.BaseLoader)  # noqa: S506


def _git(clone: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=True).stdout  # noqa: S607


def _finding(path: str, advisory: Mapping[str, Any], name: str, version: Version) -> str | None:
    try:
        found = f"({', '.join(advisory.get('aliases', ()))})" if affects(advisory, name, version) else None
    except (KeyError, TypeError, ValueError) as error:
        found = f"cannot be compared: {error!r}"
    return found and f"{name} {version}: {path} {found}"


def main(clone: Path, constraints: Path) -> None:
    """Print the advisories on pinned versions."""
    pins = read_pins(constraints.read_text())
    newest = datetime.fromisoformat(_git(clone, "log", "-1", "--format=%cI").decode().strip())
    advisories = list(read_advisories(clone, {name for name, _ in pins}))
    findings = [
        _finding(path, advisory, name, version)
        for path, about, advisory in advisories
        for name, version in pins
        if name == about
    ]
    found = list(filter(None, findings))
    age = (datetime.now(timezone.utc) - newest).days
    print(*found, sep="\n", end="\n" * bool(found))
    print(f"{len(pins)} pinned versions, {len(advisories)} advisories on these packages, {len(found)} apply.")
    print(f"The database's newest commit is of {newest:%Y-%m-%d}, {age} days ago: nothing later is known.")
    if found or not advisories:
        sys.exit(1)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
