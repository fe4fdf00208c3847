"""How a task ends: its result, stored before its end, and a failure that a retry cannot fix."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Context

from airflow_kafka_offsets.errors import KafkaOffsetsError

log = logging.getLogger(__name__)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """
    Turn errors that every try would repeat into :class:`AirflowFailException`; Airflow retries the others.

    Airflow logs an error with its cause, which has the same text here, so it is only in the debug log.
    """
    try:
        yield
    except KafkaOffsetsError as error:
        if error.retriable:
            raise
        log.debug("Refused", exc_info=error)
        raise AirflowFailException(str(error)) from None


def push_result(context: Context, value: Mapping[str, Any]) -> None:
    """Store a result in XCom now, so that it is there even if the task fails; respect ``do_xcom_push``."""
    ti = context.get("ti")
    # Outside of a run, such as in a test, a task has no instance.
    if ti is not None and getattr(context.get("task"), "do_xcom_push", True):
        ti.xcom_push(key="return_value", value=value)
