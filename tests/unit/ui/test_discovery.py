"""Which instances of a task name its pipelines."""

import asyncio
from typing import Any

import pytest

from airflow_kafka_offsets.ui.discovery import DagPipelines, find_pipelines
from airflow_kafka_offsets.ui.task_instances import TaskOutcomes


class Airflow:
    """A DAG with the mapped task ``commit``; its instances, the newest first."""

    def __init__(self, *instances: tuple[str, int, str | None]) -> None:
        self._rows = [
            {
                "id": f"{run}{index}",
                "dag_id": "d",
                "dag_run_id": run,
                "task_id": "commit",
                "map_index": index,
                "state": state,
                "rendered_fields": {"group_id": f"{run} {index}"} if state == "success" else {},
            }
            for run, index, state in instances
        ]

    async def get(self, *steps: str, **how: Any) -> Any:
        if steps[-1] == "return_value":
            return None
        if "taskInstances" in steps:
            (row,) = (
                row
                for row in self._rows
                if [row["dag_run_id"], str(row["map_index"])] == [steps[3], steps[-1]]
            )
            return row
        of = {"module_path": "airflow_kafka_offsets.operators.commit", "class_name": "CommitOffsetsOperator"}
        return {"tasks": [{"task_id": "commit", "class_ref": of}]}

    async def pages(
        self, most: int, *steps: str, of: str, state: Any = (), map_index: Any = None, **how: Any
    ) -> list[Any]:
        return [
            row
            for row in self._rows
            if steps[3] in ("~", row["dag_run_id"])
            and (not state or row["state"] in state)
            and (map_index is None or row["map_index"] in map_index)
        ][:most]


class Airflow31(Airflow):
    """It leaves the rendered fields out of its lists."""

    async def pages(self, *given: Any, **how: Any) -> list[Any]:
        return [{**row, "rendered_fields": {}} for row in await super().pages(*given, **how)]


def find(airflow: Airflow) -> DagPipelines:
    return asyncio.run(find_pipelines(airflow, TaskOutcomes(), "d"))  # type: ignore[arg-type]


def groups(*instances: tuple[str, int, str | None]) -> set[str]:
    return {group for pipeline in find(Airflow(*instances)).pipelines for group in pipeline.group_ids}


def test_pipelines_that_the_newest_run_has_not_reached_stay():
    earlier = [("old", index, "success") for index in range(5)]
    newest = [("new", 2, "success"), ("new", 0, "running"), ("new", 1, None), ("new", 3, "upstream_failed")]

    assert groups(*newest, ("new", 4, "removed"), *earlier) == {"new 2", "old 1", "old 3"}


def test_a_task_that_was_mapped_before_is_the_one_that_it_is_now():
    assert groups(("new", -1, "success"), ("old", 0, "success"), ("old", 1, "success")) == {"new -1"}
    assert groups(("new", -1, "failed"), ("old", -1, "success"), ("older", -1, "success")) == {"old -1"}


@pytest.mark.parametrize(("airflow", "most"), [(Airflow, 2_000), (Airflow31, 50)])
def test_map_indexes_that_are_left_out_are_a_problem(airflow, most):
    def of(indexes: int) -> DagPipelines:
        return find(airflow(*[("new", index, "success") for index in range(indexes)]))

    assert (len(of(most - 1).pipelines), of(most - 1).problems) == (most - 1, [])
    found = of(most + 1)
    assert len(found.pipelines) == most
    assert found.problems == [f"DAG d, task commit: only the pipelines of {most:,} map indexes are shown"]
