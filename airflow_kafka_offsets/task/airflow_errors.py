"""
Airflow's errors about what its API server answers; no other module imports them.

Remove when ``airflow.sdk`` exports the error, or documents the ones of assets and of their events.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowRuntimeError as AirflowRuntimeError
from airflow.sdk.exceptions import ErrorType


def is_missing_asset(error: AirflowRuntimeError) -> bool:
    """Whether Airflow does not have the asset."""
    return error.error.error == ErrorType.ASSET_NOT_FOUND
