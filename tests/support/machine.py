"""A machine that boots systemd from a directory: in namespaces of its own, with the network of this machine.

Requires root, and systemd in the directory. The processes run below the control group `ingestd-test`.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.patience import LIMIT

_BOOT = """
set -e
root=$1 warehouse=$2
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
  if [ -f $hierarchy/cgroup.procs ]; then
    mkdir -p $hierarchy/ingestd-test
    echo $$ > $hierarchy/ingestd-test/cgroup.procs
  fi
done
exec unshare --mount --uts --ipc --pid --fork --kill-child sh -c '
  set -e
  mount --make-rprivate /
  mount --bind "$1" "$1"
  mount -t proc proc "$1/proc"
  mount --rbind /sys "$1/sys"
  mount --rbind /dev "$1/dev"
  mount -t tmpfs -o mode=755 tmpfs "$1/run"
  mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
  mount --bind "$2" "$1$2"
  cd "$1"
  mkdir -p old
  pivot_root . old
  umount -l /old
  exec env container=other /lib/systemd/systemd --system
' sh "$root" "$warehouse"
"""
_MASKED = ("systemd-logind", "systemd-udevd", "getty@tty1", "console-getty", "systemd-timesyncd")


class Machine:
    """`root` is the directory of its file system. `warehouse` is mounted at its own path."""

    def __init__(self, root: Path, warehouse: Path) -> None:
        self._root, self._warehouse = root, warehouse
        (root / warehouse.relative_to("/")).mkdir(parents=True, exist_ok=True)
        for name in _MASKED:
            with suppress(FileExistsError):
                (root / f"etc/systemd/system/{name}.service").symlink_to("/dev/null")
        self.boot()

    def boot(self) -> None:
        """Start systemd. It then starts the services that are enabled."""
        self._process = subprocess.Popen(
            ["sh", "-c", _BOOT, "sh", self._root, self._warehouse],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def is_running(self) -> bool:
        """Return whether systemd has started all services."""
        with suppress(ValueError):
            return self._inside("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"}
        return False

    def run(self, *command: str) -> str:
        """Run a command in the machine and return its output. Fails if the command fails."""
        done = self._inside(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", unit, "--property", name, "--value").strip()

    def _inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine. Raises ValueError while the first process does not exist."""
        [first] = psutil.Process(self._process.pid).children()
        enter = ["nsenter", "--target", str(first.pid), "--mount", "--uts", "--ipc", "--pid"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def power_off(self) -> None:
        """Kill all processes at once, as a loss of power does."""
        self._process.kill()
        self._process.wait(LIMIT)
