"""The container image that the soak tests of this directory run.

INGESTD_TEST_BASE names another base image; INGESTD_TEST_IMAGE names a built image, which is then used instead.
TMPDIR must lie outside /tmp and /var/tmp, because a container and a service have their own, which hide the tables.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.container import image_root

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def image_name(processes: None) -> str:
    """Return the name of the image, which is built unless the environment names one."""
    scratch = Path(tempfile.gettempdir()).resolve()
    if any(scratch.is_relative_to(hidden) for hidden in ("/tmp", "/var/tmp")):
        pytest.fail(f"the tables would lie in {scratch} → set TMPDIR to a directory outside /tmp and /var/tmp")
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
