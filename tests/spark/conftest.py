"""A standalone Spark cluster of two workers, beside the services that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a running cluster. A test that stops a worker starts it again."""
    made = Cluster(tmp_path_factory.mktemp("spark-cluster"))
    try:
        yield made
    finally:
        made.close()
