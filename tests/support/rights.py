"""The table of rights in the documentation, and what becomes of a user who lacks one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from airflow_kafka_offsets.local.secured import Grant

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "security.md"
_ROW = re.compile(
    r"^\| (?P<what>.*`.*) \| (?P<group>[A-Za-z, ]*)\| (?P<topic>[A-Za-z, ]*)\| (?P<cluster>[A-Za-z, ]*)\|$"
)


class Lacking(NamedTuple):
    """A right that is taken away, and the lesser one that is left in its place, if any."""

    right: Grant
    left: Grant | None

    def __str__(self) -> str:
        rest = f", {self.left.operation} is left" if self.left else ""
        return f"without {self.right.operation} on the {self.right.resource}{rest}"


def rights_table() -> dict[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the page's table: names in code -> what is granted on, "group", "topic", "cluster" -> rights."""
    section = PAGE.read_text(encoding="utf-8").partition("## Rights on the broker")[2].partition("\n## ")[0]
    return {
        tuple(re.findall(r"`([^`]+)`", row["what"])): {
            on: tuple(re.findall(r"\w+", row[on])) for on in ("group", "topic", "cluster")
        }
        for row in map(_ROW.match, section.splitlines())
        if row
    }


def rights_of(use: str, group: str, topic: str) -> list[Grant]:
    """Return the rights that the table has for something, on a group and a topic."""
    names = {"group": group, "topic": topic, "cluster": "*"}
    (row,) = (rights for uses, rights in rights_table().items() if use in uses)
    return [Grant(on, names[on], right) for on, rights in row.items() for right in rights]


def each_lacking(rights: list[Grant]) -> Iterator[Lacking]:
    """Go through the rights that may be missing, alone and with the lesser right that each includes."""
    for right in rights:
        yield Lacking(right, None)
        if right.operation in {"Read", "Delete"}:
            yield Lacking(right, right._replace(operation="Describe"))


def is_named(lacking: Lacking, text: str) -> bool:
    """Return whether an error names the right that is missing."""
    on = {"group": "the group", "topic": "the topics", "cluster": "the cluster"}[lacking.right.resource]
    right = lacking.right.operation
    # Where nothing is left, the first call fails by Describe, which Read includes.
    included = (
        rf"Describe on {on} \((.*; )?{right} includes it, and is needed " if lacking.left is None else "(?!)"
    )
    return bool(re.search(rf"grant it ({right} on {on}|{included})", text))
