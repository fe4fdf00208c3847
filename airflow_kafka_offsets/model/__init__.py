"""Values only: no I/O, no Airflow, no Kafka client, no Spark."""
