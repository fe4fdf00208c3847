"""What to do about each verdict on a partition."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_offsets.model.partition_state import Verdict
from airflow_kafka_offsets.model.wording import dag_text, parameter_text


def remedies() -> Mapping[Verdict, str]:
    """Return what to do about each verdict."""
    left_out = f"left out with {parameter_text('topics', ...)}"
    commit = dag_text("CommitOffsetsOperator", "'airflow-kafka-offsets group commit'")
    reset = dag_text("ResetOffsetsOperator", "'airflow-kafka-offsets group reset'")
    to_group = f"{reset} with {parameter_text('to_offset', 'committed')} moves the checkpoint to the group"
    return {
        "in step": "no action is needed",
        "group behind": (
            "the newest batch was not committed: run the task that commits; if that task has succeeded, "
            "find out which other task or tool moves the group or the checkpoint. "
            f"{commit} moves the group to the checkpoint; {to_group}, and the query reads the records "
            "between them again"
        ),
        "group ahead": (
            "another task or tool moved the group, or the checkpoint is new or an older copy: find out "
            f"which of the two is right. {commit} with {parameter_text('allow_rewind', True)} moves the "
            f"group back to the checkpoint; {to_group}, and the query skips the records between them"
        ),
        "records lost": (
            "retention deleted records before they were read, and Kafka no longer has them: raise the "
            "topic's retention or run the query more often, load the records again from their source, and "
            "move the checkpoint and the group forward: a reset to committed with "
            f"{parameter_text('on_out_of_range', 'clamp')} moves these partitions to their log start and "
            "leaves the others where they are"
        ),
        "expiring": (
            "retention will soon delete unread records: run the query now, or raise retention.ms of the "
            "topic until the query has caught up"
        ),
        "headroom unknown": (
            f"remove the reason, or omit {parameter_text('min_headroom')} for this pipeline and monitor its "
            "lag"
        ),
        "no commit": (
            "run the task that commits, or correct the name of the group; if it has run, Kafka has deleted "
            "the offsets of a group without members, or the group was deleted; a topic that the task leaves "
            f"out must be {left_out} here too"
        ),
        "partition added": (
            "run the query once: Spark reads a new partition from its start; then commit. A partition that "
            f"the query does not read must be {left_out}"
        ),
        "topic gone": (
            "the connection leads to another cluster, or the topic was deleted: correct the connection, "
            f"leave the topic out with {parameter_text('topics', ...)}, or give the query a new checkpoint"
        ),
        "topic recreated": (
            "the topic was deleted and created again, or the connection leads to another cluster: correct "
            "the connection, or give the query a new checkpoint; if the offsets are right there, commit once "
            f"with {parameter_text('allow_new_cluster', True)}"
        ),
        "not read": (
            "the query no longer reads the topic, so its new records are not read: let the query read the "
            "topic again; if the query dropped the topic on purpose, delete the group's offsets for it "
            f"({dag_text('left_topics of CommitOffsetsOperator, or ')}airflow-kafka-offsets group "
            "delete-offsets), use a new group, or leave the topic out with "
            f"{parameter_text('topics', ...)}"
        ),
        "other query": (
            "the group follows another query: give each query its own group; if this query replaces the "
            f"other one, commit once with {parameter_text('allow_new_query', True)}"
        ),
    }
