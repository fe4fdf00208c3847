"""What tests share lives from the first to the last of them, in one process and in one go."""

from contextlib import contextmanager
from itertools import groupby, pairwise
from types import SimpleNamespace

from workers import UntilScopeEnds, scope, sort_by_scope

SHARED = ("tests/system/test_approval_live.py::test_a", "tests/system/test_recovery_live.py::test_b")
OTHER = "tests/system/test_audited_window.py::test_c"


def items(*names):
    return [SimpleNamespace(nodeid=name) for name in names]


def test_the_tests_of_a_scope_come_one_after_the_other():
    found = items(SHARED[0], OTHER, SHARED[1], "tests/unit/test_docs.py::test_d")
    sort_by_scope(found)
    scopes = [scope for scope, _ in groupby(scope(item.nodeid) for item in found)]
    assert len(scopes) == len(set(scopes)) == 3


def test_what_a_scope_shares_ends_with_its_last_test():
    told = []

    @contextmanager
    def airflow():
        told.append("begins")
        yield
        told.append("ends")

    ends = UntilScopeEnds()
    with ends.enter(airflow()):
        for item, following in pairwise(items(*SHARED, OTHER, OTHER)):
            ends.pytest_runtest_teardown(item, following)
            told.append(item.nodeid)
    assert told == ["begins", SHARED[0], "ends", SHARED[1], OTHER]


def test_without_another_scope_it_ends_with_the_fixture():
    told = []

    @contextmanager
    def airflow():
        yield
        told.append("ends")

    ends = UntilScopeEnds()
    with ends.enter(airflow()):
        ends.pytest_runtest_teardown(items(SHARED[0])[0], None)
        assert not told
    assert told == ["ends"]
