"""Files that list pipelines, in YAML or JSON, read strictly and without running anything in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.text import excess, kind_of, printable, shorten

_MOST_VALUES = 50_000
"""YAML is read slowly: so many take a few seconds."""
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "topics": "text or a list of texts",
    "group_id": "text, or an object {topic: group} of texts",
}


def read_pipelines(
    text: str, file: str, readers: Mapping[str, Callable[[Any, str], object]]
) -> list[dict[str, Any]]:
    """
    Return the entries of a file as plain values that were checked.

    :param text: the file's content.
    :param file: its name, which decides between JSON (``.json``) and YAML, and is in error texts.
    :param readers: check the value of each key that an entry may have.
    :raises UsageError: naming the file, the entry and the key.
    """
    try:
        entries = load_json(text, file) if file.endswith(".json") else _load_yaml(text, file)
    except OffsetsFormatError as error:
        raise UsageError(str(error)) from None
    if not isinstance(entries, list) or not entries:
        found = "nothing" if entries is None else kind_of(entries)
        raise UsageError(f"{file}: found {found}; expected a list of pipelines, with one in it at least")
    return [_entry(entry, f"{file}, entry {number}", readers) for number, entry in enumerate(entries, 1)]


def _entry(entry: object, where: str, readers: Mapping[str, Callable[[Any, str], object]]) -> dict[str, Any]:
    names = ", ".join(readers)
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: found {kind_of(entry)}; expected an object with keys of {names}")
    if isinstance(group := entry.get("group_id"), str):
        where = f"{where} ({shorten(group, 60)})"
    if unknown := sorted(set(entry) - set(readers)):
        found = ", ".join(shorten(key, 40) for key in unknown)
        raise UsageError(f"{where}: found the key {found}; expected keys of {names}")
    if "group_id" not in entry:
        raise UsageError(f"{where}: group_id is missing: name the consumer group")
    for key, value in entry.items():
        parts = _texts(key, value)
        if value is None or any(not part.strip() for part in parts or ()):
            raise UsageError(f"{where}: {key} is empty: give a value, or leave the key out")
        if parts is None:
            raise UsageError(f"{where}: {key}: found {kind_of(value)}; expected {_KINDS.get(key, 'text')}")
        if any("{{" in part or "{%" in part for part in parts):
            raise UsageError(f"{where}: {key} is a template; expected plain names, since nobody renders it")
        try:
            readers[key](value, key)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    return entry


def _texts(key: str, value: object) -> list[str] | None:
    """Return the texts of a value; ``None`` if it is of another type than its key takes."""
    parts: list[object] = [value]
    if isinstance(value, dict) and key == "group_id":
        parts = list(value.values())
    elif isinstance(value, list) and key == "topics":
        parts = value
    texts = [part for part in parts if isinstance(part, str)]
    return texts if len(texts) == len(parts) else None


def _load_yaml(text: str, file: str) -> object:
    if refusal := excess(file, text, ",{[\n", _MOST_VALUES):
        raise UsageError(refusal)
    try:
        # Nodes, and no objects: there is nothing in them that could be run.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _value(node, file, set())
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise UsageError(f"{file}: is not YAML: {printable(str(error.problem))}{line}") from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "it has control characters"
        raise UsageError(f"{file}: is not YAML: {reason}") from None


def _value(node: Any, file: str, seen: set[int]) -> object:
    """Return the plain value of a node."""
    where = f"{file}, line {node.start_mark.line + 1}"
    kind = node.tag.removeprefix(_TAG)
    if id(node) in seen or kind == "merge":
        raise UsageError(f"{where}: found an alias (*name or <<); expected values that are written out")
    seen.add(id(node))
    if kind == "seq":
        return [_value(item, file, seen) for item in node.value]
    if kind == "map":
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = _value(key_node, file, seen)
            if not isinstance(key, str):
                raise UsageError(f"{where}: found {kind_of(key)} as a key; expected text")
            if key in found:
                line = key_node.start_mark.line + 1
                raise UsageError(f"{file}, line {line}: key {shorten(repr(key))} occurs twice; keep one")
            found[key] = _value(value_node, file, seen)
        return found
    if kind in ("str", "null"):
        return None if kind == "null" else node.value
    raise UsageError(
        f"{where}: found {shorten(node.value) if isinstance(node.value, str) else 'a value'}, which YAML "
        f"reads as {shorten(kind)}; expected text: put it into quotes"
    )
