"""What a running Airflow task remembers, reports and hands on."""
