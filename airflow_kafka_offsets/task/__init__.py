"""What a running Airflow task remembers, maps and reports."""
