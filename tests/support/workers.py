"""Which tests may run beside which? What shares an Airflow or a Spark stays in one process, in its order."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

Shared = TypeVar("Shared")

OBJECT_STORES = "tests/integration/object_stores/"
# What takes longest, and between it what waits a lot, so that the processor has always something to do.
FIRST = (
    "tests/soak/",  # which needs no Spark: it runs while another process prepares it for all
    "tests/integration/spark/",
    "tests/interleavings/",  # which needs nothing at all
    "tests/system/test_alerts.py",  # and so everything that shares its Airflow
    "tests/integration/kafka/",
    "tests/integration/failover/",
    "tests/system/test_event_driven.py",
    "tests/integration/local/",
    "tests/system/",
    "tests/browser/",
    "tests/integration/secured/",
    OBJECT_STORES,
    "tests/integration/stores/",
    "tests/integration/",
    "tests/package/",
    # Their last files wait: at the end nothing would be left to do beside them.
    "tests/unit/triggers/",
    "tests/unit/ui/",
)
OWN_AIRFLOW = (
    "tests/system/test_event_driven.py",
    "tests/system/test_getting_started.py",
    "tests/system/test_hours.py",
    "tests/system/test_offsets_page.py",
)
WITH_USERS = (
    "tests/system/test_approval_live.py",
    "tests/system/test_approved_reset.py",
    "tests/system/test_recover_pipelines.py",
    "tests/system/test_recovery_live.py",
)
ONE_FOR_ALL = ("tests/integration/secured/", "tests/integration/failover/", OBJECT_STORES)
ONE_SPARK = (
    "tests/compatibility/",
    "tests/integration/operators/test_spark.py",
    "tests/integration/spark/",
    "tests/system/test_runbook.py",
)


def scope(nodeid: str) -> str:
    """Return what a test must run with in one process: its folder, or its file."""
    if nodeid.startswith(ONE_SPARK):
        return "spark"
    if nodeid.startswith(WITH_USERS):
        return "system with users"
    for folder in ONE_FOR_ALL:
        if nodeid.startswith(folder):
            return folder
    one_airflow = nodeid.startswith("tests/system/") and not nodeid.startswith(OWN_AIRFLOW)
    return "system" if one_airflow else nodeid.partition("::")[0]


def sort_by_scope(items: list[pytest.Item]) -> None:
    """Let what takes longest come first, and the tests of a scope come one after the other."""
    items.sort(key=lambda item: _rank(item.nodeid))
    order: dict[str, int] = {}
    for item in items:
        order.setdefault(scope(item.nodeid), len(order))
    items.sort(key=lambda item: order[scope(item.nodeid)])


def _rank(nodeid: str) -> int:
    """Return how early a test is to start."""
    ranks = (number for number, path in enumerate(FIRST) if nodeid.startswith(path))
    return next(ranks, len(FIRST))


def is_in_charge(config: pytest.Config) -> bool:
    """
    Whether this process may hand tests on to others: pytest-xdist is there, and has not started it itself.
    """
    return config.pluginmanager.hasplugin("xdist") and "PYTEST_XDIST_WORKER" not in os.environ


class UntilScopeEnds:
    """
    Ends what the tests of a scope share once the last of them has run; a session's fixture would end later,
    and its servers would work until then.
    """

    def __init__(self) -> None:
        self._shared = ExitStack()

    @contextmanager
    def enter(self, shared: AbstractContextManager[Shared]) -> Iterator[Shared]:
        """Enter a context, and leave it when the scope of the current test ends, at the latest here."""
        yield self._shared.enter_context(shared)
        self._shared.close()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is not None and scope(nextitem.nodeid) != scope(item.nodeid):
            self._shared.close()


class BySharing:
    """Tells pytest-xdist what belongs together."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        from xdist.scheduler import LoadScopeScheduling

        class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
            def _split_scope(self, nodeid: str) -> str:
                return scope(nodeid)

        config.option.loadscopereorder = False
        return Scheduler(config, log)
