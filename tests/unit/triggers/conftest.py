from airflow_task import group  # noqa: F401
from waiting import fast_polls  # noqa: F401
