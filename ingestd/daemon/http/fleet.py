"""What the HTTP server needs from the supervisor of the mappings and policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from ingestd.config.document import Scope
from ingestd.errors import IngestdError
from ingestd.ingest.control import Control
from ingestd.ingest.inspection.preview import AtOffset, AtTime, Preview
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.replication.policies.policy_status import PolicyStatus
from ingestd.spark.engine import JobGroup


class Fleet(Protocol):
    """The mappings of this daemon. Every member is safe for use from any thread."""

    @property
    def scope(self) -> Scope:
        """Where the state of the mappings is stored. It never changes."""

    @property
    def monitors(self) -> Mapping[str, Monitor]:
        """What each mapping reports, by its name."""

    @property
    def controls(self) -> Mapping[str, Control]:
        """The requests to each mapping, by its name."""

    @property
    def policies(self) -> Sequence[PolicyStatus]:
        """The replication policies of the metastore; none if this daemon does not run policies."""

    @property
    def policies_read_at(self) -> float | None:
        """The Unix time at which the metastore was last asked for policies; None if this daemon does not run any."""

    @property
    def policies_error(self) -> IngestdError | None:
        """The error that has ended the replication; None while it runs, or if none runs here."""

    def stuck(self) -> Sequence[str]:
        """Return the names of the mappings that have made no progress for longer than their limits."""

    def preview(self, name: str, limit: int, start: AtTime | AtOffset | None, group: JobGroup) -> Preview:
        """Decode records of a mapping, which takes seconds, or minutes with SQL. Raises as `inspection.preview`."""

    def cancel(self, group: JobGroup) -> None:
        """Let the running Spark jobs of a preview fail. Returns immediately."""

    def reload(self) -> Future[None]:
        """Begin to reload the configuration. The future raises ConfigError if the new one is rejected."""
