import importlib.util

import pytest
from sqlalchemy import create_engine, text

from airflow_kafka_offsets.local.demo import LOCK_TIMEOUT, copy_dags, demo_environment, find_dag


def test_the_ui_shows_the_dags_of_the_demo_and_no_others(tmp_path):
    dag = copy_dags(find_dag(), tmp_path / "dags")
    assert dag == tmp_path / "dags" / "daily_flights.py"
    found = {file.relative_to(tmp_path / "dags").as_posix() for file in tmp_path.rglob("*.py")}
    assert found == {
        "daily_flights.py",
        "jobs/flights_day_job.py",
        "jobs/flights_job.py",
        "one_bad_day.py",
        "recover_flights.py",
    }


@pytest.mark.parametrize("name", ["daily_flights", "one_bad_day", "recover_flights"])
def test_the_copied_dags_find_their_jobs(tmp_path, name):
    file = copy_dags(find_dag(), tmp_path / "dags").with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (job,) = {task.application for task in module.dag.tasks if hasattr(task, "application")}
    assert (tmp_path / "dags" / "jobs") in type(tmp_path)(job).parents


def test_airflow_waits_longer_for_its_database_than_a_loaded_machine_holds_it(tmp_path):
    # After SQLite's 5 seconds an event of a trigger ends the triggerer: "database is locked".
    (tmp_path / "airflow").mkdir()
    environment = demo_environment(tmp_path, tmp_path / "dags", "127.0.0.1:1")
    engine = create_engine(environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == LOCK_TIMEOUT * 1_000
    engine.dispose()
    assert (tmp_path / "airflow" / "airflow.db").exists()
