"""Checks that the machine has enough memory for the services to be started."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from ingestd.errors import SandboxError
from ingestd.sandbox.options import SandboxOptions

_BESIDE_THE_HEAP_MB = 200  # code, threads and buffers of one JVM, measured


def require(options: SandboxOptions, services: Iterable[str]) -> None:
    """Raise SandboxError when less memory is available than `services` need."""
    needed = sum(options.heap_mb(name) + _BESIDE_THE_HEAP_MB for name in services)
    free = int(psutil.virtual_memory().available) >> 20
    if free < needed:
        raise SandboxError(
            f"not enough memory: {needed} MiB are needed and {free} MiB are available",
            hint="stop other programs, or set smaller heaps with the options --*-heap-mb",
        )
