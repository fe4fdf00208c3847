"""
The types of the public API, as a user's type checker sees them.

`dag_code.py` and `job_code.py` are right, `wrong_types.py` is wrong in every line with an `ignore`. mypy
checks them against a copy of the package: tests break the copy, and mypy has to notice.
"""

import ast
import inspect
import re
import shutil
from pathlib import Path

import pytest
from mypy import api

import airflow_kafka_offsets
import airflow_kafka_offsets.spark
from airflow_kafka_offsets.assets import create_asset
from airflow_kafka_offsets.kafka.client import OffsetsClient

HERE = Path(__file__).parent
FILES = [HERE / "dag_code.py", HERE / "job_code.py", HERE / "wrong_types.py"]

# As in a user's project, but for libraries that take mypy half a minute: what they export is Any here.
CONFIGURATION = """
[mypy]
python_version = 3.11
strict = True
explicit_package_bases = True
mypy_path = {path}
cache_dir = {path}/.cache

[mypy-confluent_kafka.*,croniter.*,fsspec.*,kafka.*,py4j.*,pyspark.*,yaml.*]
follow_imports = skip
ignore_missing_imports = True
"""


class Checker:
    """Runs mypy on the files, against a copy of the package."""

    def __init__(self, directory):
        self.package = directory / "airflow_kafka_offsets"
        shutil.copytree(
            Path(airflow_kafka_offsets.__file__).parent,
            self.package,
            ignore=shutil.ignore_patterns("__pycache__", "static"),
        )
        self.configuration = directory / "mypy.ini"
        self.configuration.write_text(CONFIGURATION.format(path=directory))

    def errors(self):
        found, trouble, _ = api.run(["--config-file", str(self.configuration), *map(str, FILES)])
        assert not trouble
        return [line for line in found.splitlines() if ": error: " in line]

    def errors_after(self, module, before, after):
        """What mypy says once a line of a module is another one."""
        file = self.package / module
        text = file.read_text(encoding="utf-8")
        assert before in text
        try:
            file.write_text(text.replace(before, after), encoding="utf-8")
            return self.errors()
        finally:
            file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def checker(tmp_path_factory):
    return Checker(tmp_path_factory.mktemp("typed"))


@pytest.mark.long  # mypy of the whole tree finds the same, and CI runs it
def test_the_public_types_are_as_users_use_them(checker):
    assert checker.errors() == []


LOOSENED = [
    (
        "operators/commit.py",
        "offsets: Mapping[str, Mapping[str, int]] | str | XComArg | None = None,",
        "offsets: Any = None,",
        "wrong_types.py",
    ),
    ("pipeline.py", "def asset(self) -> Asset:", "def asset(self) -> Any:", "dag_code.py"),
    ("spark/stores.py", "    ) -> bool:", "    ) -> Any:", "job_code.py"),
    ("operators/commit.py", "allow_rewind: bool | str = False,", "", "wrong_types.py"),
    (
        "operators/restore.py",
        'restore_when: RestoreWhen | str = "failed"',
        'when: str = "failed"',
        "wrong_types.py",
    ),
    (
        "operators/reset.py",
        "def execute(self, context: Context) -> dict[str, Any]:",
        "def execute(self, context: Context) -> Any:",
        "dag_code.py",
    ),
    (
        "triggers/refusable.py",
        "def defer_refusal(init: Init) -> Init:",
        "def defer_refusal(init: Any) -> Any:",
        "wrong_types.py",
    ),
    ("hooks/offsets.py", ") -> dict[str, dict[str, int | None]]:", ") -> dict[str, Any]:", "dag_code.py"),
    ("spark/__init__.pyi", "as starting_offsets", "as _starting_offsets", "job_code.py"),
    ("__init__.pyi", "as TopicReachedSensor", "as _TopicReachedSensor", "dag_code.py"),
    (
        "errors.py",
        "class BrokerError(KafkaOffsetsError):",
        "class BrokerError(Exception):",
        "dag_code.py",
    ),
]
"""Changes that mypy must notice, each in a run of its own."""


@pytest.mark.long
@pytest.mark.parametrize(("module", "before", "after", "found"), LOOSENED)
def test_a_type_that_is_loosened_or_gone_is_found(checker, module, before, after, found):
    assert found in " ".join(checker.errors_after(module, before, after))


def test_the_types_are_published_with_the_package(checker):
    assert (checker.package / "py.typed").is_file()


# What the page "Python API" lists: the constructors of classes, and functions.
PUBLIC = {
    name: getattr(module, name)
    for module in (airflow_kafka_offsets, airflow_kafka_offsets.spark)
    for name in module.__all__
} | {"OffsetsClient": OffsetsClient, "create_asset": create_asset}

# An error's text and flag, a window's parts, which a plan gives, and a certificate's, which an audit gives.
NOT_BY_USERS = {"Certificate", "KafkaOffsetsError", "OffsetWindow"}

# Of types that mypy does not look into here, or of none.
UNTYPED = {("SparkCheckpoint", "fs"), ("audit_window", "df")}


def wrong_parameters():
    """Which parameters of what is called have a value that mypy must refuse."""
    text = (HERE / "wrong_types.py").read_text(encoding="utf-8")
    refused = {number for number, line in enumerate(text.splitlines(), 1) if "ignore[arg-type]" in line}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = re.split(r"\W", ast.unparse(node.func))[-1]
            yield from ((name, each.arg) for each in node.keywords if each.value.lineno in refused)


def parameters():
    for name, public in PUBLIC.items():
        if name not in NOT_BY_USERS:
            for each in inspect.signature(public).parameters.values():
                if each.kind != each.VAR_KEYWORD and "Any" != each.annotation != "SparkSession":
                    yield name, each.name


def test_every_public_parameter_is_tried_with_a_wrong_type():
    unneeded = {(name, parameter) for name, parameter in parameters() if parameter == "spark"}
    assert set(parameters()) - set(wrong_parameters()) - UNTYPED - unneeded == set()
