"""What the HTTP server needs from the supervisor of the mappings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from ingestd.config.document import Scope
from ingestd.ingest.control import Control
from ingestd.ingest.monitor import Monitor


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

    def stuck(self) -> Sequence[str]:
        """Return the names of the mappings that have made no progress for longer than their limits."""

    def reload(self) -> Future[None]:
        """Begin to reload the configuration. The future raises ConfigError if the new one is rejected."""
