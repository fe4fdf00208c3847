"""State, parameter checks, lineage and metrics of a running Airflow task."""
