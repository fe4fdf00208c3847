"""A recovery to judge: a stopped query, its group, and the tasks that reset, commit and restore it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

ENDS = {0: 100, 1: 100}
READ = {0: 60, 1: 62}
BACK = {0: 57, 1: 59}
DONE = {"reset": "success", "job": "success", "commit": "success"}
FAILED = DONE | {"job": "failed"}


@contextmanager
def broken_commit(of: str | None = None) -> Iterator[None]:
    """Within it the broker does not answer to commits, of one group or of any."""

    sent = OffsetsClient.commit

    def commit(client: OffsetsClient, group_id: str, *args: Any, **options: Any) -> None:
        if of in (None, group_id):
            raise BrokerUnavailableError("the broker went away")
        sent(client, group_id, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OffsetsClient, "commit", commit)
        yield


class Pipeline:
    """A stopped query that is at 60 and 62, its group, and the tasks of a recovery DAG."""

    def __init__(self, topic: str, query: Any, group: str, committed: Any, new_ti: Any) -> None:
        self.topic, self.query, self.group, self.new_ti = topic, query, group, new_ti
        self.names: dict[str, Any] = {"group_id": group, "checkpoint_location": query.location}
        self._committed = committed
        self.tries = 0

    def at(self) -> tuple[Any, Any]:
        """Where group and checkpoint are."""
        return self._committed(self.group, self.topic), self.query.stands()

    def context(self, task: str, tries: int = 0, **states: Any) -> Any:
        ti = self.new_ti(**states)
        ti.task_id, ti.max_tries, ti.try_number = task, tries, tries + 1
        return {"ti": ti}

    def tasks(self, receipt: Any = None, *, group_only: bool = False, **scenario: Any) -> dict[str, Any]:
        """reset >> job >> commit >> restore.as_teardown(setups=reset)."""
        quick: dict[str, Any] = {} if group_only else {"quiet_period": 0}
        options: dict[str, Any] = (
            {} if group_only else {**quick, "on_pending_batch": "discard", "idempotent_sink": True}
        )
        with DAG("flights"):
            reset = ResetOffsetsOperator(
                task_id="reset", **{**quick, "shift_by": -3, **scenario}, **self.names
            )
            commit = (
                EmptyOperator(task_id="commit")
                if group_only
                else CommitOffsetsOperator(task_id="commit", **self.names)
            )
            restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, **options, **self.names)
            reset >> EmptyOperator(task_id="job") >> commit >> restore.as_teardown(setups=reset)
        if receipt is not None:
            restore.receipt = receipt
        return {"reset": reset, "commit": commit, "restore": restore}

    def run(
        self, task: str, *, tries: int = 0, receipt: Any = None, states: Any = None, **scenario: Any
    ) -> Any:
        found = self.tasks(receipt, **scenario)[task]
        if task == "restore":
            found.receipt = receipt
        return found.execute(self.context(task, tries, **(states or {})))

    def job(self, batch: int = 2) -> None:
        """The query reads to the end of the topic."""
        self.query.run(batch, {self.topic: ENDS})

    def recover(self) -> Any:
        """Reset, read to the end of the topic, and commit; return the receipt of the reset."""
        receipt = self.run("reset")
        self.job()
        self.run("commit")
        return receipt

    def restore_fails(self, receipt: Any, says: str, **states: Any) -> None:
        """Assert that the restore ends with this error; ``states`` are of the tasks before it."""
        with pytest.raises(AirflowFailException, match=says):
            self.run("restore", receipt=receipt, states=states)
