"""The contents of the small files of a dump directory.

Invariant: `decode` returns what was encoded, or raises ReplicationError with the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from ingestd.clock import now
from ingestd.errors import ReplicationError
from ingestd.replication.statements.scope import Scope

UNTIL_FILE = "_complete_until"
"""In the manifest of a dump that does not contain all events of its time: the Unix time of the last one."""
NEXT_FILE = "_next_dump"
"""In the manifest of a dump that a policy has made: the Unix time at which the policy is due again."""
FINGERPRINT_FILE = "_last_event"
"""In a manifest: the fingerprint of the last event of the dump (`Event.fingerprint`)."""
EXTERNAL_FILE = "_external_tables_info"
"""In a manifest, and in a finished dump: the directories of the external tables (`external.py`)."""
_NULL = r"\N"
_HINT = "another program has written this file; move the dump directory away, which begins a bootstrap"


class Phase(str, Enum):
    """What a dump contains: everything, or the changes since the previous dump. The values are Hive's."""

    BOOTSTRAP = "BOOTSTRAP"
    INCREMENTAL = "INCREMENTAL"


@dataclass(frozen=True, slots=True)
class Owner:
    """A policy that uses a dump directory: its name ('' for runs by hand), and the database that it reads or writes.

    `metastore` is the UUID of the metastore of that database.
    """

    policy: str
    metastore: str
    database: str

    def agrees(self, other: Owner) -> bool:
        """Return whether both may use one directory: the same database, and at most one policy."""
        is_same_database = (self.metastore, self.database) == (other.metastore, other.database)
        return is_same_database and (self.policy == other.policy or not (self.policy and other.policy))

    def __str__(self) -> str:
        policy = f"the policy {self.policy}" if self.policy else "a run by hand"
        return f"{policy} of the database {self.database} in the metastore {self.metastore}"

    def encode(self) -> bytes:
        """Return the content of the file."""
        return _to_json(asdict(self))

    @classmethod
    def decode(cls, content: bytes, file: str) -> Owner:
        """Return the owner in the content of `file`."""
        try:
            return cls(**_from_json(content))
        except (TypeError, ValueError) as error:
            raise _damaged(file) from error


@dataclass(frozen=True, slots=True)
class DumpState:
    """What is fixed when a dump begins.

    `from_event` is the last event that the target has when it has loaded the previous dump. For a bootstrap, it is the
    last event of the log before anything was read. `previous_scope` is the scope of the previous dump, if it differs.
    `tables` could not be loaded from the previous dump, so they are bootstrapped. The target has refused constraints of
    the tables `unconstrained`, so the dump contains all constraints of them.
    `fingerprint` is that of the event `from_event`, for an incremental dump; '' if an earlier release has dumped it.
    The files of the tables `unreadable` could not be read in the previous cycle; those that the dump lists are also in
    `tables`. `continues` says that the previous dump has UNTIL_FILE.
    `began` is the Unix time of the source: the dump contains everything up to it, unless its manifest has UNTIL_FILE.
    """

    number: int
    phase: Phase
    scope: Scope
    from_event: int
    previous_scope: Scope | None = None
    tables: tuple[str, ...] = ()
    unconstrained: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    fingerprint: str = ""
    continues: bool = False
    began: int = field(default_factory=lambda: int(now()), compare=False)

    def encode(self) -> bytes:
        """Return the content of `_state`."""
        return _to_json({**asdict(self), "phase": self.phase.value})

    @classmethod
    def decode(cls, content: bytes, file: str) -> DumpState:
        """Return the state in the content of `file`."""
        try:
            values = _from_json(content)
            previous = values["previous_scope"]
            return cls(
                number=int(values["number"]),
                phase=Phase(values["phase"]),
                scope=Scope(**values["scope"]),
                from_event=int(values["from_event"]),
                previous_scope=Scope(**previous) if previous else None,
                tables=tuple(values["tables"]),
                unconstrained=tuple(values.get("unconstrained", ())),
                unreadable=tuple(values.get("unreadable", ())),
                fingerprint=str(values.get("fingerprint", "")),
                continues=bool(values.get("continues", False)),
                began=int(values.get("began", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(file) from error


@dataclass(frozen=True, slots=True)
class DumpMetadata:
    """What a complete dump contains: the content of `_dumpmetadata`, with the columns of Hive's DumpMetaData.

    The events after `from_event` up to `to_event`, for a bootstrap none: both are equal. `cm_root` is the directory of
    the source's change manager. `execution_id` is the id of the scheduled execution, 0 by hand. `payload` belongs to
    the dump, which names its manifests in it. `is_scope_changed` says that the previous dump had another scope.
    """

    phase: Phase
    from_event: int
    to_event: int
    scope: Scope
    cm_root: str | None = None
    execution_id: int = 0
    payload: str | None = None
    is_scope_changed: bool = False

    def encode(self) -> bytes:
        """Return the content: two lines with columns separated by tabs, in which null is `\\N`."""
        events = (self.phase.value, str(self.from_event), str(self.to_event))
        rest = (self.cm_root, str(self.execution_id), self.payload, str(self.is_scope_changed).lower())
        scope = (self.scope.database, self.scope.include, self.scope.exclude)
        return (_to_line((*events, *rest)) + _to_line(scope)).encode()

    @classmethod
    def decode(cls, content: bytes, file: str) -> DumpMetadata:
        """Return the metadata in the content of `file`."""
        try:
            first, second = (_from_line(line) for line in content.decode().rstrip("\n").split("\n"))
            phase, from_event, to_event, cm_root, execution_id, payload, is_changed = first
            database, include, exclude = second
            return cls(
                phase=Phase(phase),
                from_event=int(from_event or ""),
                to_event=int(to_event or ""),
                scope=Scope(database or "", include, exclude),
                cm_root=cm_root,
                execution_id=int(execution_id or 0),
                payload=payload,
                is_scope_changed=is_changed == "true",
            )
        except ValueError as error:
            raise _damaged(file) from error


def decode_time(content: bytes, file: str) -> int:
    """Return the Unix time in the content of UNTIL_FILE or NEXT_FILE."""
    try:
        return int(content)
    except ValueError as error:
        raise _damaged(file) from error


def _to_json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values) + "\n").encode()


def _from_json(content: bytes) -> dict[str, Any]:
    values = json.loads(content)
    if not isinstance(values, dict):
        raise TypeError("not an object")
    return values


def _to_line(values: tuple[str | None, ...]) -> str:
    return "\t".join(_NULL if value is None else value for value in values) + "\n"


def _from_line(line: str) -> list[str | None]:
    return [None if value == _NULL else value for value in line.split("\t")]


def _damaged(file: str) -> ReplicationError:
    return ReplicationError("the content of the file is not valid", where=file, hint=_HINT)
