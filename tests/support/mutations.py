"""Reads and applies the mutations: each is a file with a header and a unified diff of one hunk or more."""

import re
from pathlib import Path
from typing import NamedTuple

PATCHES = Path(__file__).parents[1] / "mutations/patches"

_HEADER = re.compile(r"(Breaks|Caught by|Survives): (.+)")


class MutationError(Exception):
    """A mutation that is not one, or does not fit the code any more."""


class Mutation(NamedTuple):
    """One defect that tests must find."""

    name: str
    breaks: str
    """What is broken, in one sentence."""
    tests: tuple[str, ...]
    """Tests of which at least one must fail, as pytest names them."""
    survives: str
    """Why no test can find it; empty if one must."""
    path: str
    """The file that it changes."""
    hunks: tuple[tuple[str, str], ...]
    """What is replaced, and by what."""

    def apply(self, text: str) -> str:
        """
        Return the text of the file with the defect in it, wherever its lines are by now.

        :raises MutationError: if the lines of a hunk are not there, or more than once.
        """
        for before, after in self.hunks:
            if (found := text.count(before)) != 1:
                raise MutationError(f"{self.name}: {self.path} has this {found} times, not once:\n{before}")
            text = text.replace(before, after)
        return text


def read_mutation(path: Path) -> Mutation:
    """Read one file."""
    header, mark, diff = path.read_text(encoding="utf-8").partition("--- a/")
    fields: dict[str, list[str]] = {"Breaks": [], "Caught by": [], "Survives": []}
    for line in header.splitlines():
        field = _HEADER.fullmatch(line)
        if field is None:
            raise MutationError(f"{path.name}: {line!r} is no line of a header")
        fields[field[1]].append(field[2])
    head, *hunks = re.split(r"(?m)^@@ .*\n", mark + diff)
    names = re.fullmatch(r"--- a/(.+)\n\+\+\+ b/\1\n", head)
    if names is None or not hunks or len(fields["Breaks"]) != 1 or not fields["Caught by"]:
        raise MutationError(f"{path.name}: expected 'Breaks:', 'Caught by:' and the diff of one file")
    return Mutation(
        path.stem,
        fields["Breaks"][0],
        tuple(fields["Caught by"]),
        " ".join(fields["Survives"]),
        names[1],
        tuple((_side(hunk, "-"), _side(hunk, "+")) for hunk in hunks),
    )


def all_mutations() -> list[Mutation]:
    """Read all of them, in the order of their names."""
    return [read_mutation(path) for path in sorted(PATCHES.glob("*.patch"))]


def _side(hunk: str, sign: str) -> str:
    lines = hunk.splitlines(keepends=True)
    return "".join(line[1:] for line in lines if line[0] in (" ", sign))
