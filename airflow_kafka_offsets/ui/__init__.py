"""The Offsets tab in the UI of Airflow: an Airflow plugin with pages and read-only routes."""
