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
from drift_checks import checkpoint  # noqa: F401
from hours_of_pipelines import write  # noqa: F401
from spark_session import location, run, start, stream  # noqa: F401
