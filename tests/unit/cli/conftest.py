from contextlib import contextmanager

import pytest
from command_line import cli  # noqa: F401
from commanded_pipeline import committed, do, group, query, topic, value  # noqa: F401
from moved_fleet import fleet_topic, pipelines, recovering  # noqa: F401

from airflow_kafka_offsets.cli.recovery_file import StateFile


@pytest.fixture
def failing_progress(monkeypatch):
    """With failing_progress(2, error) the second write of a recovery's progress and all after it fail."""

    @contextmanager
    def fail(at, error, *, saved=False, once=False):
        written, writes = StateFile.write, []

        def write(self, fleet):
            writes.append(fleet)
            if len(writes) < at or (once and len(writes) > at) or (saved and len(writes) == at):
                written(self, fleet)
            if len(writes) == at or (len(writes) > at and not once):
                raise error

        with monkeypatch.context() as patched:
            patched.setattr(StateFile, "write", write)
            yield

    return fail
