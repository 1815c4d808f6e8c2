"""What `ingestd doctor` finds about the executors of a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.stack import Stack


@pytest.mark.soak
def test_doctor_when_an_executor_reaches_one_of_two_kafka_clusters_then_names_the_other(
    stack: Stack, cluster: Cluster
) -> None:
    other = {"name": "other", "kafka": {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000}}
    both = _examined(stack.config({}, other, spark=cluster.options()))
    assert both["status"] == "fault"
    assert "127.0.0.1:1" in both["evidence"]
    assert "firewalls" in both["fix"]
    one = _examined(stack.config(spark=cluster.options()))
    assert one["status"] == "ok"
    assert "runs 2 tasks at the same time" in one["evidence"]
    avro = {"format": {"type": "avro"}}
    registry = _examined(stack.config(avro, spark=cluster.options(), registry={"url": "http://127.0.0.1:1"}))
    assert registry["status"] == "fault"
    assert "schema registry at 127.0.0.1:1" in registry["evidence"]


@pytest.mark.soak
def test_doctor_when_executors_are_too_slow_then_says_how_to_extend_the_limit(
    stack: Stack, cluster: Cluster, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec cat\n", encoding="utf-8")  # never answers, and ends with its executor
    python.chmod(0o755)
    found = _examined(stack.config(spark=cluster.options({"spark.pyspark.python": str(python)})), seconds=30)
    assert (found["status"], found["exit_code"]) == ("fault", 70)
    assert "did not finish a small job within" in found["evidence"]
    assert "--timeout" in found["fix"]


def _examined(config: Path, seconds: int = 60) -> dict[str, Any]:
    command = [sys.executable, "-m", "ingestd", "doctor", "--config", str(config), "--output", "json"]
    done = subprocess.run([*command, "--timeout", str(seconds)], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    [found] = [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "spark.executors"]
    assert isinstance(found, dict)
    return found
