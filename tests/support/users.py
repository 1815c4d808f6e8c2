"""Runs programs as other users of this machine, without accounts for them. Requires root and setpriv."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

# The programs and libraries may lie in directories of root. This capability reads them, and grants no write access.
_READ = "+dac_read_search"
_READ_BIT = 2


def _may_read() -> bool:
    """Return whether this machine grants the capability to root; containers may lack it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:")]
    return bool(int(line.split()[1], 16) >> _READ_BIT & 1)


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or not _may_read(),
    reason="only root with CAP_DAC_READ_SEARCH can start programs of other users, by setpriv",
)


@dataclass(frozen=True)
class User:
    """The id of a user, of its first group, and of its other groups."""

    number: int
    group: int
    groups: tuple[int, ...] = ()

    def command(self, umask: int) -> tuple[str, ...]:
        """Return a command that runs its arguments as this user."""
        groups = ("--groups", ",".join(map(str, self.groups))) if self.groups else ("--clear-groups",)
        user = ("setpriv", "--reuid", str(self.number), "--regid", str(self.group), *groups)
        reads = ("--inh-caps", _READ, "--ambient-caps", _READ)
        return ("sh", "-c", 'umask "$0" && exec "$@"', f"{umask:04o}", *user, *reads)

    def give(self, folder: Path) -> None:
        """Make the user the owner of a folder and everything in it."""
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.number, self.group)
