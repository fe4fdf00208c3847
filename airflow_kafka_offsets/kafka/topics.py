"""The topics that the broker shows to the user."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import TOPIC_HIDDEN, CallError
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC, read_topics
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition, check_partitions
from airflow_kafka_offsets.model.wording import parameter_text

log = logging.getLogger(__name__)

_INTERNAL = (OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata")


class Topics:
    """The topics on the broker, as far as the user may describe them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sees_all: bool | None = None
        """Whether the user may describe all topics; ``None`` before the first :meth:`read_all`."""

    def read(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of some topics; one that does not exist is not in the result."""
        wanted = sorted(set(topics))
        check_partitions(TopicPartition(topic, 0) for topic in wanted)
        found: dict[str, list[int]] = {}
        todo = wanted[::-1]

        def question(connection: Connection, timeout: float) -> dict[str, list[int]]:
            while todo:
                found.update(read_topics(connection, todo[-1], timeout, self._session))
                todo.pop()
            return found

        with self._session.begin_question(f"looking up topics {', '.join(wanted[:5])}") as call:
            return self._session.ask(call, question)

    def read_all(self, call: Call) -> dict[str, list[int]]:
        """Return the partitions of all topics that are not Kafka's own."""
        topics = self._session.ask(call, self._all)
        return {topic: topics[topic] for topic in sorted(topics) if topic not in _INTERNAL}

    def _all(self, connection: Connection, timeout: float) -> dict[str, list[int]]:
        topics = read_topics(connection, None, timeout, self._session)
        sees_all = OFFSETS_TOPIC in topics
        if not sees_all and self.sees_all is not False:
            # The topic does not exist before the first commit on a cluster; then the response is not
            # "hidden".
            try:
                read_topics(connection, OFFSETS_TOPIC, timeout)
                sees_all = True
            except CallError as error:
                if error.failure.code != TOPIC_HIDDEN:
                    raise
        if self.sees_all is not False and not sees_all:
            log.warning(
                "The broker at %s hides topics that a user may not describe, and this user sees only the "
                "topics that were granted to it, %d: where topics are not named, all topics of a group, and "
                "all that fit a pattern, are of those. Name %s, or grant it Describe on all of the group's",
                self._session.servers,
                len(topics),
                parameter_text("topics", ...),
            )
        self.sees_all = sees_all
        return topics
