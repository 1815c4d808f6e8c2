"""The container image: it is built from the Dockerfile, and its daemon survives kills and restarts without privileges.

There is no container engine: buildah builds the image, and the test runs its file system, read-only, in namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.container import Container
from tests.support.stack import Stack, eventually

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("buildah") is None or os.geteuid() != 0, reason="needs buildah and root"),
]


def _files(stack: Stack, table: str) -> Path:
    """Write the configuration of a mapping, and return its directory, which the user of the image can read."""
    files = stack.directory / "files"
    files.mkdir()
    document = yaml.safe_load(stack.config({"table": table}).read_text(encoding="utf-8"))
    document["http"] = {"listen": "127.0.0.1:8080"}
    (files / "ingestd.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    for directory in (files, *files.parents[:3]):
        directory.chmod(0o755)
    return files


def test_image_when_it_runs_read_only_without_privileges_then_survives_kill_and_restart(
    stack: Stack, image: tuple[str, Path, dict[str, Any]], table: tuple[str, Path]
) -> None:
    _name, root, config = image
    stack.topic(2)
    name, location = table
    files = _files(stack, name)
    total = 0

    def produce() -> None:
        nonlocal total
        total += stack.produce({"id": n} for n in range(total, total + 1_000))

    def is_complete() -> bool:
        return stack.count(name=name) == total

    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        with closing(Container(root, config, files, location)) as container:
            produce()
            eventually("the records", is_complete)
            eventually("a passing health check", container.is_healthy)
            produce()
            container.signal(number)
            assert (container.wait() == 0) == (number == signal.SIGTERM), container.text()
    with closing(Container(root, config, files, location)) as container:
        produce()  # until they arrive, the daemon may not have installed its signal handlers
        eventually("all records", is_complete)
        container.signal(signal.SIGTERM)
        assert container.wait() == 0
    assert stack.ids(name) == list(range(total))
