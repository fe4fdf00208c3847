"""Which errors does Airflow retry, and which fail the task at once?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.errors import KafkaOffsetsError


@contextmanager
def failing_at_once() -> Iterator[None]:
    """
    Turn errors that would come again at every try into :class:`AirflowFailException`.

    Errors that may pass by themselves (``retriable``) stay as they are, so that Airflow retries them.
    """
    try:
        yield
    except KafkaOffsetsError as error:
        if error.retriable:
            raise
        raise AirflowFailException(str(error)) from error
