"""
Gives this process's Airflow a temporary home, which replaces the user's own.

Airflow reads AIRFLOW_HOME once, when it is imported, and the conftest files of single folders import it
before pytest calls any hook. So importing this module sets the home, and tests/conftest.py does that first.
"""

import os
import sys
import tempfile

if "airflow" in sys.modules:
    raise ImportError("Airflow was imported before its home was set: import airflow_home first")

home = tempfile.TemporaryDirectory(prefix="airflow-home-", ignore_cleanup_errors=True)
os.environ["AIRFLOW_HOME"] = home.name
