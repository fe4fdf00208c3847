from airflow_task import connect, group, kafka_connection  # noqa: F401
from waiting import behind  # noqa: F401
