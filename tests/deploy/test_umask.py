"""Every way to start the daemon and its executors lets the group of the warehouse change new directories."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"


def _run(command: list[str], directory: Path, umask: int) -> list[str]:
    """Run a command of the image with stand-ins for its programs, which print the umask and their arguments."""
    tini = '#!/bin/sh\nshift; exec "$@"\n'
    stand_in = '#!/bin/sh\numask\nprintf "%s\\n" "$@"\n'
    for name, script in {"tini": tini, "ingestd": stand_in, "java": stand_in}.items():
        program = directory / name
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
    path = f"{directory}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, umask=umask)
    return ended.stdout.splitlines()


def _container(file: Path) -> dict[str, Any]:
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    spec = document["spec"].get("template", document)["spec"]
    [container] = spec["containers"]
    return dict(container)


def test_image_when_it_starts_then_new_directories_are_writable_for_the_group(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    [entrypoint] = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    arguments = ["run", "--config", "a file with blanks.yaml"]
    assert _run([*json.loads(entrypoint), *arguments], tmp_path, 0o077) == ["0002", *arguments]


def test_pods_when_they_start_then_new_directories_are_writable_for_the_group(tmp_path: Path) -> None:
    # The daemon is started by the entry point of the image.
    for manifest in ("base/deployment.yaml", "overlays/spark-on-k8s/driver.yaml"):
        assert "command" not in _container(K8S / manifest)
    executor = _container(K8S / "overlays" / "spark-on-k8s" / "executor.yaml")
    assert _run(executor["command"], tmp_path, 0o077)[0] == "0002"


def test_units_when_they_start_then_new_directories_are_writable_for_the_group() -> None:
    for unit in ("ingestd.service", "ingestd@.service"):
        assert "\nUMask=0002\n" in (ROOT / "systemd" / unit).read_text(encoding="utf-8")
