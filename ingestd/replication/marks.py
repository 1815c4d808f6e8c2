"""The properties with which databases, tables and partitions say which replication they belong to.

Invariant: names and values are Hive's, so that its background tasks treat a replica as one of their own. Names that
begin with `ingestd.` are known to ingestd only. Source: ReplConst, ReplUtils.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.errors import ReplicationError
from ingestd.hive import replay
from ingestd.hive.objects import TableKind, TableObject
from ingestd.storage.contract import child

SOURCE_FOR = "repl.source.for"
"""On a source: the policies that dump it, separated by commas. Makes the change manager keep removed files."""
TARGET_FOR = "repl.target.for"
"""On a target: `true`; background tasks leave its tables as they are."""
LAST_ID = replay.LAST_ID
"""On a target: the last event of the source that it contains."""
CHECKPOINT = "hive.repl.ckpt.key"
"""On a database, table or partition: the directory of the dump that has filled it completely."""
PENDING = "hive.repl.first.inc.pending"
"""On a target: `true` until the changes that were made during a bootstrap are replayed. Until then, no dump of it may
begin."""
INCOMPATIBLE = replay.INCOMPATIBLE
"""On a target: `true` if a replicated transaction was ended by another client, so that a bootstrap is required."""
READ_ONLY = "readonly"
"""On a target: `true`; a HiveServer2 with EnforceReadOnlyDatabaseHook refuses to write to it."""
ORIGIN = "ingestd.repl.origin"
"""On a target: the directory of the source database in the root of dumps, which identifies the source."""
EXTERNAL_BASE = "ingestd.repl.external.base"
"""On a target: the base directory below which its external tables were created."""
LOADING = "ingestd.repl.loading"
"""On a table: the directory of the dump that is filling it. A repeated load continues such a table."""
SETTLED = "ingestd.repl.settled"
"""On a database, and on a table that was copied as a whole while others were replayed: the last event of which a copy
may contain changes. The replay accepts that it has them already."""
IDENTITY = "ingestd.repl.identity"
"""On a table that was copied as a whole: the id that the source's metastore had given to it. Another table of the same
name, before or after it, has another id."""
WITHOUT_DIRECTORY = "ingestd.repl.without.directory"
"""On a table or partition: `true` if it was copied as empty because its directory was missing. Perhaps the source's
metastore had renamed the directory, and not yet the table or partition."""
SOURCE_LOCATION = "ingestd.repl.source.location"
"""On a partition of a transactional table: its directory on the source, unless that is where its name is below the
directory of the table. The files of a partition that gets another directory are other files."""
MOVED = "ingestd.repl.moved"
"""On a table or partition that a load has renamed: which compaction of the table had begun last before. It is removed
when it is certain that none has begun during the rename (`load/target_moves.py`)."""
IN_WAREHOUSE = "ingestd.repl.in.warehouse"
"""On a table: `true` if it is a managed table without transactions on the source. A metastore 4 makes an external table
of it, whose directory is in the warehouse, and contains nothing but the copy."""

_OF_REPLICATION = ("repl.", "hive.repl.", "ingestd.repl.", "bootstrap.dump.state.")


def last_event(parameters: Mapping[str, str]) -> int | None:
    """Return the last event of the source that a target contains; None if it is not a complete copy.

    Raises ReplicationError if another client has replaced it by a text.
    """
    text = parameters.get(LAST_ID)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        hint = "restore the number, or drop the target database and bootstrap again"
        raise ReplicationError(f"the property {LAST_ID} is {text!r}, which is not a number", hint=hint) from error


def source_kind(table: TableObject) -> TableKind:
    """Return the kind that a table of the target has on the source."""
    is_translated = table.kind is TableKind.EXTERNAL and IN_WAREHOUSE in table.parameters
    return TableKind.MANAGED if is_translated else table.kind


def owns_files(table: TableObject) -> bool:
    """Return whether the files of a table of the target are removed with it."""
    return source_kind(table) not in (TableKind.EXTERNAL, TableKind.STORAGE_HANDLER)


def marks_of_kind(source: TableObject) -> dict[str, str]:
    """Return the marks of the copy of a table because of its kind on the source."""
    return {IN_WAREHOUSE: "true"} if source.kind is TableKind.MANAGED else {}


def marks_of_location(table: str, name: str, location: str) -> dict[str, str]:
    """Return the marks of the copy of a partition because of its `location` on the source.

    `table` is the location of its table on the source, and `name` its escaped name.
    """
    return {} if location == child(table, name) else {SOURCE_LOCATION: location}


def without_marks(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that do not belong to a replication, which a copy takes over."""
    return {key: value for key, value in parameters.items() if not key.startswith(_OF_REPLICATION)}
