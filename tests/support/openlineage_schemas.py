"""Checks OpenLineage facets against the schemas that the documentation publishes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs" / "spec" / "facets"

_OPENLINEAGE = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
_BASE = {"type": "object", "required": ["_producer", "_schemaURL"]}
_URI = {"_producer": {"type": "string"}, "_schemaURL": {"type": "string"}}
_KINDS = ("RunFacet", "InputDatasetFacet")


def site() -> str:
    """Return the address of the documentation."""
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
    (address,) = (line.removeprefix("site_url: ") for line in lines if line.startswith("site_url: "))
    return address


def schemas() -> dict[str, dict[str, Any]]:
    """Return address -> schema of each facet that is published."""
    address = site()
    return {
        f"{address}{file.relative_to(ROOT / 'docs')}": json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(SPEC.rglob("*.json"))
    }


def check_facet(key: str, facet: Mapping[str, Any]) -> None:
    """Fail unless a facet fits the schema that it names, and has no property that this does not describe."""
    address, _, name = facet["_schemaURL"].partition("#/$defs/")
    published = schemas()
    schema = published[address]
    assert schema["properties"] == {key: {"$ref": f"#/$defs/{name}"}}
    spec = {"$schema": schema["$schema"], "$defs": {kind: {**_BASE, "properties": _URI} for kind in _KINDS}}
    resources = {_OPENLINEAGE: spec, **published}
    registry: Registry[Any] = Registry().with_resources(
        (uri, Resource.from_contents(contents)) for uri, contents in resources.items()
    )
    Draft202012Validator(schema, registry=registry).validate({key: facet})
    described = schema["$defs"][name]["allOf"][1]
    assert not [*_undescribed(facet, described, tuple(_URI))]


def check_event(event: Mapping[str, Any]) -> set[str]:
    """Check all facets of this package in an event, and return their keys."""
    facets = [*event["run"]["facets"].items()]
    for each in event.get("inputs", ()):
        facets += each.get("inputFacets", {}).items()
    own = [(key, facet) for key, facet in facets if key.startswith("kafkaOffsets_")]
    for key, facet in own:
        check_facet(key, facet)
    return {key for key, _ in own}


def _undescribed(value: Any, schema: Mapping[str, Any], known: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _undescribed(each, schema["items"])
    elif isinstance(value, dict):
        for name, part in value.items():
            if name in schema["properties"]:
                yield from _undescribed(part, schema["properties"][name])
            elif name not in known:
                yield name
