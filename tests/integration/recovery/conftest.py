from airflow_task import context, holds, kafka_connection, pipeline, recovery_topic  # noqa: F401
