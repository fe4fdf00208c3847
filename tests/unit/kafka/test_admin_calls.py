"""What the admin process makes of a group that one question knows and another does not."""

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_offsets.kafka import admin_calls

ABSENT = {"state": "Dead", "type": "classic"}
EMPTY = {"state": "Empty", "type": "classic"}


@pytest.mark.parametrize(
    ("described", "listed", "type_"),
    [
        ([ABSENT], [], "classic"),
        ([ABSENT, ABSENT], ["g"], "other"),
        # Another client has made its first commit between the two questions.
        ([ABSENT, EMPTY], ["g"], "classic"),
        ([EMPTY], ["g"], "classic"),
    ],
)
def test_a_group_that_is_being_made_is_not_one_of_another_kind(monkeypatch, described, listed, type_):
    answers = iter(described)
    monkeypatch.setattr(
        admin_calls, "_describe", lambda _, names: {name: (next(answers), None) for name in names}
    )
    groups = [SimpleNamespace(id=name) for name in listed]
    session: Any = SimpleNamespace(admin=SimpleNamespace(list_groups=lambda *_: groups), seconds_left=1.0)

    ((value, failure),) = admin_calls._described(session, {"g": None}).values()

    assert failure is None
    assert value["type"] == type_
    assert not list(answers)
