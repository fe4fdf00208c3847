"""The part of the client that describes, lists and deletes groups, and deletes single commits."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.failures import OCCUPIED, CallError, Failure
from airflow_kafka_offsets.kafka.groups import GroupDescription, GroupListing, check_states
from airflow_kafka_offsets.kafka.offset_deletion import check_deletion, deletion_refusal
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.names import parse_existing_groups, parse_group
from airflow_kafka_offsets.model.offsets import TopicPartition


class GroupCalls:
    """Base of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient`: describes and deletes groups."""

    _session: Session
    _admin: Admin

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return the state and members of groups; a missing group is ``Dead``."""
        with self._session.begin_call("describing groups") as call:
            return self._admin.describe_groups(group_ids, call)

    def settled_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """
        Return the same as :meth:`describe_groups`, after waiting for commits of windows to end.

        :raises GroupActiveError: if a commit did not end in time; a retry may succeed.
        """
        wanted = parse_existing_groups(group_ids)

        def attempt(_: float) -> dict[str, GroupDescription]:
            described = self._admin.describe_groups(wanted, call)
            for group in described.values():
                if group.is_occupied:
                    raise CallError(Failure(OCCUPIED, group.group_id))
            return described

        with self._session.begin_call("describing groups") as call:
            try:
                return retry_until(call, attempt, temporary=[OCCUPIED])
            except CallError as error:
                group = f"describing group {error.failure.text!r}"
                raise call.with_text(group).explain(error.failure) from None

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        """
        Return all groups, ordered by name.

        :param states: return only groups in one of these states, as Kafka spells them; default: all.
        """
        kept = None if states is None else check_states(states)
        with self._session.begin_call("listing groups") as call:
            found = [GroupListing(**group) for group in self._admin.run(call, "list")]
        # Brokers answer in any order.
        found.sort(key=lambda group: group.group_id)
        return [group for group in found if kept is None or group.state.lower() in kept]

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, str | None]:
        """
        Delete groups of any kind with all their offsets; see ``moves/deletion.py`` for what must be checked.

        :return: group -> ``None`` if it no longer exists, else the reason.
        """
        wanted = parse_existing_groups(group_ids)
        # The reasons are no errors of the call: the other groups are deleted anyway.
        results: dict[str, str | None] = dict.fromkeys(wanted)
        with self._session.begin_call("deleting groups") as call:
            for group_id, (_, failure) in self._admin.ask_groups(call, "delete", wanted).items():
                if failure is not None and failure.code == "NON_EMPTY_GROUP":
                    results[group_id] = "the group has active members: stop them first"
                # A group that is missing may have been deleted by an attempt whose response was lost.
                elif failure is not None and failure.code != "GROUP_ID_NOT_FOUND":
                    about = call.with_text(f"deleting group {group_id!r}")
                    results[group_id] = str(about.explain(failure, "Delete"))
        return results

    def check_offset_deletion(self) -> None:
        """
        Check that :meth:`delete_offsets` works with this connection, without a request.

        :raises SetupError: if kafka-python is missing.
        :raises UsageError: if kafka-python does not have a security setting of the connection.
        """
        check_deletion(self._session.config)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, str | None]:
        """
        Delete a group's commits in partitions; kafka-python does it, which the extra ``delete-offsets`` has.

        :return: partition -> ``None`` if it has no commit any more, else why it was not deleted.
        """
        group_id, wanted = parse_group(group_id), sorted(partitions)
        self.check_offset_deletion()
        with self._session.begin_call(f"deleting offsets of group {group_id!r}") as call:
            found, failure = self._admin.ask_each(call, "delete_offsets", {group_id: wanted})[group_id]
            if failure is not None:
                raise call.explain(failure, "Delete")
            failures = map(self._admin.read_failure, found)
            return {tp: deletion_refusal(failure, call) for tp, failure in zip(wanted, failures, strict=True)}
