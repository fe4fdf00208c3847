from commanded_pipeline import committed, do, group, query, topic  # noqa: F401
