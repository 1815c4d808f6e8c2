"""The container image that the soak tests of this directory run.

INGESTD_TEST_BASE names another base image; INGESTD_TEST_IMAGE names a built image, which is then used instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.container import image_root
from tests.support.stack import Stack

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def image_name(processes: None) -> str:
    """Return the name of the image, which is built unless the environment names one."""
    name = os.environ.get("INGESTD_TEST_IMAGE")
    if name is None:
        name = "localhost/ingestd-test"
        base = os.environ.get("INGESTD_TEST_BASE", "python:3.11-slim-bookworm")
        options = ("--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={base}")
        subprocess.run(["buildah", "bud", *options, "--tag", name, ROOT], check=True)
    return name


@pytest.fixture
def image(image_name: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield the name and the root directory of a new container of the image, and the configuration of the image."""
    with image_root(image_name) as found:
        yield found


@pytest.fixture
def table(stack: Stack) -> Iterator[tuple[str, Path]]:
    """Yield the name and the directory of a table with the column id, which every user may write.

    The warehouse of the services may lie in /tmp, of which a container and a service have their own. So the table is in
    a database elsewhere.
    """
    home = Path(tempfile.mkdtemp(prefix="ingestd-tests-", dir="/var/lib"))
    home.chmod(0o755)
    stack.sql(f"CREATE DATABASE {stack.name} MANAGEDLOCATION 'file://{home}/database'")
    try:
        name = stack.table("id bigint", name=f"{stack.name}.numbers")
        directory = home / "database/numbers"
        directory.chmod(0o777)
        yield name, directory
    finally:
        stack.sql(f"DROP DATABASE {stack.name} CASCADE")
        shutil.rmtree(home)
