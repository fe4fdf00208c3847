"""
The types of the public API, as a user's type checker sees them.

`dag_code.py` and `job_code.py` are right, `wrong_types.py` is wrong in every line with an `ignore`. Where a
type is loosened or gone, mypy of the tree, which CI runs, reports their lines.
"""

import ast
import inspect
import re
from pathlib import Path

import airflow_kafka_offsets
import airflow_kafka_offsets.spark
from airflow_kafka_offsets.assets import create_asset
from airflow_kafka_offsets.kafka.client import OffsetsClient

HERE = Path(__file__).parent

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


def test_the_types_are_published_with_the_package():
    assert Path(airflow_kafka_offsets.__file__).with_name("py.typed").is_file()
