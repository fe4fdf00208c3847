"""Runs in the Spark driver, and never imports Airflow."""
