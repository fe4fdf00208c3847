"""Events of Spark as the listener needs them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.listener import JStreamingQueryListener


class BriefEvents(JStreamingQueryListener):  # type: ignore[misc]  # PySpark is not typed here
    """
    What Java calls for a listener; it reads of a batch's event only which query and batch it is.

    PySpark's own reads all of the event, with some hundred calls into the JVM.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802  # Spark's name
        """Give the event to the listener; Spark calls it."""
        self.pylistener.onQueryProgress(SimpleNamespace(progress=_Progress(jevent.progress())))


class _Progress:
    """The names are PySpark's."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self.runId = progress.runId().toString()
        self.batchId = progress.batchId()

    @property
    def id(self) -> str:
        """Needed only for a query that is not known yet."""
        return str(self._progress.id().toString())
