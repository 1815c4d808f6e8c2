"""Refuses to start what the machine has no memory for.

Invariant: it only looks; the kernel's own word for available memory is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from ingestd.errors import SandboxError
from ingestd.sandbox.options import SandboxOptions

_BESIDE_THE_HEAP_MB = 200  # code, threads and buffers of one of these JVMs, measured


def require(options: SandboxOptions, services: Iterable[str]) -> None:
    """Raise SandboxError when `services` could not have the heaps they are allowed."""
    needed = sum(options.heap_mb(name) + _BESIDE_THE_HEAP_MB for name in services)
    free = int(psutil.virtual_memory().available) >> 20
    if free < needed:
        raise SandboxError(
            f"too little memory: {needed} MiB are needed and {free} MiB are available", hint="end other programs"
        )
