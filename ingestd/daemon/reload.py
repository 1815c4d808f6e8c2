"""Finds out what a new configuration changes in a running daemon.

Invariant: a configuration is applied as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ingestd.config.document import Document
from ingestd.errors import ConfigError, ConfigFaults
from ingestd.ingest.options import MappingOptions
from ingestd.replication.policies.options import ReplicationOptions

# The sections that a running daemon cannot change, because connections, the Spark session and a server depend on them.
_FIXED_SECTIONS = ("metastore", "spark", "storage", "control", "http")


class Changes(NamedTuple):
    """The mappings that a new configuration adds, changes and removes. `changed` contains the new options."""

    added: list[MappingOptions]
    changed: list[MappingOptions]
    removed: list[MappingOptions]


def find_changes(running: Document, wanted: Document) -> Changes:
    """Compare two configurations. Raises ConfigFaults if the daemon must be restarted for a change."""
    faults = list(_faults(running, wanted))
    if faults:
        raise ConfigFaults(faults)
    before = {mapping.name: mapping for mapping in running.mappings}
    after = {mapping.name: mapping for mapping in wanted.mappings}
    return Changes(
        added=[mapping for name, mapping in after.items() if name not in before],
        changed=[mapping for name, mapping in after.items() if name in before and mapping != before[name]],
        removed=[mapping for name, mapping in before.items() if name not in after],
    )


def _without_policies(document: Document) -> ReplicationOptions | None:
    return document.replication and replace(document.replication, policies=())


def _faults(running: Document, wanted: Document) -> Iterator[ConfigError]:
    for section in _FIXED_SECTIONS:
        if getattr(running, section) != getattr(wanted, section):
            yield ConfigError(
                "a running daemon cannot change this section",
                where=section,
                hint="restart the daemon, or undo the change",
            )
    if _without_policies(running) != _without_policies(wanted):
        yield ConfigError(
            "a running daemon can change only the policies of this section",
            where="replication",
            hint="restart the daemon, or undo the change",
        )
    tables = {mapping.name: mapping.table for mapping in running.mappings}
    for mapping in wanted.mappings:
        if tables.get(mapping.name, mapping.table) != mapping.table:
            yield ConfigError(
                f"the table of a mapping cannot change from {tables[mapping.name]} to {mapping.table}",
                where=f"mapping {mapping.name}",
                hint="define a mapping with a new name for the new table",
            )
