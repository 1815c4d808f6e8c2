"""Formats Kafka's log folder once.

Invariant: a formatted folder is never formatted again, so its cluster id and its records are preserved. Every
sandbox has its own cluster id.
"""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from pathlib import Path

from ingestd.errors import SandboxError
from ingestd.sandbox import templates
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import KAFKA
from ingestd.sandbox.services import Plan

_STORAGE_TOOL = "kafka.tools.StorageTool"
_IDENTITY, _FEATURES = "meta.properties", "bootstrap.checkpoint"


def format_storage(plan: Plan, guard: Guard) -> None:
    """Format the log folder unless it is already formatted. Raises SandboxError when Kafka's tool fails."""
    folder = plan.layout.data / "kafka"
    if (folder / _IDENTITY).exists() and (folder / _FEATURES).exists():
        return
    template = templates.find(plan.jars, KAFKA)
    if template:
        _copy(template, folder)
    else:
        _run_tool(plan, guard)
        templates.keep(plan.jars, KAFKA, folder)


def _copy(template: Path, folder: Path) -> None:
    """Copy a formatted folder with new ids. The identity file is written last, as it marks the folder as formatted."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(template / _FEATURES, folder / _FEATURES)
    text = (template / _IDENTITY).read_text()
    for key in ("cluster.id", "directory.id"):
        text = re.sub(rf"(?m)^{re.escape(key)}=.*$", f"{key}={_new_id()}", text)
    fresh = folder / f"{_IDENTITY}.new"
    fresh.write_text(text)
    fresh.rename(folder / _IDENTITY)


def _run_tool(plan: Plan, guard: Guard) -> None:
    config = str(plan.layout.conf(KAFKA) / "server.properties")
    jvm = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    tool = ("format", "--ignore-formatted", "-t", _new_id(), "-c", config)
    log = plan.layout.log("kafka-format")
    run = guard.start(
        plan.java_command(KAFKA, jvm, *tool, main=_STORAGE_TOOL), log=log, cwd=plan.layout.work("kafka-format")
    )
    if run.wait():
        raise SandboxError("Kafka's log folder could not be formatted", where=str(log))


def _new_id() -> str:
    """Return a random UUID in Kafka's notation. Its first byte is fixed so that the text does not start with a dash."""
    return base64.urlsafe_b64encode(b"\1" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
