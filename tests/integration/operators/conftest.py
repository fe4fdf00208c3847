from airflow_task import (  # noqa: F401  # noqa: F401
    connect,
    context,
    delete_before,
    group,
    holds,
    kafka_connection,
    pipeline,
    recovery_topic,
    topic,
)
