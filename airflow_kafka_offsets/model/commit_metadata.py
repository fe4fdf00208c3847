"""
Metadata of commits, which records what committed the offsets.

Kafka stores up to 4,096 bytes of text with each committed offset, and any client that may describe the group
can read it. This module writes compact JSON there: the DAG, the run, the Spark query and the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Commit, Positions, TopicPartition
from airflow_kafka_offsets.model.text import is_int, shorten

MAX_BYTES = 4_000
"""Below Kafka's default ``offset.metadata.max.bytes``, 4,096; the client adds a NUL byte."""
# For more partitions the metadata is shortened, because Kafka stores it once for each partition.
MANY_PARTITIONS = 100
MAX_BYTES_OF_MANY = 284
"""Limit for commits of many partitions, which must fit into one record batch."""
_LEAST_IMPORTANT = (
    *("before", "try_number", "user", "approved_at", "partitions", "approved_by", "task", "dag"),
    # The tool tells a move from a pipeline's progress, also in another run.
    *("request", "map_index", "iteration", "clears", "started", "batch", "tool", "run", "move", "plan"),
    *("token", "key", "at", "topic", "cluster", "query"),
)
"""Fields in the order in which a text that is too long loses them."""
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999."""
_SHOWN = 300
MAX_INDEXES = 1024
"""Airflow's default of the most map indexes (``max_map_length``)."""
_MOST_CHARACTERS = 65_536
"""Longest metadata that is parsed: another client's may be longer than :data:`MAX_BYTES`."""
LISTENER = "spark listener"
"""The tool of the commits that a query's own driver makes while the query runs."""


class RunStart(NamedTuple):
    """
    When Airflow started a run; distinguishes it from a deleted run with the same id.

    Retries, deferrals, reschedules and clearing a task do not change it while the run is running. Clearing a
    task of a finished run makes Airflow start the run again and increase the number of clears.

    :param at: the start, in seconds since 1970; ``None`` if unknown.
    :param clears: how often Airflow had cleared the run by then.
    """

    at: int | None = None
    clears: int = 0

    def continues(self, earlier: RunStart) -> bool:
        """Whether this may be the same run as an earlier start, and not a new run with the same id."""
        return None in (self.at, earlier.at) or self.at == earlier.at or self.clears > earlier.clears


@dataclass(frozen=True)
class CommitMetadata:
    """
    The origin of a commit; empty fields are left out of its JSON.

    :param map_index: ``-1`` for a task that is not mapped.
    :param iteration: iteration of the task's loop (Airflow 3.4); ``None`` outside a loop.
    :param user: the user who triggered the run.
    :param query: id of the Spark query, which stays the same across restarts.
    :param move: number of the checkpoint's newest move when its position was read; 0 without a move. A commit
        with a lower number is older than the checkpoint's newest move.
    :param tool: the tool that committed, if it was not a DAG; ``reset`` or ``restore`` for a task that moves
        offsets.
    :param partitions: number of partitions in the commit, if more than one; :meth:`text` adds it. A client
        that sees fewer partitions of the group may lack access to some of its topics.
    :param token: identifies the task instance across its retries; clearing the task changes it.
    :param started: see :class:`RunStart`; ``clears`` likewise.
    :param try_number: Airflow's number of the task's try. Before try 1 the task has committed nothing.
    :param key: replaces DAG, task, map index and iteration if these take too many bytes, see
        :attr:`identity`.
    :param at: when the commit was made, in seconds since 1970.
    :param plan: digest of the saved plan that the commit applies.
    :param approved_by: the user who approved that plan; ``approved_at`` is the time, in seconds since 1970.
    :param before: the offsets of the topic's partitions before a move, see :meth:`offsets_before`.
    :param cluster: id of the Kafka cluster that the commit was made on. MirrorMaker copies it unchanged to
        other clusters.
    :param topic: id of the topic; a recreated topic has a new id.
    """

    dag: str = ""
    run: str = ""
    task: str = ""
    map_index: int = -1
    iteration: int | None = None
    user: str = ""
    query: str = ""
    batch: int | None = None
    move: int | None = None
    tool: str = ""
    partitions: int | None = None
    token: str = ""
    at: int | None = None
    key: str = ""
    cluster: str = ""
    topic: str = ""
    started: int | None = None
    clears: int | None = None
    try_number: int | None = None
    plan: str = ""
    approved_by: str = ""
    approved_at: int | None = None
    request: str = ""
    before: str = ""

    def texts(
        self, partitions: Collection[TopicPartition], log_ids: LogIds, before: Positions | None = None
    ) -> dict[str, str]:
        """
        Return topic -> the text for a commit of partitions, see :meth:`text`.

        :param before: the group's positions before a move.
        """
        found: dict[str, list[str]] = {tp.topic: [] for tp in partitions}
        for (topic, partition), at in (before or {}).items():
            found[topic].append(f"{partition}:{'' if at is None else at}")
        cluster, ids = log_ids.cluster, log_ids.topics
        return {
            topic: replace(
                self, cluster=cluster, topic=ids.get(topic, ""), before=",".join(found[topic])
            ).text(len(partitions))
            for topic in found
        }

    def offsets_before(self, topic: str) -> Positions:
        """Return the positions of a topic's partitions before the move; empty if unknown."""
        return {
            TopicPartition(topic, int(partition)): int(at) if at else None
            for partition, at in re.findall(r"(?:^|(?<=,))([0-9]{1,10}):([0-9]{0,19})(?=,|$)", self.before)
        }

    def text(self, partitions: int = 1) -> str:
        """
        Return the metadata as compact JSON, short enough for a commit of this number of partitions.

        The least important fields are dropped first. The ids of the query, the cluster and the topic are
        dropped last: the guards against two queries in one group and against other logs read them.
        """
        limit = MAX_BYTES_OF_MANY if partitions > MANY_PARTITIONS else MAX_BYTES
        values = self.as_json() | ({"partitions": partitions} if partitions > 1 else {})
        least_important = iter(_LEAST_IMPORTANT)
        # In ASCII, each character is one byte.
        while len(text := json.dumps(values, separators=(",", ":"), ensure_ascii=True)) > limit:
            least = next(least_important)
            values.pop(least, None)
            if least == "task" and self.identity:
                values["key"] = self.identity
        return text

    @property
    def identity(self) -> str:
        """Identifies a task of a run across its tries; empty outside a task."""
        if self.key or not (self.run and self.task):
            return self.key
        loop = [] if self.iteration is None else [self.iteration]
        return digest(self.dag, self.run, self.task, self.map_index, *loop, length=12)

    @property
    def kind(self) -> Literal["commit", "reset", "restore", "failover"]:
        """What made the commit, in a task or on the command line."""
        words = self.tool.split(" ")
        if "failover" in words:
            return "failover"
        if words[-1] == "restore":
            return "restore"
        return "reset" if words[-1] == "reset" or words[-2:] == ["recover", "apply"] else "commit"

    @property
    def is_move(self) -> bool:
        """Whether the commit is of a move, and not of a pipeline's progress."""
        return self.kind != "commit"

    @property
    def run_start(self) -> RunStart:
        """When Airflow started the run."""
        return RunStart(self.started, self.clears or 0)

    def is_same_run(self, earlier: CommitMetadata) -> bool:
        """Whether any task of this run made an earlier commit or move."""
        same = self.run == earlier.run and earlier.dag in ("", self.dag)
        return bool(self.run) and same and self.run_start.continues(earlier.run_start)

    def is_same_instance(self, earlier: CommitMetadata) -> bool:
        """Whether any try of this task since it was last cleared made an earlier commit or move."""
        # Two commits without a token may be of different tasks.
        return bool(self.token) and self.token == earlier.token

    def is_same_task(self, earlier: CommitMetadata) -> bool:
        """Whether any try of this task in this run made an earlier commit or move."""
        if self.is_same_instance(earlier):
            return True
        # Before its first try a task has committed nothing: a commit with its name is from a deleted run.
        same = bool(self.identity) and self.identity == earlier.identity and self.try_number != 1
        return same and self.run_start.continues(earlier.run_start)

    def other_index(self, earlier: CommitMetadata) -> int | None:
        """Return the other map index of this task that made an earlier move in this run, if any."""
        if not (earlier.is_move and earlier.identity and self.run_start.continues(earlier.run_start)):
            return None
        # A commit of many partitions has only the identity.
        indexes = {earlier.map_index, *range(MAX_INDEXES)} - {self.map_index}
        others = (replace(self, map_index=index) for index in indexes)
        return next((each.map_index for each in others if each.identity == earlier.identity), None)

    def is_other_request(self, earlier: CommitMetadata) -> bool:
        """Whether an earlier commit of the same task is known to be of other parameters."""
        return bool(self.request and earlier.request) and self.request != earlier.request

    def is_same_plan(self, earlier: CommitMetadata) -> bool:
        """Whether an earlier commit or move applies the same saved plan, made by any task or tool."""
        return bool(self.plan) and self.plan == earlier.plan

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON without the empty fields."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value not in ("", None) and (name, value) != ("map_index", -1)
        }

    @classmethod
    def parse(cls, text: str | None) -> CommitMetadata:
        """Read a commit's metadata; no field is set if it is empty, unreadable or another client's."""
        return _parse(text) if text and len(text) <= _MOST_CHARACTERS else NO_METADATA

    @classmethod
    def of(cls, commit: Commit | None) -> CommitMetadata:
        """Read the metadata of a commit, see :meth:`parse`; no field is set without a commit."""
        return NO_METADATA if commit is None else cls.parse(commit.metadata)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> CommitMetadata:
        """Read the fields of :meth:`as_json` that are present."""
        known: dict[str, Any] = {
            field.name: values[field.name] for field in fields(cls) if _fits(field, values.get(field.name))
        }
        return cls(**known)

    def __bool__(self) -> bool:
        """Whether any field is set."""
        return self != NO_METADATA

    def __str__(self) -> str:
        # The metadata of a commit with many partitions has no task and no DAG.
        task = ".".join(filter(None, (self.dag, self.task)))
        who = f"run {self.run}{task and f' of {task}'}" if self.run else self.tool or "an unnamed commit"
        return shorten(f"{who} (query {self.query}, batch {self.batch})" if self.query else who, _SHOWN)


NO_METADATA = CommitMetadata()
"""Metadata of another client, or of no commit."""


# All partitions of a commit share one text, and several rules parse the text of each partition.
@lru_cache(maxsize=100)
def _parse(text: str) -> CommitMetadata:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # another client may write anything, such as deeply nested brackets
        return NO_METADATA
    return CommitMetadata.from_json(values) if isinstance(values, Mapping) else NO_METADATA


def _fits(field: Field[Any], value: object) -> bool:
    if field.type == "str":
        return isinstance(value, str) and len(value) <= MAX_BYTES
    return is_int(value, -1, _LAST_SECOND if field.name in ("at", "started", "approved_at") else MAX_OFFSET)
