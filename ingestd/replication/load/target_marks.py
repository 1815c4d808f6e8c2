"""Whether the changes in a dump continue what a target database contains.

Invariant: nothing is replayed into a database that lacks an earlier change, or whose external tables are below another
base directory than the one that is set: their files would be copied to a place where no table is.
"""

from __future__ import annotations

from ingestd.errors import BootstrapRequired, ConfigError
from ingestd.hive.client import Metastore
from ingestd.hive.objects import change_database, find_database
from ingestd.hive.replay import transaction_ended
from ingestd.replication.directory.dump_files import DumpMetadata
from ingestd.replication.marks import EXTERNAL_BASE, INCOMPATIBLE, last_event
from ingestd.replication.statements.settings import BASE_KEY


def continue_target(
    metastore: Metastore, name: str, metadata: DumpMetadata, external_base: str | None
) -> dict[str, str]:
    """Return the properties of the target database, in which the first base directory is stored.

    Raises BootstrapRequired if the dump does not continue its last event, which may be one of the dump if a load of it
    was interrupted; ReplicationError if that is not a number; and ConfigError for another base directory.
    """
    database = find_database(metastore, name)
    marks = dict(database.parameters) if database else {}
    where, hint = f"database {name}", "bootstrap again"
    if marks.get(INCOMPATIBLE) == "true":
        raise transaction_ended(name)
    last = last_event(marks)
    if last is None:
        raise BootstrapRequired("the database is not a complete copy of the source", where=where, hint=hint)
    if not metadata.from_event <= last <= metadata.to_event:
        text = (
            f"its last event is {last}, but the dump has the changes from {metadata.from_event} to {metadata.to_event}"
        )
        raise BootstrapRequired(text, where=where, hint=hint)
    known = marks.get(EXTERNAL_BASE)
    if known is None and external_base is not None:
        change_database(metastore, name, {EXTERNAL_BASE: external_base})
    elif known is not None and (external_base or "").rstrip("/") != known.rstrip("/"):
        raise ConfigError(
            f"the external tables of the target are below {known}, not {external_base or 'any base directory'}",
            where=BASE_KEY,
            hint="set it to that directory; or let `ingestd policy resume --bootstrap` copy the database again",
        )
    return marks
