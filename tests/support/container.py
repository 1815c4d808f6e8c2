"""Runs the container image without a container engine: its file system, read-only, in namespaces of its own.

The network is that of this machine, where the services of the tests listen. Requires root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.patience import LIMIT

UID = 10001
_START = """
set -e
root=$1 files=$2 warehouse=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
for file in /etc/hosts /etc/resolv.conf; do mount --bind "$file" "$root$file"; done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$files" "$root/etc/ingestd"
mount --bind "$warehouse" "$root$warehouse"
cd "$root"
exec chroot --userspec={uid}:{uid} "$root" env -C /tmp -i "$@"
"""


@contextmanager
def image_root(image: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield the name and the root directory of a new container of the image, and the configuration of the image."""
    container = buildah("from", "--pull=false", image)
    try:
        described = json.loads(buildah("inspect", "--type", "image", image))
        yield container, Path(buildah("mount", container)), json.loads(described["Config"])["config"]
    finally:
        buildah("rm", container)


def buildah(*arguments: str) -> str:
    """Run buildah and return what it prints."""
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True).stdout.strip()


class Container:
    """One run of the image. The directory `files` is mounted at /etc/ingestd, and `warehouse` at its own path."""

    def __init__(self, root: Path, config: dict[str, Any], files: Path, warehouse: Path) -> None:
        for file in ("etc/hosts", "etc/resolv.conf"):  # a container engine also mounts those of the machine
            (root / file).touch()
        (root / warehouse.relative_to("/")).mkdir(parents=True, exist_ok=True)
        self._enter = ["/bin/sh", "-c", _START.format(uid=UID), "sh", root, files, warehouse, *config["Env"]]
        self._health: list[str] = config["Healthcheck"]["Test"][1:]
        self._log = files / "container.log"
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    *self._enter,
                    *config["Entrypoint"],
                    *config["Cmd"],
                ],
                stdout=sink,
                stderr=sink,
            )

    def text(self) -> str:
        """Return what the container has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def is_healthy(self) -> bool:
        """Run the health check of the image."""
        run = subprocess.run(["unshare", "--mount", *self._enter, *self._health], capture_output=True, check=False)
        return run.returncode == 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process of the container, as a container engine does."""
        [first] = psutil.Process(self._process.pid).children()
        os.kill(first.pid, number)

    def close(self) -> None:
        """End the container if it still runs."""
        self._process.kill()
        self._process.wait(LIMIT)

    def wait(self) -> int:
        """Wait until the container has ended, and return its exit code."""
        return self._process.wait(LIMIT)
