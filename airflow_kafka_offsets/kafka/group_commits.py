"""Reads commits of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.explain import Call, Right
from airflow_kafka_offsets.kafka.failures import TOPIC_HIDDEN
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC
from airflow_kafka_offsets.kafka.session import INTERNAL, Session
from airflow_kafka_offsets.model.names import parse_existing_group
from airflow_kafka_offsets.model.offsets import Commit, Commits, TopicPartition, refuse_invalid_partitions


class GroupCommits:
    """The commits of one group."""

    def __init__(self, session: Session, admin: Admin, group_id: str) -> None:
        self._session = session
        self._admin = admin
        self._group_id = parse_existing_group(group_id)

    def read(self, call: Call, partitions: Iterable[TopicPartition], needs: Right = "Describe") -> Commits:
        """Return the commits of partitions; ``None`` for missing commits and missing partitions."""
        wanted = sorted(dict.fromkeys(partitions))
        refuse_invalid_partitions(wanted)
        found = self._ask(call, wanted, needs) if wanted else {}
        return {tp: found.get(tp) for tp in wanted}

    def read_all(self, call: Call) -> dict[TopicPartition, Commit]:
        """Return the commits in all topics that the user may see."""
        found = self._ask(call, None)
        # Only these topics: a cluster may have a hundred thousand partitions.
        on_broker = self._session.topics(call, {tp.topic for tp in found}.difference(INTERNAL))
        if not found and not self._session.sees_all_topics(call) and not self._session.all_topics(call):
            self._refuse_user_without_topics(call)
        return {tp: commit for tp, commit in sorted(found.items()) if tp.topic in on_broker}

    def _ask(
        self, call: Call, wanted: Sequence[TopicPartition] | None, needs: Right = "Describe"
    ) -> dict[TopicPartition, Commit]:
        found = self._admin.read_commits({self._group_id: wanted}, call, needs)[self._group_id]
        if isinstance(found, BrokerError):
            raise found
        return found

    def _refuse_user_without_topics(self, call: Call) -> None:
        """Raise an error with the missing right for a user who may not see any topic."""
        try:
            self.read(call, [TopicPartition(OFFSETS_TOPIC, 0)])
        except BrokerAuthenticationError as error:
            if error.code != TOPIC_HIDDEN:
                raise
            text = "this user may see no topic at all: grant it Describe on the topics that the group reads"
            raise BrokerAuthenticationError(f"{call.what}: {text}", code=error.code) from None
