from command_line import cli  # noqa: F401
from commanded_pipeline import committed, do, group, query, topic, value  # noqa: F401
from moved_fleet import fleet_topic, pipelines, recovering  # noqa: F401
