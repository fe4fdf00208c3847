"""Which instances of a task name its pipelines."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_kafka_offsets.ui.discovery import find_pipelines
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


def groups(*instances: tuple[str, int, str | None]) -> set[str]:
    found = asyncio.run(find_pipelines(Airflow(*instances), TaskOutcomes(), "d"))  # type: ignore[arg-type]
    return {group for pipeline in found.pipelines for group in pipeline.group_ids}


def test_pipelines_that_the_newest_run_has_not_reached_stay():
    earlier = [("old", index, "success") for index in range(5)]
    newest = [("new", 2, "success"), ("new", 0, "running"), ("new", 1, None), ("new", 3, "upstream_failed")]

    assert groups(*newest, ("new", 4, "removed"), *earlier) == {"new 2", "old 1", "old 3"}


def test_a_task_that_was_mapped_before_is_the_one_that_it_is_now():
    assert groups(("new", -1, "success"), ("old", 0, "success"), ("old", 1, "success")) == {"new -1"}
    assert groups(("new", -1, "failed"), ("old", -1, "success"), ("older", -1, "success")) == {"old -1"}
