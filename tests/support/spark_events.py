"""The event log of a Spark that another process runs, from which tests read its jobs."""

from __future__ import annotations

import json
from pathlib import Path


class SparkEvents:
    """A new folder for event logs. `conf` are the properties of a Spark that logs there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        log = {"enabled": "true", "dir": folder.as_uri(), "compress": "false", "rolling.enabled": "false"}
        self.conf = {f"spark.eventLog.{key}": value for key, value in log.items()}

    def jobs(self, name: str) -> int:
        """Return how many jobs of groups of this name have begun. The log is complete when Spark has ended."""
        lines = (line for file in self._folder.iterdir() for line in file.read_text(encoding="utf-8").splitlines())
        begun = (json.loads(line)["Properties"] for line in lines if "SparkListenerJobStart" in line)
        return sum(properties.get("spark.jobGroup.id", "").startswith(f"{name}-") for properties in begun)
