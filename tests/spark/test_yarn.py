"""Mappings whose stages run on YARN, while containers are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cluster import tree
from tests.support.flow import Flow, proceed
from tests.support.stack import Stack, eventually
from tests.support.yarn.cluster import yarn


@pytest.mark.soak
def test_mapping_when_containers_of_yarn_and_the_driver_are_killed_then_each_record_is_stored_once(
    stack: Stack, tmp_path: Path
) -> None:
    stack.topic(4)
    stack.table("id bigint")
    folder = tmp_path / "yarn"
    folder.mkdir()
    with yarn(folder) as cluster:
        secret = f"hidden{os.urandom(8).hex()}"
        kafka = {"bootstrap.servers": stack.addresses.kafka, "sasl.password": secret}
        config = stack.config(spark=cluster.options(executor_timeout="2m"), kafka=kafka)
        daemon = stack.start_process(config, **cluster.environment)
        with Flow(stack.addresses.kafka, stack.name) as flow:
            proceed(daemon, stack.name[-40:], flow)
            executors = eventually("two executors", lambda: len(cluster.executors()) == 2 and cluster.executors())
            shown = {str(path): path.read_text(errors="replace") for path in (*cluster.logs(), *cluster.scripts())}
            assert any("launch_container" in path for path in shown)
            assert [path for path, text in shown.items() if secret in text] == []
            for process in tree(executors[0]):
                process.kill()
            proceed(daemon, stack.name[-40:], flow)
            eventually("another executor", lambda: len(cluster.executors()) == 2)
            daemon.kill()
            daemon = stack.start_process(config, **cluster.environment)
            proceed(daemon, stack.name[-40:], flow)
        eventually("all rows", lambda: stack.count() >= flow.sent)
        daemon.terminate()
        assert daemon.wait() == 0, daemon.text()[-3000:]
        eventually("the end of the applications", lambda: not cluster.applications() and not cluster.executors())
    assert stack.ids() == list(range(flow.sent))
