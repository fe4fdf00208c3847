"""Reasons for which a test of several workers is skipped."""

import shutil

import large_airflow
from large_airflow import CELERY, LOCAL, PROVIDER, REDIS, missing_for


def test_the_reason_names_what_is_missing_and_how_to_install_it(monkeypatch):
    monkeypatch.setattr(large_airflow, "find_spec", lambda _: None)
    assert f"{PROVIDER} is not installed: pip install -c constraints.txt " in str(missing_for(CELERY))
    monkeypatch.setattr(large_airflow, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert missing_for(CELERY) == f"{REDIS} is not installed: apt-get install redis-server"


def test_a_machine_with_both_lacks_nothing_and_local_tasks_need_neither(monkeypatch):
    monkeypatch.setattr(large_airflow, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert missing_for(CELERY) is None
    monkeypatch.setattr(large_airflow, "find_spec", lambda _: None)
    assert missing_for(LOCAL) is None
