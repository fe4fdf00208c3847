"""Unique secrets, and a search for them in everything that a run writes, starts and leaves behind."""

import base64
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import psutil
from cryptography.hazmat.primitives import serialization

_TICK = 0.1
_LARGEST = 200_000_000
_SOON = 1_000_000


class Canaries:
    """
    Secrets by name, each of them unique; and where they are found, in any of the usual encodings.

    ``canaries("password")`` is always the same text.
    """

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._made.setdefault(name, f"Canary-{name}-{uuid.uuid4().hex}")

    def note(self, name: str, text: str) -> str:
        """Search for this text too, such as a line of a key."""
        self._made[name] = text
        return text

    def encrypted_key(self, key: bytes) -> tuple[str, str]:
        """Return a key encrypted and its password; both, and the plain key, are searched for."""
        loaded = serialization.load_pem_private_key(key, None)
        password = self("key-password")
        encryption = serialization.BestAvailableEncryption(password.encode())
        form = serialization.PrivateFormat.PKCS8
        pem = loaded.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
        self.note("key-pem", pem.splitlines()[2])
        plain = loaded.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
        self.note("plain-key", plain.splitlines()[2])
        return pem, password

    def found_in(self, data: str | bytes) -> list[str]:
        """Return the names of those that are in a text."""
        data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        return [name for name, text in self._made.items() if any(form in data for form in _forms(text))]

    def in_lines(self, file: Path, *, but: str) -> list[str]:
        """Return ``name: file`` for each line that holds one, but for lines with a text in them."""
        lines = (line for line in file.read_text(errors="replace").splitlines() if but not in line)
        return [f"{name}: {file}: {line[:200]}" for line in lines for name in self.found_in(line)]

    def in_files(self, *directories: Path, but: Iterable[str] = ()) -> list[str]:
        """
        Return ``name: file`` for each file below the directories that holds one.

        :param but: names of files in which they belong.
        """
        found: list[str] = []
        # os.walk() passes over a directory that is removed meanwhile, as Spark does when it ends.
        walks = (os.walk(directory) for directory in directories)
        for path in (Path(at, name) for walk in walks for at, _, names in walk for name in names):
            with suppress(OSError):
                if path.is_symlink() or not path.is_file() or path.name in but:
                    continue
                if path.stat().st_size < _LARGEST:
                    found += [f"{name}: {path}" for name in self.found_in(path.read_bytes())]
        return found


def _forms(text: str) -> set[bytes]:
    raw = text.encode()
    # What of it is the same in Base64 wherever it begins.
    middles = {base64.b64encode(b"\0" * pad + raw)[4:-8] for pad in range(3)}
    return {raw, quote(text, safe="").encode(), raw.hex().encode(), *middles}


class Seen(NamedTuple):
    leaks: set[str]
    """Where a canary was: the process's arguments or environment, or a file that others may read."""
    processes: set[str]
    """The first words of the command lines that were looked at."""
    private: set[str]
    """Names of files with a canary that only their owner could read."""


@contextmanager
def watching(canaries: Canaries, *temporary: Path, process: int | None = None) -> Iterator[Seen]:
    """
    Look at the arguments and the environment of all processes below one, and at what is in directories.

    :param temporary: where a file with a canary must be readable for its owner only, and gone at the end.
    :param process: by default this one.
    """
    seen, stop = Seen(set(), set(), set()), threading.Event()

    def look() -> None:
        while not stop.is_set():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process).children(recursive=True):
                    _look_at(canaries, child.pid, seen)
            for directory in temporary:
                _look_into(canaries, directory, seen)
            stop.wait(_TICK)

    thread = threading.Thread(target=look, name="canaries")
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
        seen.leaks.update(f"left: {found}" for found in canaries.in_files(*temporary))


def _look_at(canaries: Canaries, pid: int, seen: Seen) -> None:
    for what in ("cmdline", "environ"):
        with suppress(OSError):
            data = Path(f"/proc/{pid}/{what}").read_bytes()
            if what == "cmdline" and data:
                seen.processes.add(data[:4000].replace(b"\0", b" ").decode("utf-8", "replace"))
            seen.leaks.update(f"{name}: {what} of {_name(pid)}" for name in canaries.found_in(data))


def _look_into(canaries: Canaries, directory: Path, seen: Seen) -> None:
    for parent, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not Path(parent, name).is_symlink()]
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                state = path.stat()
                if state.st_size > _SOON or not canaries.found_in(path.read_bytes()):
                    continue
                if state.st_mode & 0o077:
                    seen.leaks.add(f"readable by others: {path}")
                else:
                    seen.private.add(path.name)


def _name(pid: int) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(psutil.Process(pid).name())
    return str(pid)
