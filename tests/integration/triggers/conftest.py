from airflow_task import connect, group, kafka_connection  # noqa: F401
