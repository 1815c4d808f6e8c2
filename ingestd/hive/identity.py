"""Names a process in locks and transactions, so that others can find out that it no longer runs.

Invariant: no two processes have the same name, even after a reboot, in another container, or if a process id is reused.
"""

from __future__ import annotations

import os
import uuid
from hashlib import blake2b
from pathlib import Path


def process_identity() -> str:
    """Return `machine:pid:start_time`, which identifies this process across machines, containers and reboots.

    It is short, because HMS stores 128 characters of an agent, which also contains other names.
    """
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}"


def has_ended_here(agent: str) -> bool:
    """Return whether `agent` names a process of this machine that no longer runs.

    The agent ends with `/IDENTITY-SUFFIX`, where IDENTITY is a result of `process_identity`.
    """
    identity = agent.rpartition("/")[2].rpartition("-")[0]
    machine, pid, started = [*identity.split(":"), "", "", ""][:3]
    return machine == _machine() and pid.isdigit() and _start_time(int(pid)) != started


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        return blake2b(f"{boot} {namespace}".encode(), digest_size=4).hexdigest()
    except OSError:
        # Without /proc, nothing is known about other processes. A claim is then dead only when its heartbeats stop.
        return uuid.uuid4().hex[:8]


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""
