"""Where does this package keep files on this machine?"""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "AIRFLOW_KAFKA_OFFSETS_CACHE"
"""Names another cache directory than the user's own."""


def cache_directory() -> Path:
    """
    Directory for Kafka's jars and the background broker's data; not created here.

    ``$AIRFLOW_KAFKA_OFFSETS_CACHE``, else ``$XDG_CACHE_HOME/airflow-kafka-offsets``, else
    ``~/.cache/airflow-kafka-offsets``.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path there is to be ignored.
    parent = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return parent / "airflow-kafka-offsets"
