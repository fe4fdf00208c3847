"""
Metadata of commits: who committed these offsets.

Kafka keeps up to 4,096 bytes of text beside each committed offset and shows it to anybody who asks: here
compact JSON that says which run of which DAG moved the group, and from which Spark query and batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Commits, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import parameter_text

MAX_BYTES = 4_000
"""Kafka's ``offset.metadata.max.bytes`` is 4,096, the client adds a NUL; some room is left."""
# From here on the metadata is cut: Kafka stores it once for each partition.
MANY_PARTITIONS = 100
MAX_BYTES_OF_MANY = 268
"""The metadata is stored once a partition, and a commit must fit into one record batch."""
_NUMBERS = (
    *("map_index", "iteration", "batch", "move", "partitions", "at", "started", "clears", "try_number"),
    "approved_at",
)
_FIRST_TO_GO = (
    *("try_number", "user", "approved_at", "partitions", "at", "approved_by", "task", "dag", "tool"),
)
_LAST_TO_GO = (
    *("map_index", "iteration", "clears", "started", "run", "batch", "move", "plan"),
    *("token", "key", "topic", "cluster", "query"),
)
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999."""
_SHOWN = 300
_MOST_CHARACTERS = 65_536
"""What others have committed may be longer than ours, but not that long."""


class RunStart(NamedTuple):
    """
    When Airflow started a run, which tells it from a deleted run with the same id.

    Retries, deferrals, reschedules and the Clear of a task leave it, unless the run had ended: then Airflow
    starts the run again and counts the Clear.

    :param at: in seconds since 1970; ``None`` if it is not known.
    :param clears: how often Airflow has cleared the run by now.
    """

    at: int | None = None
    clears: int = 0

    def continues(self, earlier: RunStart) -> bool:
        """Whether this may be the run that an earlier moment was of: Airflow has not created it since."""
        return None in (self.at, earlier.at) or self.at == earlier.at or self.clears > earlier.clears


@dataclass(frozen=True)
class CommitMetadata:
    """
    What a commit records about its origin; whatever is empty is left out.

    :param map_index: ``-1`` for a task that is not mapped.
    :param iteration: of the task loop (Airflow 3.4) that the task is in; ``None`` outside a loop.
    :param user: who triggered the run.
    :param query: id of the Spark query, stable over its restarts.
    :param move: number of the newest move of the query's checkpoint when its position was read, 0 if it was
        never moved. A commit made before a move says less than the checkpoint says after it.
    :param tool: what committed, where it was no DAG; ``reset`` or ``restore`` of a task that moves on
        purpose.
    :param partitions: of how many partitions the commit was, if more than one: :meth:`text` puts it in. Who
        sees fewer of the group's may not see all of its topics.
    :param token: names the task run over its retries; clearing the task makes it another one.
    :param started: when the run was started, in seconds since 1970, see :class:`RunStart`.
    :param clears: how often the run was cleared until then.
    :param try_number: Airflow's number of the task's try: before the first one it has committed nothing.
    :param key: in place of DAG, task, map index and iteration where these take too many bytes, see
        :attr:`identity`.
    :param at: when the commit was made, in seconds since 1970.
    :param plan: digest of the saved plan that it carries out.
    :param approved_by: who has approved that plan, and ``approved_at`` when, in seconds since 1970.
    :param cluster: id of the Kafka cluster that it was made on. MirrorMaker copies it to another one.
    :param topic: id of the topic, which it does not get again when it is created again.
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

    def texts(self, partitions: Collection[TopicPartition], log_ids: LogIds) -> dict[str, str]:
        """Return topic -> the text for a commit of partitions, see :meth:`text`."""
        ids = log_ids.topics
        return {
            topic: replace(self, cluster=log_ids.cluster, topic=ids.get(topic, "")).text(len(partitions))
            for topic in {tp.topic for tp in partitions}
        }

    def text(self, partitions: int = 1) -> str:
        """
        Return the metadata as compact JSON that is short enough for a commit of so many partitions.

        What is least needed goes first. The ids of query, cluster and topic stay longest: the guards against
        two queries in one group, and against other logs, read them.
        """
        limit = MAX_BYTES_OF_MANY if partitions > MANY_PARTITIONS else MAX_BYTES
        values = self.as_json() | ({"partitions": partitions} if partitions > 1 else {})
        for least in ("", *_FIRST_TO_GO, *_LAST_TO_GO):
            values.pop(least, None)
            if least == "task" and self.identity:
                values["key"] = self.identity
            # ASCII, so that a character is a byte.
            text = json.dumps(values, separators=(",", ":"), ensure_ascii=True)
            if len(text) <= limit:
                return text
        return ""

    @property
    def identity(self) -> str:
        """Identifies one task of one run, whichever of its tries it is; empty if it is none."""
        if self.key or not (self.run and self.task):
            return self.key
        loop = [] if self.iteration is None else [self.iteration]
        return digest(self.dag, self.run, self.task, self.map_index, *loop, length=12)

    @property
    def is_move(self) -> bool:
        """Whether it is of a reset or a restore, by a task or a command."""
        return self.tool.rpartition(" ")[2] in ("reset", "restore")

    @property
    def run_start(self) -> RunStart:
        """When the run was started."""
        return RunStart(self.started, self.clears or 0)

    def is_same_run(self, earlier: CommitMetadata) -> bool:
        """Whether an earlier commit or move is of this run, whichever of its tasks it was."""
        same = self.run == earlier.run and earlier.dag in ("", self.dag)
        return bool(self.run) and same and self.run_start.continues(earlier.run_start)

    def is_same_task(self, earlier: CommitMetadata) -> bool:
        """Whether an earlier commit or move is of this task in this run, whichever of its tries it was."""
        if self.token and self.token == earlier.token:
            return True
        # The first try of a task has committed nothing: a commit with its name is of a deleted run.
        same = bool(self.identity) and self.identity == earlier.identity and self.try_number != 1
        return same and self.run_start.continues(earlier.run_start)

    def is_same_plan(self, earlier: CommitMetadata) -> bool:
        """Whether an earlier commit or move carries out the same saved plan, whoever made it."""
        return bool(self.plan) and self.plan == earlier.plan

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, without what is empty."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value not in ("", None) and (name, value) != ("map_index", -1)
        }

    @classmethod
    def parse(cls, text: str | None) -> CommitMetadata | None:
        """Read a commit's metadata; ``None`` if it is not ours (empty, unreadable, another client's)."""
        return _parse(text) if text and len(text) <= _MOST_CHARACTERS else None

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> CommitMetadata | None:
        """Read what :meth:`as_json` returned; ``None`` if there is nothing of it."""
        names = (field.name for field in fields(cls))
        known: dict[str, Any] = {name: values[name] for name in names if _fits(name, values.get(name))}
        return cls(**known) if known else None

    def __str__(self) -> str:
        # A commit of many partitions leaves out its task and its DAG.
        task = ".".join(filter(None, (self.dag, self.task)))
        who = f"run {self.run}{task and f' of {task}'}" if self.run else self.tool or "an unnamed commit"
        return shorten(f"{who} (query {self.query}, batch {self.batch})" if self.query else who, _SHOWN)


# The partitions of one commit share a text, and several rules look at each of them.
@lru_cache(maxsize=100)
def _parse(text: str) -> CommitMetadata | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # others may write what they like, brackets in brackets too
        return None
    return CommitMetadata.from_json(values) if isinstance(values, Mapping) else None


def _fits(name: str, value: object) -> bool:
    if name not in _NUMBERS:
        return isinstance(value, str) and len(value) <= MAX_BYTES
    most = _LAST_SECOND if name in ("at", "started", "approved_at") else MAX_OFFSET
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= most


def is_partly_moved(commits: Sequence[CommitMetadata | None], metadata: CommitMetadata) -> bool:
    """
    Return whether an earlier try of a task has moved some of its partitions and not the others.

    If it had moved all of them, the others were committed later, by somebody who has gone on from there.

    :param commits: the last commit of every partition; ``None`` for one without, or that does not say who
        made it.
    """
    moved = [each for each in commits if each is not None and metadata.is_same_task(each)]
    others = [each for each in commits if each is not None and not metadata.is_same_task(each)]
    first = min((each.at or 0 for each in moved), default=0)
    return 0 < len(moved) < len(commits) and not any((each.at or 0) > first for each in others)


def committer_text(text: str | None) -> str:
    """Return who made a commit and when, for an error text; empty if its metadata does not say."""
    metadata = CommitMetadata.parse(text)
    if metadata is None or not (metadata.run or metadata.tool or metadata.query):
        return ""
    at = metadata.at or 0
    return str(metadata) + (f" at {iso_time(at * 1_000)}" if 0 < at < 1 << 36 else "")


def foreign_query(group_id: str, commits: Commits, query: str) -> str | None:
    """Return why the query that commits must not: the group follows another one; ``None`` if it does not."""
    texts = {tp: commit.metadata for tp, commit in sorted(commits.items()) if commit is not None}
    for text in texts.values():
        metadata = CommitMetadata.parse(text)
        if text is None:
            found = "could not be read, so it counts as another client's"
        elif metadata is not None and metadata.query and metadata.query != query:
            found = f"is of {metadata}"
        else:
            continue
        same = [tp for tp, other in texts.items() if other == text]
        return (
            f"the last commit of group {group_id!r} on {summarize(same)} {found}, and the checkpoint is of "
            f"query {query}: two queries in one group overwrite each other; give this one a group of its "
            f"own, or set {parameter_text('allow_new_query', True)} if it takes the other's place (a new "
            "checkpoint has a new query id, and a job without checkpointLocation has a new checkpoint at "
            "each start)"
        )
    return None


def check_group_follows(group_id: str, commits: Commits, query: str, current: LogIds) -> None:
    """
    Refuse, with a PlanRefusedError, a group that does not follow a query, or its logs.

    :param query: the query that commits; empty if it may take over the group of another one.
    :param current: the logs to which the connection leads; unknown ones compare with everything.
    """
    other = foreign_query(group_id, commits, query) if query else None
    if refusals := [other] if other else foreign_logs(group_id, commits, current):
        raise PlanRefusedError(refusals)


def log_ids_of(commits: Commits, current: LogIds) -> LogIds:
    """Return the logs that commits were made on, as far as they say; one that is not of ``now`` wins."""
    cluster = ""
    topics: dict[str, str] = {}
    for tp, commit in sorted(commits.items()):
        made = CommitMetadata.parse(commit.metadata) if commit is not None else None
        if made is None:
            continue
        if made.cluster and cluster in ("", current.cluster):
            cluster = made.cluster
        if made.topic and topics.get(tp.topic) in (None, current.topics.get(tp.topic)):
            topics[tp.topic] = made.topic
    return LogIds(cluster, topics)


def foreign_logs(
    group_id: str, commits: Commits, current: LogIds, *, old_offsets: bool = True, remedy: str = ""
) -> list[str]:
    """
    Return why a group's offsets mean nothing: its last commits were made on another cluster, or topic.

    :param current: the logs to which the connection leads.
    :param old_offsets: see :func:`~airflow_kafka_offsets.model.log_ids.other_logs_refusals`, as for
        ``remedy``.
    """
    made = log_ids_of(commits, current)
    what = f"the last commit of group {group_id!r}"
    return other_logs_refusals(what, made, current, old_offsets=old_offsets, remedy=remedy)
