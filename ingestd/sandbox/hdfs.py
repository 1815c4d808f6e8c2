"""Formats the folder of the NameNode once.

Invariant: a formatted folder is never formatted again, so its files are preserved. Every sandbox has its own cluster id
and block pool, so the DataNode of one sandbox cannot register with the NameNode of another.
"""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

from ingestd.clock import now
from ingestd.errors import SandboxError
from ingestd.sandbox import templates
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import NAMENODE
from ingestd.sandbox.ports import HOST
from ingestd.sandbox.services import Plan

_IDENTITY = Path("current") / "VERSION"


def format_namenode(plan: Plan, guard: Guard) -> None:
    """Format the NameNode's folder unless it is already formatted. Raises SandboxError when Hadoop fails."""
    final = plan.layout.data / "namenode"
    if final.exists():
        return
    fresh = plan.layout.data / "namenode.new"
    shutil.rmtree(fresh, ignore_errors=True)
    template = templates.find(plan.jars, NAMENODE)
    if template:
        shutil.copytree(template, fresh)
        _identify(fresh / _IDENTITY)
    else:
        _run_tool(plan, guard, fresh)
        templates.keep(plan.jars, NAMENODE, fresh)
    fresh.rename(final)


def _identify(file: Path) -> None:
    """Replace the ids in the identity file of a NameNode."""
    text = file.read_text()
    ids = {"clusterID": f"CID-{uuid.uuid4()}", "blockpoolID": f"BP-{uuid.uuid4().int >> 96}-{HOST}-{now() * 1000:.0f}"}
    for key, value in ids.items():
        text = re.sub(rf"(?m)^{key}=.*$", f"{key}={value}", text)
    file.write_text(text)


def _run_tool(plan: Plan, guard: Guard, folder: Path) -> None:
    jvm = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    tool = ("-D", f"dfs.namenode.name.dir={folder.as_uri()}", "-format", "-nonInteractive")
    log = plan.layout.log("namenode-format")
    command = plan.java_command(NAMENODE, jvm, *tool)
    if guard.start(command, log=log, cwd=plan.layout.work("namenode-format")).wait():
        raise SandboxError("the NameNode's folder could not be formatted", where=str(log))
