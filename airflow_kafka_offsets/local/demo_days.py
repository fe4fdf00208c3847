"""
Runs a DAG for some days, one after the other, in the Airflow of the environment.

The demo starts it as a process. It prints the results of each day as a line of JSON after a mark; all other
output is Airflow's log.
"""

from __future__ import annotations

import importlib
import json
import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

MARK = "@@demo "


def run_day(dag: Any, day: date) -> dict[str, Any]:
    """Run the DAG for the data interval of one local day, and return the XComs of its tasks."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("America/New_York"))
    # A manual run gets the interval that ends at its logical date.
    run = dag.test(logical_date=midnight + timedelta(days=1))
    results: dict[str, Any] = {"day": day.isoformat(), "state": str(run.state)}
    for instance in run.get_task_instances():
        results[instance.task_id] = instance.xcom_pull(task_ids=instance.task_id)
    return results


def main(dag_file: str, days: list[str]) -> int:
    """Run the days; stop at the first failed day."""
    sys.path.insert(0, str(Path(dag_file).parent))
    module = importlib.import_module(Path(dag_file).stem)
    for text in days:
        print(f"{MARK}{json.dumps({'begin': text})}", flush=True)
        results = run_day(module.dag, date.fromisoformat(text))
        print(f"{MARK}{json.dumps(results, default=str)}", flush=True)
        if results["state"] != "success":
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
