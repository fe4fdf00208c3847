from airflow_task import (  # noqa: F401
    connect,
    context,
    group,
    holds,
    kafka_connection,
    pipeline,
    recovery_topic,
    topic,
)
from spark_session import location, run, start, stream  # noqa: F401
