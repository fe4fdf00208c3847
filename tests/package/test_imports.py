"""What is imported when, and what works without a library: each test in a copy of one Python."""

import ast
import json
import os
import pkgutil
from importlib import import_module
from pathlib import Path

import airflow.sdk
import pytest
from warm_python import WarmPython

import airflow_kafka_offsets
from airflow_kafka_offsets import spark

PACKAGE = Path(airflow_kafka_offsets.__file__).parent
EXAMPLES = PACKAGE.parent / "dags_examples"
PARTITIONED = {"hourly_from_stream.py", "backfill_hours.py"}
"""Examples for Airflow 3.3."""
AIRFLOW = "import airflow.sdk, airflow.plugins_manager"
NOBODY = "--bootstrap-server 127.0.0.1:1"

WITHOUT_SPARK_PROVIDER = """
import importlib, pkgutil, sys

def of_the_provider(name):
    # Airflow reads what it says of itself.
    return name.startswith("airflow.providers.apache.spark.") and "provider_info" not in name

class Blocked:
    def find_spec(self, name, *_):
        if of_the_provider(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert not [name for name in sys.modules if of_the_provider(name)]
sys.meta_path.insert(0, Blocked())
import airflow_kafka_offsets
from airflow_kafka_offsets.provider_info import get_provider_info

get_provider_info()
for module in pkgutil.walk_packages(airflow_kafka_offsets.__path__, "airflow_kafka_offsets."):
    if not module.name.endswith(("__main__", ".dags_examples", ".spark_submit")):
        importlib.import_module(module.name)
try:
    airflow_kafka_offsets.KafkaSparkSubmitOperator
except ImportError as error:
    print(error)
"""
PARSE = """
import json, sys
if sys.argv.pop(1) == "platforms":
    from absent_providers import stand_in

    stand_in()
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag
for file in sys.argv[1:]:
    bag = DagBag(file)
    seen = {"file": file, "dags": sorted(bag.dags), "errors": list(bag.import_errors.values())}
    print("@@" + json.dumps(seen))
print("@@" + json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python that has imported nothing of ours, and nothing that we need."""
    with WarmPython(os.environ, tmp_path_factory.mktemp("bare"), first="") as python:
        yield python


@pytest.fixture(scope="module")
def with_airflow(tmp_path_factory):
    """A Python that has imported Airflow as a DAG file does, and no provider."""
    variables = {
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "support"), *_python_path()]),
    }
    with WarmPython(os.environ | variables, tmp_path_factory.mktemp("airflow"), first=AIRFLOW) as python:
        yield python


def _python_path():
    return [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]


END = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
"""Without it a Python that has imported Airflow takes most of a second to end."""


def run(python, code, *arguments):
    done = python.run(["-c", code + END, *arguments], {}, None, 120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_of(python, statement):
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(run(python, code).splitlines()[-1]))


def imported_by(python, statement):
    return {name.partition(".")[0] for name in modules_of(python, statement)}


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("__init__", {"airflow", "confluent_kafka", "fsspec", "pyspark", "click"}),
        ("provider_info", {"airflow", "confluent_kafka", "fsspec", "pyspark", "click"}),
        ("errors", {"airflow", "confluent_kafka", "fsspec", "pyspark"}),
        ("model.plan", {"airflow", "confluent_kafka", "fsspec", "pyspark"}),
        ("model.pipeline_plan", {"airflow", "confluent_kafka", "fsspec", "pyspark"}),
        ("model.groups", {"airflow", "confluent_kafka", "fsspec", "pyspark"}),
        ("checkpoint.reader", {"airflow", "confluent_kafka", "pyspark"}),
        ("moves.groups", {"airflow", "pyspark"}),
        ("moves.restore", {"airflow", "pyspark"}),
        ("spark", {"airflow", "confluent_kafka", "fsspec", "pyspark", "sqlalchemy", "tenacity"}),
        ("spark.listener.committer", {"airflow", "confluent_kafka", "fsspec", "pyspark", "tenacity"}),
        ("spark.read", {"airflow", "confluent_kafka", "fsspec", "pyspark", "tenacity"}),
        ("cli", {"airflow", "confluent_kafka", "fsspec", "pyspark"}),
    ],
)
def test_importing_a_module_does_not_import_what_it_must_not_need(bare, module, never):
    assert not imported_by(bare, f"import airflow_kafka_offsets.{module}") & never


def test_what_a_spark_job_uses_is_exported_and_imports_no_airflow(bare):
    names = ", ".join(spark.__all__)
    assert "airflow" not in imported_by(bare, f"from airflow_kafka_offsets.spark import {names}")
    for name in spark.__all__:
        assert name in dir(spark)
        assert getattr(spark, name).__name__ == name


def test_what_a_spark_job_imports_is_in_python_3_10_too(bare):
    newer = {"LiteralString", "Never", "NotRequired", "Required", "Self", "StrEnum", "UTC", "Unpack"}
    names = ", ".join(spark.__all__)
    for name in modules_of(bare, f"from airflow_kafka_offsets.spark import {names}"):
        if name.startswith("airflow_kafka_offsets"):
            tree = ast.parse(Path(str(import_module(name).__file__)).read_text(encoding="utf-8"))
            imports = (each for each in tree.body if isinstance(each, ast.ImportFrom))
            assert not {each.name for found in imports for each in found.names} & newer, name


def test_a_dag_file_can_name_launcher_and_zip_without_importing_spark_or_kafka(bare, tmp_path):
    name = "from airflow_kafka_offsets.spark import launcher_path, spark_py_files"
    here = f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}"
    found = imported_by(bare, f"{here}; {name}; launcher_path(); spark_py_files()")
    assert not found & {"pyspark", "py4j", "confluent_kafka", "fsspec", "airflow"}


def test_a_dag_file_that_commits_does_not_load_what_only_its_task_needs(with_airflow):
    found = modules_of(with_airflow, "import airflow_kafka_offsets.operators.commit")
    ours = {name for name in found if name.startswith("airflow_kafka_offsets.")}
    rooms = {name.split(".")[1] for name in ours}
    assert not rooms & {"checkpoint", "hooks", "kafka", "moves", "readings", "waits"}
    assert "airflow_kafka_offsets.model.plan" not in ours
    assert len(ours) <= 33


def test_a_dag_file_that_imports_all_of_it_loads_neither_spark_nor_the_kafka_client(with_airflow):
    modules = [
        module.name
        for package in ("operators", "sensors", "triggers")
        for module in pkgutil.iter_modules([str(PACKAGE / package)], f"airflow_kafka_offsets.{package}.")
    ]
    statement = "\n".join(f"import {module}" for module in [*modules, "airflow_kafka_offsets.pipeline"])
    assert not imported_by(with_airflow, statement) & {"confluent_kafka", "pyspark"}


def test_no_task_imports_openlineage_before_it_is_asked(with_airflow):
    tasks = "check_drift, commit, commit_window, plan_window, reset, restore"
    found = imported_by(with_airflow, f"from airflow_kafka_offsets.operators import {tasks}")
    assert "openlineage" not in found


def test_loading_the_plugin_imports_neither_a_web_server_nor_the_kafka_client(with_airflow):
    plugin = "from airflow_kafka_offsets.ui.plugin import KafkaOffsetsPlugin; KafkaOffsetsPlugin()"
    # Airflow itself may read what the package says of itself.
    before = modules_of(with_airflow, "import airflow_kafka_offsets")
    assert modules_of(with_airflow, plugin) - before == {
        "airflow_kafka_offsets.task",
        "airflow_kafka_offsets.task.offsets_tab",
        "airflow_kafka_offsets.ui",
        "airflow_kafka_offsets.ui.plugin",
    }


def test_without_the_spark_provider_all_is_imported_but_the_operator_that_needs_it(with_airflow):
    said = run(with_airflow, WITHOUT_SPARK_PROVIDER).splitlines()[-1]
    assert said.startswith("No module named 'airflow.providers.apache.spark")


@pytest.mark.parametrize("kind", ["examples", "platforms"])
def test_every_example_is_read_without_spark(with_airflow, kind):
    files = sorted((EXAMPLES / "platforms" if kind == "platforms" else EXAMPLES).glob("*.py"))
    if not hasattr(airflow.sdk, "RollupMapper"):
        files = [file for file in files if file.name not in PARTITIONED]
    lines = run(with_airflow, PARSE, kind, *map(str, files)).splitlines()
    *each, modules = (json.loads(line[2:]) for line in lines if line.startswith("@@"))
    assert len(each) == len(files)
    for seen in each:
        assert seen["errors"] == []
        assert seen["dags"], seen["file"]
    assert "pyspark" not in modules


COMMAND = "import sys; sys.path.insert(0, {!r}); from airflow_kafka_offsets.cli import main; main()"


@pytest.mark.parametrize(
    ("python", "line", "status", "says"),
    [
        ("bare", f"doctor {NOBODY}", 1, "broker: not asked, because a library cannot be imp"),
        ("bare", f"group lag g {NOBODY}", 1, "'airflow-kafka-offsets doctor'"),
        ("bare", f"drift /c g {NOBODY}", 3, "'airflow-kafka-offsets doctor'"),
        (
            "with_airflow",
            "group lag g --kafka-config-id k",
            2,
            "Airflow, or a library that its hook needs, cannot be imported",
        ),
    ],
)
def test_a_client_that_cannot_be_imported_is_an_error_of_a_sentence(
    request, tmp_path, python, line, status, says
):
    (tmp_path / "confluent_kafka.py").write_text("raise ImportError('librdkafka.so.1: cannot open it')")
    command = ["-c", COMMAND.format(str(tmp_path)), *line.split()]
    done = request.getfixturevalue(python).run(command, {}, None, 60)
    assert done.returncode == status
    assert "librdkafka.so.1: cannot open it" in done.stdout + done.stderr
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_airflow_that_is_not_configured_is_exit_2_without_its_settings(bare):
    command = ["-m", "airflow_kafka_offsets.cli", "group", "lag", "g", "--kafka-config-id", "k"]
    done = bare.run(command, {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "hunter2"}, None, 60)
    assert done.returncode == 2
    assert "Error: --kafka-config-id: Airflow is not configured" in done.stderr
    assert "hunter2" not in done.stderr
