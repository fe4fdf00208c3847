"""The newest instances of tasks of many DAGs, in few questions."""

import asyncio
from typing import Any

import pytest

from airflow_kafka_offsets.ui.airflow_api import INSTANCES
from airflow_kafka_offsets.ui.pipelines import NamedTask
from airflow_kafka_offsets.ui.task_instances import newest_instances_of_dags

COMMIT, RESET, SENSOR = "CommitOffsetsOperator", "ResetOffsetsOperator", "ConsumerGroupLagSensor"


class Airflow:
    """Its list of task instances, the newest first."""

    def __init__(self, *instances: tuple[str, str]) -> None:
        self._rows = [
            {"dag_id": dag_id, "task_id": operator, "operator": operator} for dag_id, operator in instances
        ]
        self.asked: list[tuple[tuple[str, ...], int]] = []

    async def get(
        self, *steps: str, operator: tuple[str, ...], limit: int, offset: int, **how: Any
    ) -> dict[str, Any]:
        assert steps == ("dags", "~", "dagRuns", "~", "taskInstances")
        assert how["order_by"] == "-start_date"
        self.asked.append((operator, offset))
        rows = [row for row in self._rows if row["operator"] in operator]
        return {"task_instances": rows[offset : offset + limit], "total_entries": len(rows)}


def task(dag_id: str, operator: str) -> NamedTask:
    return NamedTask(dag_id, operator, operator)


def read(airflow: Airflow, *tasks: NamedTask) -> dict[NamedTask, list[Any]]:
    return asyncio.run(newest_instances_of_dags(airflow, tasks))  # type: ignore[arg-type]


def test_one_page_has_them_all_and_those_that_never_ran():
    airflow = Airflow(("a", COMMIT), ("b", COMMIT), ("a", COMMIT))

    found = read(airflow, task("a", COMMIT), task("b", COMMIT), task("c", RESET))

    assert {each.dag_id: len(rows) for each, rows in found.items()} == {"a": 2, "b": 1, "c": 0}
    assert airflow.asked == [((COMMIT, RESET), 0)]


def test_what_seldom_runs_is_found_among_its_own_operator():
    airflow = Airflow(*[("a", COMMIT)] * 500, ("a", RESET))

    found = read(airflow, task("a", COMMIT), task("a", RESET))

    assert [len(found[task("a", name)]) for name in (COMMIT, RESET)] == [2 * INSTANCES, 1]
    assert airflow.asked == [((COMMIT, RESET), 0), ((COMMIT, RESET), INSTANCES), ((RESET,), 0)]


def test_it_reads_on_while_pages_bring_something():
    airflow = Airflow(*[(f"dag{number}", COMMIT) for number in range(60)])

    found = read(airflow, *(task(f"dag{number}", COMMIT) for number in range(60)))

    assert all(len(rows) == 1 for rows in found.values())
    assert [offset for _, offset in airflow.asked] == [0, INSTANCES, 2 * INSTANCES]


@pytest.mark.parametrize("operators", [(COMMIT,), (COMMIT, SENSOR)])
def test_what_others_have_buried_is_left_out(operators):
    airflow = Airflow(*[("busy", name) for name in operators for _ in range(500)], ("idle", COMMIT))

    found = read(airflow, *(task("busy", name) for name in operators), task("idle", COMMIT))

    # None is said to have never run.
    assert task("idle", COMMIT) not in found
    assert all(found[task("busy", name)] for name in operators)


def test_tasks_of_no_interest_are_ignored():
    assert read(Airflow(("other", COMMIT)), task("a", COMMIT)) == {task("a", COMMIT): []}
    assert read(Airflow(("other", COMMIT))) == {}
