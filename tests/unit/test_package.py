"""What has to hold of the package as a whole."""

import ast
import importlib
import inspect
import json
import pkgutil
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator

import airflow_kafka_offsets.spark
from airflow_kafka_offsets import errors
from airflow_kafka_offsets.provider_info import get_provider_info

ROOT = Path(airflow_kafka_offsets.__file__).parent


def test_a_public_name_is_exported_by_the_package_too():
    for name in airflow_kafka_offsets.__all__:
        assert getattr(airflow_kafka_offsets, name).__name__ == name
        assert name in dir(airflow_kafka_offsets)


def test_type_checkers_see_the_exports_that_there_are():
    stub = ast.parse(Path(airflow_kafka_offsets.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    stubbed = {alias.name: f"{node.module}" for node in imports for alias in node.names}
    there = {name: getattr(airflow_kafka_offsets, name).__module__ for name in airflow_kafka_offsets.__all__}
    assert stubbed == there


def test_the_root_exports_each_operator_and_sensor_so_that_the_provider_info_names_its_module():
    classes = {
        each
        for room in ("operators", "sensors")
        for module in pkgutil.iter_modules([str(ROOT / room)], f"airflow_kafka_offsets.{room}.")
        for each in vars(importlib.import_module(module.name)).values()
        if inspect.isclass(each) and issubclass(each, BaseOperator) and each.__module__ == module.name
    }
    bases = {base for each in classes for base in each.__mro__[1:]}
    assert {each.__name__ for each in classes - bases} <= set(airflow_kafka_offsets.__all__)


@pytest.mark.parametrize("package", [airflow_kafka_offsets, airflow_kafka_offsets.spark])
def test_a_name_that_is_not_exported_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="has no attribute 'read_windows'"):
        package.read_windows  # noqa: B018


def test_the_provider_info_names_modules_that_are_there():
    info = get_provider_info()
    assert info["package-name"] == "airflow-kafka-offsets"
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)


def test_the_provider_info_names_guides_and_a_logo_that_are_there():
    (integration,) = get_provider_info()["integrations"]
    for path in [*integration["how-to-guide"], integration["logo"]]:
        assert ROOT.parent.joinpath(path.removeprefix("/")).is_file(), path


def test_the_provider_info_fits_airflows_schema():
    jsonschema = pytest.importorskip("jsonschema")
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    assert spec.submodule_search_locations
    airflow = spec.submodule_search_locations[0]
    schema = json.loads((Path(airflow) / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_module_says_what_it_is_for():
    for module in pkgutil.walk_packages([str(ROOT)], "airflow_kafka_offsets."):
        spec = importlib.util.find_spec(module.name)
        assert spec is not None
        assert spec.origin is not None
        first = Path(spec.origin).read_text().lstrip()
        assert first.startswith(('"""', "#!")), module.name


def test_the_errors_docstring_draws_every_error():
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            assert name in errors.__doc__, name
