"""
Each undocumented interface of Airflow is used by one module, which says when it can go.

A failure here means that the package has begun to depend on something that may change in any version: find a
documented way, or keep it to one module with a comment "Remove when ...", and add it to the list.
"""

import ast
import re
from pathlib import Path

import airflow.sdk
import pytest

import airflow_kafka_offsets

ROOT = Path(airflow_kafka_offsets.__file__).parent
MODULES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}

# https://airflow.apache.org/docs/apache-airflow/stable/public-airflow-interface.html
# https://airflow.apache.org/docs/apache-airflow/stable/core-concepts/objectstorage.html
DOCUMENTED = {
    "airflow.exceptions": None,
    "airflow.plugins_manager": {"AirflowPlugin"},
    "airflow.sdk": set(airflow.sdk.__all__),
    "airflow.sdk.io": {"attach"},
    "airflow.triggers.base": None,
}

IMPORTED = {
    "operators/links.py": {"airflow.sdk.types.TaskInstanceKey"},
    "task/airflow_errors.py": {
        "airflow.sdk.exceptions.AirflowRuntimeError",
        "airflow.sdk.exceptions.ErrorType",
    },
    "task/mapped.py": {"airflow.sdk.definitions.mappedoperator.OperatorPartial"},
    "task/metrics.py": {"airflow.sdk.observability.stats.Stats", "airflow.stats.Stats"},
    "ui/access.py": {
        "airflow.api_fastapi.app.get_auth_manager",
        "airflow.api_fastapi.auth.managers.models.resource_details.DagAccessEntity",
        "airflow.api_fastapi.core_api.security.GetUserDep",
        "airflow.api_fastapi.core_api.security.get_user",
        "airflow.api_fastapi.core_api.security.requires_access_asset",
        "airflow.api_fastapi.core_api.security.requires_access_asset_alias",
        "airflow.api_fastapi.core_api.security.requires_access_dag",
    },
    "ui/plugin.py": {"airflow.configuration.conf"},
}

# Attributes with a leading underscore of objects that are not the package's own: of Airflow in `hooks` and
# `task`, of PySpark and py4j in `spark`, of fsspec in `storage`.
ATTRIBUTES = {
    "hooks/offsets.py": {"_build_config"},
    "spark/broker.py": {"_jvm"},
    "spark/jvm_client.py": {"_origin"},
    "spark/listener/attaching.py": {"_execution_thread", "_jsc", "_jvm", "_lock", "_sqlb"},
    "spark/listener/launcher.py": {"_jsparkSession", "_spark"},
    "spark/listener/listener.py": {"_jvm"},
    "spark/listener/queries.py": {"_gateway_client", "_jsq"},
    "storage.py": {"_call", "_get_kwargs_from_urls", "_strip_protocol"},
    "task/parameter_checks.py": {"_do_render_template_fields"},
    "task/mapped.py": {"_BaseOperator__from_mapped", "_get_specified_expand_input"},
}

# Documented, in spite of the underscore.
OF_PYTHON = {"_asdict", "_exit", "_fields", "_replace"}


def is_private(module, name):
    if module.partition(".")[0] != "airflow" or module.startswith("airflow.providers."):
        return False
    names = DOCUMENTED.get(module, set())
    return names is not None and name not in names


def nodes_of(code):
    return list(ast.walk(ast.parse(code)))


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name.rpartition(".")[::2] for each in node.names)


def calls(node, *functions):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions


def is_own(value):
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def defined(nodes):
    """Names with an underscore that a module gives to its own classes, functions and fields."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and is_own(node.value) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def foreign_attributes(nodes):
    own = {*defined(nodes), *OF_PYTHON}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            known = is_own(node.value) or (node.attr in own and not calls(node.value, "super"))
            name = node.attr
        elif calls(node, "getattr", "setattr", "hasattr"):
            text = node.args[1]
            name = str(text.value) if isinstance(text, ast.Constant) else ""
            known = is_own(node.args[0]) and name in own
        else:
            continue
        if not known and re.match(r"_[A-Za-z]", name):
            yield name


@pytest.fixture(scope="module")
def modules():
    return {name: nodes_of(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def found(modules, collect):
    every = {name: set(collect(nodes)) for name, nodes in modules.items()}
    return {name: names for name, names in every.items() if names}


def private_imports(nodes):
    return (f"{module}.{name}" for module, name in imported(nodes) if is_private(module, name))


def test_what_airflow_does_not_document_is_imported_by_the_modules_on_the_list_only(modules):
    assert found(modules, private_imports) == IMPORTED


def test_an_undocumented_import_is_in_one_module_only():
    names = [name for names in IMPORTED.values() for name in names]
    assert len(names) == len(set(names))


def test_airflows_database_is_not_read():
    """Its tables change with its versions, its REST API does not. Your own database is another matter."""
    forbidden = ("airflow.models", "airflow.settings", "airflow.utils.db", "airflow.utils.session")
    assert not [name for names in IMPORTED.values() for name in names if name.startswith(forbidden)]
    tab = (ROOT / "ui").glob("*.py")
    assert not [path.name for path in tab if "sqlalchemy" in path.read_text(encoding="utf-8")]


def test_private_attributes_of_others_are_used_by_the_modules_on_the_list_only(modules):
    assert found(modules, foreign_attributes) == ATTRIBUTES


@pytest.mark.parametrize("module", sorted({*IMPORTED, "hooks/offsets.py", "task/parameter_checks.py"}))
def test_a_module_with_a_private_interface_says_when_it_can_go(module):
    assert "Remove when" in MODULES[module].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "code",
    [
        "from airflow.models import DagRun",
        "from airflow import models",
        "import airflow.models",
        "import airflow.utils.timezone",
        "from airflow.sdk.execution_time.comms import GetXCom",
        "if TYPE_CHECKING:\n    from airflow.sdk import _shared",
        "def f():\n    from airflow.settings import Session",
    ],
)
def test_a_private_import_is_found_wherever_it_is(code):
    assert list(private_imports(nodes_of(code)))


@pytest.mark.parametrize(
    "code",
    [
        "task._expand()",
        "getattr(task, '_BaseOperator__instantiated')",
        "class A(B):\n    def _render(self):\n        super()._render()",
    ],
)
def test_a_private_attribute_is_found_however_it_is_read(code):
    assert list(foreign_attributes(nodes_of(code)))


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __init__(self, other):\n        self._x = other._x",
        "self._x",
        "move._asdict()",
        "value.__class__",
    ],
)
def test_what_is_our_own_or_pythons_is_no_private_attribute_of_others(code):
    assert not list(foreign_attributes(nodes_of(code)))
