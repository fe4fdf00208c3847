from airflow_task import context, group, pipeline, topic  # noqa: F401
from memory_kafka import (  # noqa: F401
    broker,
    client,
    delete_records,
    grow,
    holds,
    make_topic,
    member,
    memory,
    produce,
    recovery_topic,
    recreate,
)
from moved_pipeline import cli, commit, committed, new_query  # noqa: F401
