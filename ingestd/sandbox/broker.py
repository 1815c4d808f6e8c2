"""Formats the log folder of each broker once.

Invariant: a formatted folder is never formatted again, so its cluster id and its records are preserved. Every
sandbox has its own cluster id, which all its brokers share.
"""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from ingestd.errors import SandboxError
from ingestd.sandbox import templates
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import BROKERS, KAFKA
from ingestd.sandbox.services import Plan

_STORAGE_TOOL = "kafka.tools.StorageTool"
_IDENTITY, _FEATURES = "meta.properties", "bootstrap.checkpoint"


def format_storage(plan: Plan, guard: Guard) -> None:
    """Format the log folders that are not formatted yet. Raises SandboxError when Kafka's tool fails."""
    folder = plan.log_folder(KAFKA)
    if not _is_formatted(folder):
        template = templates.find(plan.jars, KAFKA)
        if template:
            _copy(template, folder, {"cluster.id": _new_id(), "directory.id": _new_id()})
        else:
            _run_tool(plan, guard)
            templates.keep(plan.jars, KAFKA, folder)
    for node, broker in enumerate(BROKERS[1 : plan.options.brokers], 2):
        if not _is_formatted(plan.log_folder(broker)):
            _copy(folder, plan.log_folder(broker), {"node.id": str(node), "directory.id": _new_id()})


def _is_formatted(folder: Path) -> bool:
    return (folder / _IDENTITY).exists() and (folder / _FEATURES).exists()


def _copy(formatted: Path, folder: Path, ids: Mapping[str, str]) -> None:
    """Copy a formatted folder with other ids. The identity file comes last, as it marks the folder as formatted."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(formatted / _FEATURES, folder / _FEATURES)
    text = (formatted / _IDENTITY).read_text()
    for key, value in ids.items():
        text = re.sub(rf"(?m)^{re.escape(key)}=.*$", f"{key}={value}", text)
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
