from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mirrored_clusters import Mirrored, mirrored_clusters
from spark_session import location, run, start  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """A Kafka, its mirror, and a real MirrorMaker between them, which tests must not stop."""
    with mirrored_clusters(tmp_path_factory.mktemp("mirrored")) as found:
        yield found
