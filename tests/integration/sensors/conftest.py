from airflow_task import connect, delete_before, group, kafka_connection  # noqa: F401
