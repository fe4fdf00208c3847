from airflow_task import context, kafka_connection  # noqa: F401
