"""
Keeps the windows that a run has planned and committed.

The records that a run reads must not change if its plan task is retried or the run is cleared. Airflow 3.3
keeps a task's state until the run is deleted. A window file keeps the window on any version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.readings.window_checks import is_committed_by_run
from airflow_kafka_offsets.task.identity import iteration, map_index, run_start
from airflow_kafka_offsets.task.window_file import (
    RUN,
    RUN_START,
    changed_file_refusal,
    is_same_task_run,
    other_run_refusal,
    planning_run_start,
    read_window_file,
    write_window,
)

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)

_KEY = "kafka_offsets.window"
_BEGUN = "kafka_offsets.window_begun"
"""Shows that the task's state of earlier tries still exists, even if no try has kept a window."""
_COMMITTED = "kafka_offsets.committed_window"


class WindowMemory:
    """
    Keeps the window that one task has planned in one run.

    :param window_file: URI of the window's file, if any.
    :param conn_id: Airflow connection of the file's storage.
    """

    def __init__(self, context: Context, window_file: str | None, conn_id: str | None) -> None:
        ti, dag_run = context.get("ti"), context.get("dag_run")
        self._store: Any = context.get("task_state_store")
        self._file = window_file
        self._conn_id = conn_id
        self._ran_before = (getattr(ti, "try_number", 1) or 1) > 1
        self._cleared = (getattr(dag_run, "clear_number", 0) or 0) > 0
        start = run_start(context)
        self.run: dict[str, Any] = {name: getattr(ti, name, None) for name in RUN}
        loop = iteration(context)
        self.run |= {"map_index": map_index(context), **dict(zip(RUN_START, start, strict=True))}
        self.run |= {} if loop is None else {"iteration": loop}
        self._run = CommitMetadata(
            dag=str(self.run["dag_id"]),
            run=str(self.run["run_id"]),
            started=start.at,
            clears=start.clears,
            iteration=loop,
        )

    def recall(self) -> OffsetWindow | None:
        """Return the window that was planned before, or ``None``; refuse a window that was changed."""
        stored: Any = self._store.get(_KEY) if self._store is not None else None
        if stored is not None and not isinstance(stored, Mapping):
            raise PlanRefusedError(f"the task's state {_KEY!r} is not a window: delete this state")
        uri = self._file if stored is None else stored.get("window_file")
        if not uri:
            return None if stored is None else OffsetWindow.parse(stored, "the window kept with the task")
        # The file is used, not the copy in the task's state, because the job reads the file.
        window = read_window_file(uri, self._conn_id)
        if window is None and stored is not None:
            raise PlanRefusedError(
                f"{uri}, the file with the window of this run, does not exist any more: trigger a new run"
            )
        if window is not None and not is_same_task_run(window.source, self.run):
            # If runs share a file name, this run would read another run's records.
            raise other_run_refusal(uri, window)
        if (
            window is not None
            and stored is None
            and not self._run.run_start.continues(planning_run_start(window))
        ):
            log.info("%s contains the window of a deleted run with this run's id, and is replaced", uri)
            return None
        if window is not None and stored and stored.get("ranges") not in (None, window.digest):
            raise changed_file_refusal(uri, "other ranges")
        return window

    def keep(self, window: OffsetWindow) -> None:
        """Write the window to its file, and keep it with the task."""
        if self._file:
            write_window(self._file, window, self._conn_id)
        if self._store is not None:
            kept: Any = json.loads(window.as_text())
            if self._file:
                kept = {"window_file": self._file, "ranges": window.digest}
            # airflow.sdk.NEVER_EXPIRE, which versions before 3.3 do not have. Deleted together with the run.
            self._store.set(_KEY, kept, retention=timedelta.max)

    def refuse_other_records(self, client: OffsetsClient, selection: GroupSelection) -> None:
        """
        Refuse to plan from the group's current position for a run that may already have used a window.

        A task that has not run before has no earlier window, unless it is in a task loop: Airflow creates the
        iterations after a cleared iteration again. If a task is only retried, no other task has used its
        earlier window, because the downstream tasks run after it has succeeded. While Airflow keeps the
        task's state, a window that is not in the state was never planned. Airflow may delete the state when
        the task succeeds (``clear_on_success``) and, from 3.4 on, when the task is cleared.

        :raises PlanRefusedError: if the run was cleared, or has committed.
        """
        if self._store is not None and self._store.get(_BEGUN) is not None:
            return
        in_loop, has_group = self._run.iteration is not None, selection.group_id is not None
        # A group's commits show whether an iteration has run. Without a group this is unknown.
        cleared = self._cleared and (self._ran_before or (in_loop and not has_group))
        may_have_run = self._ran_before or (in_loop and self._cleared)
        if cleared or (may_have_run and has_group and is_committed_by_run(client, selection, self._run)):
            found = "was cleared" if cleared else "has already committed"
            raise PlanRefusedError(
                f"this run {found}, and the records that it read are not known any more; 'committed', "
                "'earliest' and 'latest' now select other records: trigger a new run for these. A run "
                "can be cleared if start and end are times or offsets, with window_file, or if Airflow "
                "has kept the task's state (3.3 and later without [state_store] clear_on_success; on 3.4 "
                "clear with 'Keep task state')"
            )
        if self._store is not None:
            self._store.set(_BEGUN, True, retention=timedelta.max)


class CommitMemory:
    """
    Keeps a task's committed window over retries and Clears (Airflow 3.3 and later).

    :param same: the groups and other values that must be the same for the same commit.
    """

    def __init__(self, context: Context, window: OffsetWindow, **same: Any) -> None:
        self._store: Any = context.get("task_state_store")
        self._digest = digest(window.digest, same, length=12)

    @property
    def committed_at(self) -> str | None:
        """When this task committed the same window; ``None`` if it did not, or if this is unknown."""
        kept: Any = self._store.get(_COMMITTED) if self._store is not None else None
        if not isinstance(kept, Mapping) or kept.get("digest") != self._digest:
            return None
        return str(kept.get("at"))

    def keep(self) -> None:
        """Note that the window was committed, by this execution of the task or an earlier one."""
        # The first time is kept: a cleared task that finds its window committed did not commit it again.
        if self._store is not None and self.committed_at is None:
            at = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
            self._store.set(_COMMITTED, {"digest": self._digest, "at": at}, retention=timedelta.max)
