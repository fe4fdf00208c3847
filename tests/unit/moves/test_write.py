"""What the writer asks of a client, and in which order."""

import ast
from pathlib import Path

import pytest

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import BrokerUnavailableError, PlanRefusedError
from airflow_kafka_offsets.kafka.groups import GroupDescription
from airflow_kafka_offsets.model.offsets import Commit, Positions, TopicPartition
from airflow_kafka_offsets.moves import write

ROOT = Path(airflow_kafka_offsets.__file__).parent

CHANGES = {"commit", "commit_fenced", "delete_groups", "delete_offsets", "prove_commit"}
"""The clients' calls that change a group, or prove that it may be changed."""

RAW = {
    "alterConsumerGroupOffsets",
    "alter_consumer_group_offsets",
    "delete_consumer_groups",
    "delete_group_offsets",
    "send_commits",
}
"""What the clients make of them."""

CALLERS = {**dict.fromkeys(CHANGES, "moves/write.py"), **dict.fromkeys(RAW, "kafka/ or spark/jvm_client.py")}


def is_allowed(name, file):
    """Whether a file may name a call; the clients call their own parts by the same names."""
    client = file.startswith("kafka/") or file == "spark/jvm_client.py"
    return client or (name in CHANGES and file == "moves/write.py")


def test_only_the_writer_changes_a_group():
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
    named = [
        f"{file}:{node.lineno} names .{node.attr}, which only {CALLERS[node.attr]} may"
        for path, text in texts.items()
        if any(f".{name}" in text for name in CALLERS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in CALLERS
        and not is_allowed(node.attr, file := path.relative_to(ROOT).as_posix())
    ]
    assert not named, "\n".join(named)


class Port:
    """Groups in memory: which are there, and what was done to them."""

    def __init__(self, *groups):
        self.there, self.done, self.again, self.down = set(groups), [], set(), False

    def delete_groups(self, group_ids):
        self.done.append(f"deleted {' '.join(group_ids)}")
        found = {name: None if name in self.there else "there is no such group" for name in group_ids}
        self.there -= found.keys() - self.again
        return found

    def commit(self, group_id, offsets, texts, check=None):
        self.done.append(f"committed {group_id}")

    def delete_offsets(self, group_id, partitions):
        self.done.append(f"deleted offsets of {group_id}")

    def committed(self, group_id, partitions):
        if self.done:
            raise BrokerUnavailableError("no answer")
        return {tp: Commit(HELD[tp]) for tp in partitions}

    def committed_everywhere(self, group_id):
        return {tp: Commit(offset) for tp, offset in HELD.items()}

    def describe_groups(self, group_ids):
        if self.down:
            raise BrokerUnavailableError("no answer")
        return {name: GroupDescription(name, "Empty" if name in self.there else "Dead") for name in group_ids}


HELD = {TopicPartition("orders", 0): 7}
BEFORE: dict[str, Positions] = {"orders": {**HELD}}


def delete(port, save=len, before=BEFORE):
    return write.delete_groups(port, before, save)


def test_nothing_is_deleted_that_could_not_be_saved():
    port = Port("orders")
    with pytest.raises(OSError, match="disk is full"):
        delete(port, lambda _: (_ for _ in ()).throw(OSError("disk is full")))
    assert port.there == {"orders"}


@pytest.mark.parametrize("planned", [{}, {TopicPartition("orders", 0): 6}, {TopicPartition("orders", 1): 7}])
def test_a_group_with_other_offsets_than_those_to_save_is_not_deleted(planned):
    """Another client has committed since the plan was made: its offsets would be lost."""
    port, saved = Port("orders"), []
    with pytest.raises(PlanRefusedError, match="'orders' on orders-0.* have changed since the plan was made"):
        delete(port, saved.append, {"orders": planned})
    assert (port.done, saved) == ([], [])


def test_a_group_that_is_there_again_when_it_is_read_back_is_not_called_deleted():
    port = Port("orders")
    port.again = {"orders"}
    (why,) = delete(port).values()
    assert why == "the group was deleted and is Empty again: another client commits to it"


def test_a_deletion_that_could_not_be_read_back_names_what_was_deleted():
    port = Port("orders")
    port.down = True
    with pytest.raises(BrokerUnavailableError, match="deleted before, but not read back: group orders"):
        delete(port)


@pytest.mark.parametrize(
    ("change", "done"),
    [
        (lambda port: write.commit_offsets(port, "orders", HELD, ""), "committed"),
        (
            lambda port: write.commit_forward(port, "orders", HELD, query="q", check=lambda found: {}),
            "committed",
        ),
        (lambda port: write.delete_offsets(port, "orders", BEFORE["orders"], len), "deleted in part"),
    ],
)
def test_an_error_of_reading_back_says_that_something_was_written(change, done):
    """For example, the right to read was revoked after the commit."""
    expected = f"no answer; {done} before, but not read back: group orders"
    with pytest.raises(BrokerUnavailableError, match=expected):
        change(Port("orders"))
