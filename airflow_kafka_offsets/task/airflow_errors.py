"""
Airflow's errors for failed calls to its API server; no other module imports them.

Remove when ``airflow.sdk`` exports this error, or documents its errors for assets and asset events.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowRuntimeError as AirflowRuntimeError  # noqa: TID251
from airflow.sdk.exceptions import ErrorType  # noqa: TID251


def is_missing_asset(error: AirflowRuntimeError) -> bool:
    """Return whether the error means that Airflow does not have the asset."""
    return error.error.error == ErrorType.ASSET_NOT_FOUND
