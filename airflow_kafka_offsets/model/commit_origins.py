"""What a group's last commits say about their query, their logs and the moves before them."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import LISTENER, CommitMetadata
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Commit, Commits, Offsets, summarize
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.model.wording import parameter_text


def is_partly_moved(commits: Sequence[CommitMetadata], metadata: CommitMetadata) -> bool:
    """
    Return whether an earlier try of a task has moved only some of its partitions.

    If another client committed the others later, the earlier try had moved all, and that client has
    continued.

    :param commits: the metadata of every partition's last commit.
    """
    moved = [each for each in commits if metadata.is_same_task(each)]
    others = [each for each in commits if not metadata.is_same_task(each)]
    first = min((each.at or 0 for each in moved), default=0)
    return 0 < len(moved) < len(commits) and not any((each.at or 0) > first for each in others)


def committer_text(commit: Commit | None) -> str:
    """Return the origin and the time of a commit, for an error text; empty if unknown."""
    metadata = CommitMetadata.of(commit)
    if not (metadata.run or metadata.tool or metadata.query):
        return ""
    at = metadata.at or 0
    return str(metadata) + (f" at {iso_time(at * 1_000)}" if 0 < at < 1 << 36 else "")


def other_query_refusal(group_id: str, commits: Commits, query: str) -> str | None:
    """
    Return why a query must not commit to a group that follows another query; ``None`` if it may.

    :param query: empty for a job without a query, whose group must follow none.
    """
    texts = {tp: commit.metadata for tp, commit in sorted(commits.items()) if commit is not None}
    for text in texts.values():
        metadata = CommitMetadata.parse(text)
        if text is None:
            found = "could not be read, so it counts as another client's"
        elif metadata.query not in ("", query):
            found = f"is of {metadata}"
        else:
            continue
        same = [tp for tp, other in texts.items() if other == text]
        last = f"the last commit of group {group_id!r} on {summarize(same)} {found}"
        if not query:
            return (
                f"{last}, and this task commits the offsets of no query: leave the topic out, or delete its "
                "offsets with 'airflow-kafka-offsets group delete-offsets' if that query no longer reads it"
            )
        return (
            f"{last}, and the checkpoint is of query {query}: two queries in one group overwrite each other; "
            f"give this query its own group, or set {parameter_text('allow_new_query', True)} if it replaces "
            "the other query (a new checkpoint has a new query id, and a job without checkpointLocation has "
            "a new checkpoint at each start)"
        )
    return None


def check_group_follows(group_id: str, commits: Commits, query: str, current: LogIds) -> None:
    """
    Raise a PlanRefusedError if a group follows another query or other logs.

    :param query: the query that commits; empty if it may replace another query in the group.
    :param current: ids of the logs that the connection leads to; unknown ids match every id.
    """
    other = other_query_refusal(group_id, commits, query) if query else None
    PlanRefusedError.raise_if([other] if other else commit_log_refusals(group_id, commits, current))


def newest_move(commits: Commits, query: str) -> int:
    """Return the number of the newest move of a query's checkpoint before its commits; 0 for none."""
    made = map(CommitMetadata.of, commits.values())
    return max((by.move or 0 for by in made if by.query == query), default=0)


def moves_after_batch(
    commits: Commits, query: str, batch: int | None, ends: Offsets, began: float
) -> set[int]:
    """
    Return the numbers of a checkpoint's moves after a batch: later commits differ from the batch's ends.

    :param began: when the run with the batch began; a commit before that says nothing about later batches.
    """
    found: set[int] = set()
    for tp, commit in commits.items():
        by = CommitMetadata.of(commit)
        if commit is None or batch is None or by.batch is None or by.query != query or not by.move:
            continue
        # With the listener the query may have finished the batch between two of its readings.
        same_batch = by.batch == batch and by.tool != LISTENER and commit.offset != ends[tp]
        # After a truncation, batches have earlier numbers again.
        went_back = by.batch > batch and commit.offset < ends[tp] and (by.at or 0) >= began
        if same_batch or went_back:
            found.add(by.move)
    return found


def log_ids_of(commits: Commits, current: LogIds) -> LogIds:
    """Return the ids of the logs that commits were made on; an id that differs from ``current`` wins."""
    cluster = ""
    topics: dict[str, str] = {}
    for tp, commit in sorted(commits.items()):
        made = CommitMetadata.of(commit)
        if made.cluster and cluster in ("", current.cluster):
            cluster = made.cluster
        if made.topic and topics.get(tp.topic) in (None, current.topics.get(tp.topic)):
            topics[tp.topic] = made.topic
    return LogIds(cluster, topics)


def commit_log_refusals(
    group_id: str, commits: Commits, current: LogIds, *, old_offsets: bool = True, remedy: str = ""
) -> list[str]:
    """
    Return why a group's offsets are invalid: its last commits were made on another cluster or topic.

    :param current: ids of the logs that the connection leads to; the others as in
        :func:`other_logs_refusals`.
    """
    made = log_ids_of(commits, current)
    what = f"the last commit of group {group_id!r}"
    return other_logs_refusals(what, made, current, old_offsets=old_offsets, remedy=remedy)
