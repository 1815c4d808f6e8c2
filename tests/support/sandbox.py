"""A sandbox of its own for tests that cannot use the shared one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingestd.sandbox import Sandbox, SandboxOptions


@contextmanager
def running(options: SandboxOptions) -> Iterator[Sandbox]:
    """Start a sandbox and stop it at the end of the `with` block."""
    box = Sandbox(options)
    try:
        box.up()
        yield box
    finally:
        box.down()
