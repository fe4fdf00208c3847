"""Strict reader of files that list pipelines, in YAML or JSON; it never runs code from the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import yaml

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import as_usage_error, load_json
from airflow_kafka_offsets.model.parameters import has_template
from airflow_kafka_offsets.model.text import describe_type, escape_controls, join_first, shorten, size_error
from airflow_kafka_offsets.model.wording import parameter_text

_MOST_VALUES = 50_000
"""Largest number of values in YAML; reading them takes a few seconds."""
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "topics": "text or a list of texts",
    "group_id": "text, or an object {topic: group} of texts",
    "mirror": "an object of texts that names the mirror and its topics",
}
_OWN = ("group_id", "checkpoint_location")
"""Keys that differ in each pipeline, so that ``defaults`` must not have them."""

Readers: TypeAlias = Mapping[str, Callable[[Any, str], object]]
"""Key of an entry -> the parser that checks its value."""


def read_entries(text: str, file: str, parsers: Readers) -> list[dict[str, Any]]:
    """
    Return the checked entries of a file, each with the file's defaults.

    The file is a list of entries, or an object with ``pipelines`` (this list) and ``defaults``. An entry
    without ``checkpoint_location`` gets neither the default ``checkpoint_conn_id`` nor ``mirror``.

    :param file: the file's name, for error texts; ``.json`` means JSON, any other extension YAML.
    :raises UsageError: the text names the file, the entry and the key.
    """
    with as_usage_error():
        content = (
            load_json(text, file, "a list of pipelines") if file.endswith(".json") else _load_yaml(text, file)
        )
    defaults: dict[str, Any] = {}
    entries, where = content, file
    if isinstance(content, dict):
        _check_keys(content, file, ("defaults", "pipelines"), "a list of pipelines, or ")
        entries, where = content.get("pipelines"), f"{file}, pipelines"
        if "defaults" in content:
            shared = {name: reader for name, reader in parsers.items() if name not in _OWN}
            defaults = _checked(content["defaults"], f"{file}, defaults", shared)
    if not isinstance(entries, list) or not entries:
        found = "nothing" if entries is None else describe_type(entries)
        raise UsageError(f"{where}: found {found}; expected a list with at least one pipeline")
    checked = [_entry(entry, f"{file}, entry {number}", parsers) for number, entry in enumerate(entries, 1)]
    of_groups = {key: each for key, each in defaults.items() if key not in ("checkpoint_conn_id", "mirror")}
    return [{**(defaults if "checkpoint_location" in entry else of_groups), **entry} for entry in checked]


def _entry(entry: object, where: str, parsers: Readers) -> dict[str, Any]:
    if isinstance(entry, dict) and isinstance(group := entry.get("group_id"), str):
        where = f"{where} ({shorten(group, 60)})"
    checked = _checked(entry, where, parsers)
    if "group_id" not in checked:
        missing = parameter_text("group_id")
        raise UsageError(f"{where}: {missing} is missing: name the consumer group", parameter="group_id")
    if "mirror" in checked and "checkpoint_location" not in checked:
        location = parameter_text("checkpoint_location")
        raise UsageError(f"{where}: mirror has no effect without {location}", parameter="mirror")
    return checked


def _check_keys(found: Mapping[str, Any], where: str, names: Iterable[str], instead: str = "") -> None:
    if unknown := sorted(set(found) - set(names)):
        keys = join_first(unknown, show=lambda key: shorten(key, 40))
        raise UsageError(f"{where}: found the key {keys}; expected {instead}keys of {', '.join(names)}")


def _checked(found: object, where: str, parsers: Readers) -> dict[str, Any]:
    if not isinstance(found, dict):
        kind = "nothing" if found is None else describe_type(found)
        raise UsageError(f"{where}: found {kind}; expected an object with keys of {', '.join(parsers)}")
    _check_keys(found, where, parsers)
    for key, value in found.items():
        parts = _texts(key, value)
        if value is None or any(not part.strip() for part in parts or ()):
            raise UsageError(f"{where}: {key} is empty: give a value, or leave the key out")
        if parts is None:
            raise UsageError(
                f"{where}: {key}: found {describe_type(value)}; expected {_KINDS.get(key, 'text')}"
            )
        if any(map(has_template, parts)):
            raise UsageError(
                f"{where}: {key} is a template; expected plain names, because templates in this file are not "
                "rendered"
            )
        try:
            parsers[key](value, key)
        except UsageError as error:
            raise UsageError(f"{where}: {error}", parameter=key) from None
    return found


def _texts(key: str, value: object) -> list[str] | None:
    """Return the texts in a value; ``None`` if its key does not accept a value of this type."""
    parts: list[object] = [value]
    if isinstance(value, dict) and key == "group_id":
        parts = list(value.values())
    elif isinstance(value, list) and key == "topics":
        parts = value
    elif isinstance(value, dict) and key == "mirror":
        names = value.get("topics", {})
        plain = [each for name, each in value.items() if name != "topics"]
        parts = [*plain, *(names.values() if isinstance(names, dict) else [names])]
    texts = [part for part in parts if isinstance(part, str)]
    return texts if len(texts) == len(parts) else None


def _load_yaml(text: str, file: str) -> object:
    if refusal := size_error(file, text, ",{[\n", _MOST_VALUES):
        raise UsageError(refusal)
    try:
        # Nodes instead of objects: no code of the file can run.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _value(node, file, set())
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise UsageError(f"{file}: is not YAML: {escape_controls(str(error.problem))}{line}") from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "it has control characters"
        raise UsageError(f"{file}: is not YAML: {reason}") from None


def _value(node: Any, file: str, seen: set[int]) -> object:
    where = f"{file}, line {node.start_mark.line + 1}"
    kind = node.tag.removeprefix(_TAG)
    if id(node) in seen or kind == "merge":
        raise UsageError(f"{where}: found an alias (*name or <<); expected values that are written out")
    seen.add(id(node))
    if kind == "seq" and isinstance(node, yaml.SequenceNode):
        return [_value(item, file, seen) for item in node.value]
    if kind == "map" and isinstance(node, yaml.MappingNode):
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = _value(key_node, file, seen)
            if not isinstance(key, str):
                raise UsageError(f"{where}: found {describe_type(key)} as a key; expected text")
            if key in found:
                line = key_node.start_mark.line + 1
                raise UsageError(f"{file}, line {line}: key {shorten(repr(key))} occurs twice; keep one")
            found[key] = _value(value_node, file, seen)
        return found
    if kind in ("str", "null") and isinstance(node, yaml.ScalarNode):
        return None if kind == "null" else node.value
    raise UsageError(
        f"{where}: found {shorten(node.value) if isinstance(node.value, str) else 'a value'}, which YAML "
        f"reads as {shorten(kind)}; expected text: put it into quotes"
    )
