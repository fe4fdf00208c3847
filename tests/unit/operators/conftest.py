from airflow_task import context, group, pipeline, topic  # noqa: F401
from command_line import cli  # noqa: F401
from drift_checks import checkpoint  # noqa: F401
from hours_of_pipelines import write  # noqa: F401
from memory_kafka import recovery_topic  # noqa: F401
