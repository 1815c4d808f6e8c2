"""Executors with another version of ingestd than the driver run nothing of a mapping."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import other_version
from tests.support.daemon import SPARK_MASTER
from tests.support.stack import Stack


def test_mapping_when_executors_have_another_version_then_it_stops_and_continues_after_the_upgrade(
    stack: Stack, tmp_path: Path
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce([{"id": 1}])
    daemon = stack.start_process(
        stack.config(spark={"master": SPARK_MASTER, "conf": other_version(tmp_path)}), "--until-caught-up"
    )
    assert daemon.wait() == 70
    [failed] = daemon.events("failed")
    assert failed["reason"] == "JobFailed"
    assert "has ingestd 0.0.9, and the driver has" in failed["error"]
    assert "the same versions of Python and ingestd" in failed["error"]
    stack.drain()
    assert stack.ids() == [1]
