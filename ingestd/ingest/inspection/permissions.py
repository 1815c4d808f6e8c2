"""Predicts whether this process and Hive, as different users, can change each other's directories.

Invariant: a prediction follows from the owners and permissions of directories that exist. An object store has neither,
so nothing is predicted there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ingestd.errors import TableMissing
from ingestd.hive.client import Metastore
from ingestd.hive.health import setting
from ingestd.hive.objects import read_database
from ingestd.hive.tables import Table, TableName, load_acid_table
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import PermissionDenied, Permissions, Storage, child

_EVERYTHING = 0o7
# How many directories of other tables are examined before the mapping creates its own.
_MOST_TABLES = 100
_DOCUMENTED = "docs/deploy.md, Hive as another user"
_WAREHOUSE = "metastore.warehouse.dir"


class NotShared(PermissionDenied):
    """This process and Hive will be unable to change each other's directories."""


@contextmanager
def hidden_directory(warehouse: Warehouse, table: Table) -> Iterator[str]:
    """Create a directory in that of a table, yield its URI, and remove it. Raises StorageUnavailable."""
    location = warehouse.storages.location(table.location)
    storage = warehouse.storages.at(location.uri)
    made = location.make_directory(f".ingestd-check-{uuid.uuid4().hex[:8]}")
    try:
        yield made
    except BaseException:
        storage.discard(made)  # an error of the removal would hide the first one
        raise
    storage.remove(made)


def changeable_directories(warehouse: Warehouse, name: TableName) -> str:
    """Predict whether Hive can change what this process writes to a table; return what was found.

    Its compaction writes to the partitions that this process creates, and its cleaner removes deltas. For a table that
    the mapping will create, predict whether this process can write to the directory that the metastore creates. Raises
    NotShared if not, and the errors of `load_acid_table` and of storages.
    """
    try:
        table = load_acid_table(warehouse.metastore, name)
    except TableMissing:
        return _writable_new_table(warehouse, name.database)
    storage = warehouse.storages.at(table.location)
    theirs = storage.permissions(table.location)
    if theirs is None:
        return "the storage has no users"
    with hidden_directory(warehouse, table) as made:
        ours = storage.permissions(made)
    assert ours is not None  # as those of the table's directory
    require_changeable(table.location, ours, theirs, local_users=storage.capabilities.local_users)
    return f"Hive can change new directories ({ours})"


def require_changeable(directory: str, ours: Permissions, theirs: Permissions, *, local_users: bool) -> None:
    """Raise NotShared if a new directory does not permit what the directory of its table permits.

    `theirs` are the permissions of `directory`, the table's, whose owner and group are those that Hive uses.
    `local_users` is that of the storage's Capabilities.
    """
    is_shared = bool(theirs.mode >> 3 & 0o2)
    if (ours.owner == theirs.owner and not is_shared) or ours.mode & _EVERYTHING == _EVERYTHING:
        return
    if ours.mode >> 3 & _EVERYTHING != _EVERYTHING:
        hint = _umask_hint(theirs.group, local_users=local_users)
    elif ours.group != theirs.group and not ours.has_acl:
        hint = (
            f"run chgrp and chmod g+s on the table's directory, so that new directories keep its group ({_DOCUMENTED})"
        )
    else:
        return
    users = f"the group {theirs.group}" if ours.owner == theirs.owner else theirs.owner
    raise NotShared(
        f"{users} cannot change the directories that this process creates ({ours}), but may change the table's own"
        f" ({theirs}): if Hive runs as another user, its compaction and its cleaner fail",
        where=directory,
        hint=hint,
    )


def _umask_hint(group: str, *, local_users: bool) -> str:
    if local_users:
        cure = f"start this process with umask 0002, or run setfacl -R -m d:g:{group}:rwX on the table's directory"
    else:
        cure = "set fs.permissions.umask-mode to 002 in storage.hdfs.properties"
    return f"{cure} ({_DOCUMENTED})"


def require_writable(warehouse: Warehouse, directories: Iterable[str]) -> None:
    """Raise PermissionDenied for a directory in that of a table, such as one of a partition, that is not writable."""
    for directory in directories:
        storage = warehouse.storages.at(directory)
        try:
            storage.check_writable(directory)
        except PermissionDenied as error:
            raise PermissionDenied(
                f"{error.what}: {storage.permissions(directory)}",
                where=directory,
                hint=f"{error.hint}. Hive creates more such directories unless it runs with umask 0002 or the table's"
                f" directory has a default ACL ({_DOCUMENTED})",
            ) from error


def levels(table: str, partition: str) -> list[str]:
    """Return the directory of a partition, and those between it and the table's, where new partitions are created."""
    directories = [partition]
    while (parent := directories[-1].rpartition("/")[0]).startswith(f"{table.rstrip('/')}/"):
        directories.append(parent)
    return directories


def _writable_new_table(warehouse: Warehouse, database: str) -> str:
    """Predict whether this process can write to a table that the metastore creates; return what was found.

    In a local file system, the directory belongs to the user of the metastore. It probably has the permissions of
    those that exist: the directories of the database's tables, or else its own or the one above. Raises NotShared.
    """
    location = _database_location(warehouse.metastore, database)
    storage = warehouse.storages.at(location)
    if not storage.capabilities.local_users:  # the metastore creates it as the user of the client
        return "is examined once the mapping has created the table"
    if storage.exists(location):
        names = [entry.name for entry in storage.entries(location) if entry.is_directory]
        tables = [child(location, name) for name in names if not name.startswith(".") and not name.endswith(".db")]
    else:  # the metastore creates it with the first table
        location, tables = location.rstrip("/").rpartition("/")[0], []
        if not storage.exists(location):
            return "the directory of the database does not exist on this machine"
    for directory in tables[:_MOST_TABLES] or [location]:
        _require_inherited(storage, location, directory)
    return "directories like those of the database's tables are writable"


def _require_inherited(storage: Storage, database: str, directory: str) -> None:
    """Raise NotShared if a new directory in `database` with the permissions of `directory` is not writable."""
    try:
        storage.check_writable(directory)
    except PermissionDenied as error:
        permissions = storage.permissions(directory)
        if permissions is None or permissions.mode >> 3 & 0o2:  # its group may write, so the umask is not the reason
            return
        raise NotShared(
            "the metastore will create the table's directory, and this process cannot write to it if its permissions"
            f" are those of {directory} ({permissions})",
            where=database,
            hint="start the metastore with umask 0002 and put both users into one group, or run setfacl -m"
            f" d:g:GROUP:rwX on the directory of the database ({_DOCUMENTED})",
        ) from error


def _database_location(metastore: Metastore, database: str) -> str:
    """Return the URI of the directory of a database's managed tables."""
    if location := read_database(metastore, database).managed_location:
        return location
    root = setting(metastore, _WAREHOUSE) or ""
    return root if database == "default" else child(root, f"{database}.db")
