"""Retries of a relative reset of a group, after another client has committed."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import MemoryBroker, filled_broker
from memory_clients import open_client
from waiting import Store

from airflow_kafka_offsets.errors import GroupMovedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.moves import apply, write
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.task.move_memory import MoveMemory

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Group:
    """A group at 50 and 60, and the task that resets it."""

    def __init__(self, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        broker.create("orders", 2)
        for tp in (FIRST, SECOND):
            broker.append("orders", tp.partition, range(100))
        self.client, self.store, self._patches = open_client(broker), Store(), monkeypatch
        self.client.commit("g", {FIRST: 50, SECOND: 60})

    def reset(self, clears: int = 0, **parameters: Any) -> list[int | None]:
        target = {} if "to_offset" in parameters else {"shift_by": 1}
        named: dict[str, Any] = {"group_id": "g", "topics": "orders", **target, **parameters}
        operator = ResetOffsetsOperator(task_id="reset", **named)
        names = {"dag_id": "d", "run_id": "r", "task_id": "reset", "map_index": -1, "try_number": 2}
        ti = SimpleNamespace(**names, max_tries=clears, xcom_push=lambda **_: None)
        context: Any = {"ti": ti, "task_state_store": self.store}
        self.receipt = operator.execute(context)
        return self.at()

    def at(self) -> list[int | None]:
        return [*committed_offsets(self.client.committed("g", [FIRST, SECOND])).values()]

    def die(self, *, after: bool, clears: int = 0, error: BaseException | None = None) -> None:
        """Reset in a process that ends right before or after it has committed."""

        def dies(*arguments: Any) -> None:
            if after:
                write.commit_groups(*arguments)
            raise error or KeyboardInterrupt

        with self._patches.context() as patched:
            patched.setattr(apply, "commit_groups", dies)
            with pytest.raises(type(error) if error else KeyboardInterrupt):
                self.reset(clears)

    def commit(self, **offsets: int) -> None:
        by = CommitMetadata(run="other", dag="d", task="commit").text()
        self.client.commit("g", {(FIRST, SECOND)[name == "second"]: at for name, at in offsets.items()}, by)


@pytest.fixture
def group(memory, monkeypatch):
    return Group(memory, monkeypatch)


@pytest.mark.parametrize("offsets", [{"first": 55, "second": 65}, {"second": 65}], ids=["all", "some"])
@pytest.mark.parametrize("after", [False, True])
def test_a_retry_is_refused_if_it_is_not_known_whether_the_group_was_moved(group, offsets, after):
    group.die(after=after)
    group.commit(**offsets)
    before = group.at()
    with pytest.raises(
        AirflowFailException, match="committed on .*orders-1 by run other of d.commit since an earlier try"
    ):
        group.reset()
    assert group.at() == before


def test_a_cleared_task_starts_where_the_group_is(group):
    group.die(after=True)
    group.commit(first=55, second=65)
    assert group.reset(clears=1) == [56, 66]


@pytest.mark.parametrize("after", [False, True])
def test_a_cleared_task_that_is_tried_again_moves_once_more(group, after):
    assert group.reset() == [51, 61]
    group.die(after=after, clears=1)
    assert group.reset(clears=1) == [52, 62]


@pytest.mark.parametrize("after", [False, True])
def test_a_task_that_is_cleared_before_it_has_finished_moves_once(group, after):
    group.die(after=after)
    group.die(after=False, clears=1)
    assert group.reset(clears=1) == [51, 61]
    assert group.reset(clears=2) == [52, 62]


def test_a_try_that_has_written_nothing_is_no_reason(group):
    group.die(after=False, error=GroupMovedError("the group was committed"))
    group.commit(first=55, second=65)
    assert group.reset() == [56, 66]


def test_a_try_that_has_written_nothing_does_not_hide_an_earlier_one(group):
    group.die(after=True)
    group.die(after=False, error=GroupMovedError("the group was committed"))
    group.commit(first=55, second=65)
    with pytest.raises(AirflowFailException, match="so it is unknown whether that try had moved the group"):
        group.reset()
    assert group.at() == [55, 65]


@pytest.mark.parametrize("clears", [0, 1])
@pytest.mark.parametrize(
    "edited", [{"group_id": "h"}, {"group_id": "h", "to_offset": 20}, {"topics": "orders:0"}]
)
def test_a_try_that_no_longer_names_what_was_moved_is_refused(group, edited, clears):
    group.client.commit("h", {FIRST: 50, SECOND: 60})
    group.die(after=True)
    with pytest.raises(
        AirflowFailException, match="has moved group 'g' on .*orders-1, which .* name it again"
    ):
        group.reset(clears, **edited)
    assert [*committed_offsets(group.client.committed("h", [FIRST, SECOND])).values()] == [50, 60]
    assert group.reset(clears) == [51, 61]


@pytest.mark.parametrize("clears", [0, 1])
@pytest.mark.parametrize("target", [{"to_offset": 20}, {}])
def test_a_try_whose_connection_leads_to_another_cluster_is_refused(group, target, clears, monkeypatch):
    client = open_client(filled_broker(range(100), range(100), cluster_id="west"))
    client.commit("g", {FIRST: 50, SECOND: 60})
    group.die(after=True)
    with monkeypatch.context() as edited:
        extra = {"bootstrap.servers": client.servers}
        edited.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        with pytest.raises(
            AirflowFailException, match="the move of an interrupted try .* is of cluster .* cluster west"
        ):
            group.reset(clears, **target)
    assert [*committed_offsets(client.committed("g", [FIRST, SECOND])).values()] == [50, 60]
    assert group.reset(clears) == [51, 61]


def test_a_try_that_ends_before_airflow_knows_has_moved(group, monkeypatch):
    finish = MoveMemory.finish

    def dies(memory: MoveMemory) -> None:
        finish(memory)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MoveMemory, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            group.reset()
    group.client.commit("h", {FIRST: 50, SECOND: 60})
    with pytest.raises(AirflowFailException, match="has moved group 'g' on .*orders-1, which .* name it"):
        group.reset(group_id="h")
    group.commit(first=55)
    with pytest.raises(AirflowFailException, match="so it is unknown whether that try had moved the group"):
        group.reset()
    assert group.at() == [55, 61]


def test_another_group_is_moved_if_the_earlier_try_has_written_nothing(group):
    group.client.commit("h", {FIRST: 50, SECOND: 60})
    group.die(after=False)
    group.reset(group_id="h")
    assert group.at() == [50, 60]


def test_offsets_do_not_depend_on_what_an_earlier_try_has_done(group):
    group.die(after=True)
    group.commit(first=55)
    assert group.reset(to_offset=20) == [20, 20]
    # A restore puts back what others have committed since.
    assert group.receipt["before"] == {"orders": {"0": 55, "1": 60}}
