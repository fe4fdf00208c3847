"""Spark's events, reduced to the fields that the listener needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.listener import JStreamingQueryListener


class BriefEvents(JStreamingQueryListener):  # type: ignore[misc]  # PySpark is not typed here
    """
    The object that Java calls for a listener; it reads only the query and the batch of a batch's event.

    PySpark's own class reads the whole event, with some hundred calls into the JVM.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802  # Spark's name
        """Pass the event to the listener; Spark calls this method."""
        self.pylistener.onQueryProgress(SimpleNamespace(progress=_Progress(jevent.progress())))


class _Progress:
    """An event with PySpark's attribute names."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self.runId = progress.runId().toString()
        self.batchId = progress.batchId()

    @property
    def id(self) -> str:
        """The query's id, only read for a query that is not known yet."""
        return str(self._progress.id().toString())
