"""Formats the folder of Kafka's log, once.

Invariant: a formatted folder is never formatted again, so its cluster id and its records stay.
"""

from __future__ import annotations

import base64
import uuid

from ingestd.errors import SandboxError
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import KAFKA
from ingestd.sandbox.services import Plan

_STORAGE_TOOL = "kafka.tools.StorageTool"


def format_storage(plan: Plan, guard: Guard) -> None:
    """Give the log folder a cluster id, unless it has one. Raises SandboxError when the tool fails."""
    folder = plan.layout.data / "kafka"
    if (folder / "meta.properties").exists() and (folder / "bootstrap.checkpoint").exists():
        return
    cluster = base64.urlsafe_b64encode(b"\1" + uuid.uuid4().bytes[1:]).decode().rstrip("=")  # no leading dash
    config = str(plan.layout.conf(KAFKA) / "server.properties")
    jvm = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    tool = ("format", "--ignore-formatted", "-t", cluster, "-c", config)
    log = plan.layout.log("kafka-format")
    run = guard.start(
        plan.java_command(KAFKA, jvm, *tool, main=_STORAGE_TOOL), log=log, cwd=plan.layout.work("kafka-format")
    )
    if run.wait():
        raise SandboxError("Kafka's log folder could not be formatted", where=str(log))
