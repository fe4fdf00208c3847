"""Nothing needs the Spark provider when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, *_):
        # Airflow reads what the provider says of itself.
        if name.startswith("airflow.providers.apache.spark.") and "provider_info" not in name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import airflow_kafka_offsets
from airflow_kafka_offsets.provider_info import get_provider_info

get_provider_info()
for module in pkgutil.walk_packages(airflow_kafka_offsets.__path__, "airflow_kafka_offsets."):
    if not module.name.endswith(("__main__", ".dags_examples")):
        importlib.import_module(module.name)
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
try:
    KafkaSparkSubmitOperator(task_id="spark", application="orders.py")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_everything_is_imported_and_the_operator_that_needs_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "SetupError KafkaSparkSubmitOperator needs apache-airflow-providers-apache-spark, which is not "
        "installed: pip install apache-airflow-providers-apache-spark"
    )
