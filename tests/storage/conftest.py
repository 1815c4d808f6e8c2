"""Fixtures for tests of storages: a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hdfs import Cluster, hdfs


@pytest.fixture(scope="session")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a running HDFS, which tests leave running."""
    with hdfs(tmp_path_factory.mktemp("hdfs") / "state") as running:
        yield running
