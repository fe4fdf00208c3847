"""How the check of drift stands in a DAG, and what it refuses before it asks anybody."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_kafka_offsets.errors import DriftError, UsageError
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

ORDERS = KafkaPipeline(group_id="orders", checkpoint_location="s3a://lake/cp/orders", kafka_config_id="main")


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"group_id": "g"}, "nothing to compare"),
        (
            {"pipelines": [ORDERS], **ORDERS},
            "group_id and checkpoint_location and kafka_config_id would be ignored",
        ),
        (
            {"pipelines": [ORDERS], "kafka_config_id": "main"},
            "kafka_config_id would be ignored with pip.*default_args",
        ),
        ({"pipelines": []}, "task t: pipelines=.*expected a list with at least one KafkaPipeline"),
        ({"pipelines": "orders"}, "task t: pipelines: .*is not JSON"),
        (
            {"pipelines": '"orders"'},
            "task t: pipelines=orders: expected a list with at least one KafkaPipeline",
        ),
    ],
)
def test_what_is_checked_is_named_in_exactly_one_way(parameters, says):
    with pytest.raises(UsageError, match=says):
        CheckOffsetDriftOperator(task_id="t", **parameters)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"pipelines": ["orders"]}, "expected a KafkaPipeline or a dict"),
        ({"pipelines": [{"group": "orders"}]}, "found an entry with group; expected group_id"),
        ({"pipelines": [{**ORDERS, "grace": 5}]}, "expected group_id and"),
        (
            {"pipelines": [{"group_id": "g", "checkpoint_location": "s3a://key:secret@b/x"}]},
            "holds a password",
        ),
        ({"pipelines": [{"group_id": "g"}]}, "'g' has no checkpoint_location"),
    ],
)
def test_bad_input_fails_at_once_with_a_plain_sentence(parameters, says):
    with pytest.raises(UsageError, match=f"^task t: .*{says}") as refused:
        CheckOffsetDriftOperator(task_id="t", **parameters)
    assert "secret" not in str(refused.value)
    task = CheckOffsetDriftOperator(task_id="t", pipelines="{{ it | tojson }}")
    task.render_template_fields({"it": list(map(dict_of, parameters["pipelines"]))})
    with pytest.raises(AirflowFailException, match=says) as error:
        task.execute({})
    assert "secret" not in str(error.value)


def dict_of(entry):
    return dict(entry) if isinstance(entry, Mapping) else entry


@pytest.mark.parametrize("group", ["a\nINFO all is well", "a\tb", "a\u202eb", "a\x1b[2Jb", "half \ud800"])
@pytest.mark.parametrize("several", [False, True])
def test_no_group_writes_a_line_of_its_own_or_turns_one_around(monkeypatch, tmp_path, capsys, group, several):
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka"}')
    groups = {"orders": group, "returns": "b"} if several else group
    task = CheckOffsetDriftOperator(
        task_id="t", pipelines=[{"group_id": groups, "checkpoint_location": f"{tmp_path}/checkpoint"}]
    )
    with pytest.raises((DriftError, AirflowFailException)):
        task.execute({})
    (line,) = [line for line in capsys.readouterr().out.split("\n") if "could not be checked" in line]
    assert line.isprintable()
    assert "] Group " in line


def test_the_list_of_another_task_is_not_rendered_in_an_index():
    """Airflow knows by its identity what is no template."""
    found = {"group_id": "{{ 1 + 1 }}", "checkpoint_location": "s3a://lake/cp"}
    with DAG("d") as dag:
        lists = EmptyOperator(task_id="lists")
        task: Any = CheckOffsetDriftOperator.partial(task_id="t").expand(pipelines=lists.output)
    ti = SimpleNamespace(map_index=0, xcom_pull=lambda **_: [[found]], _upstream_map_indexes={}, task=task)
    context: Any = {"ti": ti, "dag": dag, "dag_run": SimpleNamespace(conf={}), "expanded_ti_count": 1}
    task.render_template_fields(context)
    assert context["task"].pipelines == [found]
