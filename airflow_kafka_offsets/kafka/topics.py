"""The topics that the broker shows to the user."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import TOPIC_HIDDEN, CallError, Failure
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC, read_topics
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition, refuse_invalid_partitions
from airflow_kafka_offsets.model.wording import parameter_text

log = logging.getLogger(__name__)

_INTERNAL = (OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata")

_MANY = 200
"""Above this number of topics, the list of all topics is read: otherwise each topic takes a request."""


class Topics:
    """The topics of the brokers that the user may describe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sees_all: bool | None = None
        """Whether the user may describe all topics; ``None`` before the first :meth:`read_all`."""

    def read(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of some topics, without missing topics."""
        wanted = sorted(set(topics))
        refuse_invalid_partitions(TopicPartition(topic, 0) for topic in wanted)
        found: dict[str, list[int]] = {}
        todo = wanted[::-1]

        def question(connection: Connection, timeout: float) -> dict[str, list[int]]:
            if len(todo) > _MANY:
                every = read_topics(connection, None, timeout, self._session.note_cluster)
                found.update({topic: every[topic] for topic in todo if topic in every})
                # The list does not say whether a topic is hidden or missing.
                todo[:] = [topic for topic in todo if topic not in every]
            while todo:
                if call.seconds_left <= 0:
                    raise CallError(Failure("_TIMED_OUT", f"no answer for topic {todo[-1]}"))
                within = min(timeout, call.seconds_left)
                found.update(read_topics(connection, todo[-1], within, self._session.note_cluster))
                todo.pop()
            return found

        with self._session.begin_question(f"looking up topics {', '.join(wanted[:5])}") as call:
            return self._session.ask(call, question)

    def read_all(self, call: Call) -> dict[str, list[int]]:
        """Return the partitions of all topics except Kafka's internal ones."""
        topics = self._session.ask(call, self._list_all)
        return {topic: topics[topic] for topic in sorted(topics) if topic not in _INTERNAL}

    def _list_all(self, connection: Connection, timeout: float) -> dict[str, list[int]]:
        topics = read_topics(connection, None, timeout, self._session.note_cluster)
        if OFFSETS_TOPIC in topics:
            self.sees_all = True
        elif self.sees_all is not False:
            # Before the first commit on a cluster the topic does not exist; the response is then another than
            # "hidden".
            try:
                read_topics(connection, OFFSETS_TOPIC, timeout)
                self.sees_all = True
            except CallError as error:
                if error.failure.code != TOPIC_HIDDEN:
                    raise
                self.sees_all = False
                log.warning(
                    "The broker at %s hides topics that a user may not describe: this user sees only the "
                    "topics that were granted to it (%d). Without a list of topics, only these are used. "
                    "Name %s, or grant this user Describe on all topics of the group",
                    self._session.servers,
                    len(topics),
                    parameter_text("topics", ...),
                )
        return topics
