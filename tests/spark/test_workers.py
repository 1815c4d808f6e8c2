"""Spark's Python workers."""

from __future__ import annotations

import os
from pathlib import Path

from ingestd.spark.engine import JobGroup
from tests.support.daemon import shared_engine


def test_workers_when_they_are_forked_then_their_parent_has_all_imports_and_one_thread(processes: None) -> None:
    def parent(name: str) -> str:
        return Path(f"/proc/{os.getppid()}", name).read_text()

    maps, status = shared_engine().run(JobGroup("workers"), parent, ["maps", "status"])
    assert "libarrow" in maps
    assert "librdkafka" in maps
    assert "Threads:\t1\n" in status
