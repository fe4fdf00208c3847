"""Runs the DAGs of the Offsets pages in the Airflow that the environment names, as a process of its own."""

from __future__ import annotations

import importlib
import sys
from datetime import datetime, timezone
from pathlib import Path

RUNS = (
    ("orders", {"batches": 30}),
    ("orders", {"batches": 8, "recover": True}),
    ("hostile", {}),
    ("dead", {}),
    ("many", {}),
)


def main(file: str) -> int:
    """Make Airflow know the DAGs, and run some of them."""
    from airflow.__main__ import main as airflow

    sys.argv = ["airflow", "dags", "reserialize"]
    airflow()
    sys.path.insert(0, str(Path(file).parent))
    module = importlib.import_module(Path(file).stem)
    dags = {dag.dag_id: dag for dag in vars(module).values() if type(dag).__name__ == "DAG"}
    for dag_id, conf in RUNS:
        run = dags[dag_id].test(run_conf=conf, logical_date=datetime.now(tz=timezone.utc))
        states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
        print(dag_id, run.state, states, flush=True)
        if str(run.state) != "success":
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
