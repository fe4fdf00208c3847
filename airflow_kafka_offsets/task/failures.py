"""Fails a task at once for errors that a retry cannot fix."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.errors import KafkaOffsetsError

log = logging.getLogger(__name__)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """
    Turn errors that every try would repeat into :class:`AirflowFailException`.

    Temporary errors (``retriable``) are not changed, so Airflow retries them. Airflow logs an error together
    with its cause. The cause has the same text here, so it is only in the debug log.
    """
    try:
        yield
    except KafkaOffsetsError as error:
        if error.retriable:
            raise
        log.debug("Refused", exc_info=error)
        raise AirflowFailException(str(error)) from None
