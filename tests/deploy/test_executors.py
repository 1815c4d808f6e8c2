"""The overlay spark-on-k8s: its configuration and its pod template start executors that ingest records.

A stand-in for the API server runs the pods as processes of this machine. Everything else is real.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.kubernetes import ApiServer
from tests.support.stack import Stack

pytestmark = pytest.mark.soak
OVERLAY = Path(__file__).parents[2] / "k8s" / "overlays" / "spark-on-k8s"
DRIVER = "ingestd-0"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer("ingestd", tmp_path, DRIVER)
    yield server
    server.close()


def test_daemon_when_executors_are_pods_of_the_template_then_ingests_all_records(
    stack: Stack, api: ApiServer, tmp_path: Path
) -> None:
    stack.topic(4)
    stack.table("id bigint")
    stack.produce({"id": n} for n in range(200_000))
    tini = tmp_path / "tini"  # the image contains it
    tini.write_text('#!/bin/sh\nshift; exec "$@"\n', encoding="utf-8")
    tini.chmod(0o755)
    conf = yaml.safe_load((OVERLAY / "ingestd.yaml").read_text(encoding="utf-8"))["spark"]["conf"]
    conf |= {"spark.kubernetes.executor.podTemplateFile": str(OVERLAY / "executor.yaml"), "spark.executor.cores": "1"}
    config = stack.config(spark={"master": f"k8s://{api.url}", "conf": conf})
    path = f"{tmp_path}:{os.environ['PATH']}"
    daemon = stack.start_process(config, "--until-caught-up", POD_NAME=DRIVER, POD_IP="127.0.0.1", PATH=path)
    assert daemon.wait() == 0, daemon.text()
    assert stack.ids() == list(range(200_000))
    assert len(api.executors) >= 2
