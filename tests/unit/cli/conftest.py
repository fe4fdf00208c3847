from commanded_pipeline import committed, do, group, query, topic  # noqa: F401
from memory_kafka import broker, client, delete_records, make_topic, member, memory, produce  # noqa: F401
from moved_pipeline import cli, commit, new_query  # noqa: F401
