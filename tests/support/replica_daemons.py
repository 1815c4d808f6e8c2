"""Daemons that run the policies of a source and of a target, as separate processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from tests.support.daemon import DaemonProcess
from tests.support.replica import Side
from tests.support.replica_policies import Pair


class Daemons:
    """Daemons of both sides, which `ends` kills. Their configurations and logs are in `folder`.

    `sections` are further sections of their configurations, or take the place of others, and `environment` are
    variables of their processes.
    """

    def __init__(self, pair: Pair, folder: Path, ends: ExitStack) -> None:
        self.sections: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        self._pair = pair
        self._folder = folder
        self._ends = ends
        self._started = 0

    def start(self, side: Side, *policies: dict[str, Any], **keys: Any) -> DaemonProcess:
        """Start a daemon with policies in its configuration."""
        config = self.configure(side, *policies, **keys)
        self._started += 1
        log = self._folder / f"daemon-{self._started}.log"
        daemon = DaemonProcess(config, log, (), self.environment)
        self._ends.callback(daemon.kill)
        return daemon

    def configure(self, side: Side, *policies: dict[str, Any], **keys: Any) -> Path:
        """Write the configuration of a side."""
        document = {
            "metastore": {"uri": side.uri},
            "control": {"database": self._pair.namespace},
            "http": {"listen": "127.0.0.1:0"},
            "spark": {"master": "local[1]"},
            "replication": {"namespace": self._pair.namespace, "poll": "200ms", "policies": list(policies), **keys},
            **self.sections,
        }
        config = self._folder / f"{side.name}.yaml"
        config.write_text(yaml.safe_dump(document))
        return config


def policy_entry(name: str, schedule: str, statement: ReplDump | ReplLoad) -> dict[str, Any]:
    """Return an entry of `replication.policies`."""
    return {"name": name, "schedule": schedule, "statement": str(statement)}
