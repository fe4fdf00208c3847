"""A task that fails at its first try, and notes how often it was cleared."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

from airflow_kafka_offsets.task.identity import clear_mark

NOTES = Path(os.environ["CLEARS_NOTES"])

with DAG("clears", schedule=None):

    @task(retries=1, retry_delay=timedelta(0))
    def note() -> None:
        """Fail when there was nothing yet."""
        first = not NOTES.exists()
        with NOTES.open("a") as notes:
            notes.write(f"{clear_mark(get_current_context())}\n")
        if first:
            raise RuntimeError("the first try")

    note()
