"""The dump directory, in which the source and the target of a policy meet: `ROOT/base64(source database)/UUID/`.

Invariant: every file is created complete and never changed, so two processes that do the same step cannot mix their
results. The order of dumps is a number in `_state`, because times of modification do not survive copies and do not
exist for the directories of object stores. Only the dump with the highest number matters; a directory without `_state`
is not a dump.

    _source, _target     in the directory of the database: which policies use it
    _state               created first: number, phase, scope and first event
    ...                  manifests, which belong to the dump and the load
    _dumpmetadata        the dump is complete, and its events are final; the format is Hive's
    _external_tables_info  the directories of external tables, as in the manifest, which the load reads
    _finished_dump       the load may begin
    _loader              the load that may place files (`copying/fence.py`)
    _finished_load       the next dump may begin, after the last event of this one
    _lost.TABLE          this table was not copied, so the next dump contains all of it (`lost_tables.py`)
    _unreadable.TABLE    the files of this table cannot be read, so it is not copied (`unreadable_tables.py`)
    _refused.TABLE       the target refuses constraints of this table (`refused_constraints.py`)
    _non_recoverable     neither may continue until an administrator has fixed the cause

Source: Hive's ReplDumpTask, ReplLoadTask and DumpMetaData, and the policy scheduling of replication V3.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from ingestd.errors import ConfigError, OwnershipLost, ReplicationError
from ingestd.replication.directory.dump_files import (
    EXTERNAL_FILE,
    FINGERPRINT_FILE,
    NEXT_FILE,
    UNTIL_FILE,
    DumpMetadata,
    DumpState,
    Owner,
    Phase,
    decode_time,
)
from ingestd.replication.directory.lost_tables import lost_tables, note_lost
from ingestd.replication.directory.manifest import Manifest, UnreadableRecord
from ingestd.replication.directory.noted_tables import names_in_full, read_reason
from ingestd.replication.directory.refused_constraints import tables_without_constraints
from ingestd.replication.directory.unreadable_tables import note_of_unreadable, note_unreadable, unreadable_tables
from ingestd.replication.statements.scope import Scope
from ingestd.storage.contract import AlreadyExists, NotFound, child
from ingestd.storage.storages import Storages

_STATE = "_state"
_METADATA = "_dumpmetadata"
_DUMPED = "_finished_dump"
_LOADED = "_finished_load"
_FAILED = "_non_recoverable"


class NonRecoverable(ReplicationError):
    """The latest dump is marked `_non_recoverable`: an administrator must fix the cause of an earlier error."""


class Side(Enum):
    """The two users of a dump directory; the value is the name of the file that claims it."""

    SOURCE = "_source"
    TARGET = "_target"


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump as it was found; `uri` is its directory, and `names` are those of its files then (`names_in_full`)."""

    uri: str
    state: DumpState
    names: frozenset[str]

    @property
    def is_finished(self) -> bool:
        """Whether the target may load the dump."""
        return _DUMPED in self.names

    @property
    def is_loaded(self) -> bool:
        """Whether the target has loaded the dump."""
        return _LOADED in self.names

    @property
    def lost(self) -> tuple[str, ...]:
        """The tables that the target could not load, sorted."""
        return lost_tables(self.names)

    @property
    def unconstrained(self) -> tuple[str, ...]:
        """The tables of which the target refuses constraints, sorted."""
        return tables_without_constraints(self.names)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The tables whose files could not be read, sorted."""
        return unreadable_tables(self.names)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing is to be done, and why."""

    reason: str


class DumpDirectory:
    """The dumps of one source database below `root`, the value of `hive.repl.rootdir`.

    `root` must exist, if its storage has directories: if it is missing, its file system is probably not mounted. All
    methods raise StorageUnavailable, and InvalidTable for a scheme that is not supported.
    """

    def __init__(self, storages: Storages, root: str, database: str) -> None:
        self._storage = storages.at(root)
        self._root = root.rstrip("/") or root
        self._name = base64.b64encode(database.lower().encode()).decode()
        self.uri = child(self._root, self._name)

    @classmethod
    def at(cls, storages: Storages, uri: str) -> DumpDirectory:
        """Return the directory with this `uri`."""
        root, _, name = uri.rpartition("/")
        return cls(storages, root, base64.b64decode(name).decode())

    # --- ownership

    def claim(self, side: Side, owner: Owner) -> None:
        """Register the only policy that may use this directory on one side.

        A run by hand uses the directory of a policy, if the metastore and the database are the same; a policy takes
        over the directory of runs by hand. Raises ConfigError if another policy uses it.
        """
        file = child(self.uri, side.value)
        self._make()
        holder = self._owner(file)
        if holder and not holder.policy and owner.policy and holder.agrees(owner):
            self._storage.remove_file(file)
            holder = None
        if holder is None:
            try:
                self._storage.create(file, owner.encode())
                return
            except AlreadyExists:
                holder = Owner.decode(self._storage.read(file), file)
        if not holder.agrees(owner):
            raise ConfigError(
                f"{holder} uses this dump directory, so {owner} cannot",
                where=self.uri,
                hint=f"use another hive.repl.rootdir, or remove {side.value} if that policy no longer exists",
            )

    def owner(self, side: Side) -> Owner | None:
        """Return the policy that uses this directory on one side; None if there is none yet."""
        return self._owner(child(self.uri, side.value))

    def release(self, side: Side, owner: Owner) -> None:
        """Withdraw the claim of `owner`, if it is registered."""
        file = child(self.uri, side.value)
        if self._owner(file) == owner:
            self._storage.remove_file(file)

    # --- dump

    def begin_dump(self, scope: Scope, current_event: Callable[[], int], keep: int = 0) -> Dump | Skipped:
        """Return the dump to continue or to begin, or why there is none.

        `current_event` returns the id of the last event of the source's log; a bootstrap covers all events up to it.
        An unfinished dump of the same scope is continued with its first event; one whose metadata exists is only
        announced to the target, and all earlier dumps but `keep` are removed. Raises NonRecoverable, and OwnershipLost
        if another process begins a dump as well.
        """
        dumps = self.dumps()
        latest = dumps[-1] if dumps else None
        self._check(latest)
        if latest and latest.is_finished and not latest.is_loaded:
            return Skipped(f"the target has not loaded dump {latest.state.number} yet")
        if latest and not latest.is_finished:
            if _METADATA in latest.names:
                self._announce(latest, keep)
                return Skipped(f"dump {latest.state.number} was complete, and is now announced to the target")
            if latest.state.scope == scope:
                return latest
        loaded = next((dump for dump in reversed(dumps) if dump.is_loaded), None)
        if loaded is None:
            return self._begin_bootstrap(dumps, scope, current_event())
        previous = loaded.state.scope
        metadata = self.metadata(loaded)
        state = DumpState(
            _number_after(dumps),
            Phase.INCREMENTAL,
            scope,
            metadata.to_event,
            previous_scope=previous if previous != scope else None,
            tables=loaded.lost,
            unconstrained=loaded.unconstrained,
            unreadable=loaded.unreadable,
            fingerprint=self._fingerprint(loaded, metadata),
            continues=self._is_limited(loaded, metadata),
        )
        return self._begin(state)

    def begin_bootstrap(self, scope: Scope, current_event: Callable[[], int]) -> Dump:
        """Begin a bootstrap, whatever was dumped before; the target ignores older dumps. Raises OwnershipLost."""
        return self._begin_bootstrap(self.dumps(), scope, current_event())

    def finish_dump(self, dump: Dump, metadata: DumpMetadata, keep: int = 0, next_dump: int | None = None) -> None:
        """Announce a complete dump to the target, and remove all earlier dumps but `keep`.

        `next_dump` is the Unix time at which its policy is due again; None if that is unknown. If another process has
        completed the same dump, its result is the valid one. Raises NotFound if the dump has been removed, and the
        storage has directories.
        """
        if self._read(dump.uri) is None:
            raise OwnershipLost("another process has removed this dump", where=dump.uri)
        if next_dump is not None:
            self._storage.create(_in_manifest(dump, metadata, NEXT_FILE), str(next_dump).encode())
        with suppress(AlreadyExists):
            self._storage.create(child(dump.uri, _METADATA), metadata.encode())
        self._announce(dump, keep)

    # --- load

    def begin_load(self) -> Dump | Skipped:
        """Return the dump to load, or why there is none. Raises NonRecoverable."""
        dumps = self.dumps()
        if not dumps:
            return Skipped("there is no dump yet")
        latest = dumps[-1]
        self._check(latest)
        if not latest.is_finished:
            return Skipped(f"dump {latest.state.number} is not finished yet")
        if latest.is_loaded:
            return Skipped(f"dump {latest.state.number} is loaded, and there is no later one")
        return latest

    def metadata(self, dump: Dump) -> DumpMetadata:
        """Return what a finished dump contains. Raises NotFound if it has been removed."""
        file = child(dump.uri, _METADATA)
        return DumpMetadata.decode(self._storage.read(file), file)

    def complete_until(self, dump: Dump, metadata: DumpMetadata) -> int:
        """Return the Unix time of the source up to which a finished dump contains everything."""
        file = _in_manifest(dump, metadata, UNTIL_FILE)
        content = self._find(file)
        return dump.state.began if content is None else decode_time(content, file)

    def next_dump(self, dump: Dump, metadata: DumpMetadata) -> int | None:
        """Return the Unix time of the source at which the dump after a finished one is planned.

        It is None if that is unknown, or if the next dump continues this one at once.
        """
        if self._is_limited(dump, metadata):
            return None
        file = _in_manifest(dump, metadata, NEXT_FILE)
        content = self._find(file)
        return None if content is None else decode_time(content, file)

    def finish_load(self, dump: Dump) -> None:
        """Let the source begin the next dump."""
        self._storage.create(child(dump.uri, _LOADED), b"")

    # --- backlogs

    def continuing_side(self, dumps: Sequence[Dump]) -> Side | None:
        """Return the side that continues a backlog at once, without waiting for its schedule; None if there is none.

        A backlog begins with a dump that does not contain all events of its time, and ends with one that does. `dumps`
        are those of the directory. Raises NotFound if one is removed meanwhile.
        """
        if not dumps:
            return None
        latest = dumps[-1]
        if not latest.is_finished:
            return Side.SOURCE if latest.state.continues else None
        is_limited = self._is_limited(latest, self.metadata(latest))
        if latest.is_loaded:
            return Side.SOURCE if is_limited else None
        return Side.TARGET if is_limited or latest.state.continues else None

    # --- failures

    def fail(self, dump: Dump, reason: str) -> None:
        """Stop both sides until `resume` is called. The first reason is kept."""
        with suppress(AlreadyExists):
            self._storage.create(child(dump.uri, _FAILED), reason.encode())

    def failure(self, dump: Dump) -> str:
        """Return why both sides are stopped, '' if they are not."""
        if _FAILED not in dump.names:
            return ""
        try:
            return self._storage.read(child(dump.uri, _FAILED)).decode(errors="replace")
        except NotFound:  # removed meanwhile
            return ""

    def unreadable(self, dumps: Sequence[Dump]) -> dict[str, str]:
        """Return the tables that are not copied, because their files cannot be read, sorted; the first with a reason.

        `dumps` are those of the directory. Until the latest one is loaded, those of the one before count as well.
        """
        names = sorted(_unreadable(dumps))
        notes = (note_of_unreadable(dump.uri, names[0]) for dump in reversed(dumps)) if names else ()
        reason = next((found for note in notes if (found := read_reason(self._storage, note)) is not None), "")
        return {name: reason if name == names[0] else "" for name in names}

    def resume(self) -> list[str]:
        """Let both sides continue; return the reasons why they were stopped."""
        reasons = []
        for dump in self.dumps():
            if _FAILED in dump.names:
                reasons.append(self.failure(dump))
                self._storage.remove_file(child(dump.uri, _FAILED))
        return reasons

    # --- listing

    def dumps(self) -> list[Dump]:
        """Return all dumps by number, the oldest first; [] if the directory does not exist."""
        try:
            names = [entry.name for entry in self._storage.entries(self.uri)]
        except NotFound:
            return []
        dumps = [dump for name in names if (dump := self._read(child(self.uri, name)))]
        return sorted(dumps, key=lambda dump: dump.state.number)

    def _read(self, uri: str) -> Dump | None:
        """Return the dump in a directory; None if it has no state: it is being created or removed."""
        file = child(uri, _STATE)
        try:
            names = frozenset(names_in_full(self._storage, uri))
            return Dump(uri, DumpState.decode(self._storage.read(file), file), names) if _STATE in names else None
        except NotFound:
            return None

    # --- changes

    def _begin_bootstrap(self, dumps: Sequence[Dump], scope: Scope, from_event: int) -> Dump:
        unreadable = tuple(sorted(_unreadable(dumps)))
        return self._begin(DumpState(_number_after(dumps), Phase.BOOTSTRAP, scope, from_event, unreadable=unreadable))

    def _begin(self, state: DumpState) -> Dump:
        name = str(uuid.uuid4())
        uri = child(self.uri, name)
        self._make(name)
        self._storage.create(child(uri, _STATE), state.encode())
        if any(dump.state.number >= state.number and dump.uri != uri for dump in self.dumps()):
            self._storage.discard(uri)
            raise OwnershipLost("another process began a dump at the same time", where=self.uri)
        return Dump(uri, state, frozenset((_STATE,)))

    def _fingerprint(self, dump: Dump, metadata: DumpMetadata) -> str:
        """Return the fingerprint of the last event of a finished dump; '' if an earlier release has made it."""
        content = self._find(_in_manifest(dump, metadata, FINGERPRINT_FILE))
        return "" if content is None else content.decode(errors="replace")

    def _is_limited(self, dump: Dump, metadata: DumpMetadata) -> bool:
        """Return whether a finished dump does not contain all events of its time."""
        return self._find(_in_manifest(dump, metadata, UNTIL_FILE)) is not None

    def _announce(self, dump: Dump, keep: int) -> None:
        self._show_manifest(dump)
        self._storage.create(child(dump.uri, _DUMPED), b"")
        entries = list(self._storage.entries(self.uri))
        dumps = self.dumps()
        earlier = [other.uri for other in dumps if other.state.number < dump.state.number]
        # A process that was suspended here must not remove what others have dumped since.
        later = [other.uri for other in dumps if other.state.number > dump.state.number]
        kept = {*earlier[max(0, len(earlier) - keep) :], dump.uri, *later}
        for entry in entries:
            if entry.is_directory and child(self.uri, entry.name) not in kept:
                self._storage.discard(child(self.uri, entry.name))

    def _show_manifest(self, dump: Dump) -> None:
        """Copy what others find in the root of a dump from its valid manifest.

        This is `_external_tables_info`, which Hive has there, and the notes about tables that the dump leaves out.
        """
        payload = self.metadata(dump).payload
        if payload is None:
            return
        directory = child(dump.uri, payload)
        self._storage.create(child(dump.uri, EXTERNAL_FILE), self._storage.read(child(directory, EXTERNAL_FILE)))
        for record in Manifest(self._storage, directory).read(UnreadableRecord):
            for note in (note_unreadable, note_lost):
                note(self._storage, dump.uri, record.table, record.reason)

    def _make(self, *names: str) -> None:
        try:
            self._storage.location(self._root).make_directory(self._name, *names)
        except NotFound as error:
            raise NotFound(
                "the root directory of dumps does not exist",
                where=self._root,
                hint="create it, or mount its file system; hive.repl.rootdir names it",
            ) from error

    def _check(self, latest: Dump | None) -> None:
        if latest and (reason := self.failure(latest)):
            raise NonRecoverable(
                f"an earlier run has failed: {reason}",
                where=child(latest.uri, _FAILED),
                hint="fix the cause, then run `ingestd policy resume`, or remove the file",
            )

    def _owner(self, file: str) -> Owner | None:
        content = self._find(file)
        return None if content is None else Owner.decode(content, file)

    def _find(self, file: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            return self._storage.read(file)
        except NotFound:
            return None


def _in_manifest(dump: Dump, metadata: DumpMetadata, name: str) -> str:
    """Return the URI of a file in the manifest of a finished dump."""
    return child(child(dump.uri, metadata.payload or ""), name)


def _unreadable(dumps: Sequence[Dump]) -> set[str]:
    """Return the tables of `DumpDirectory.unreadable`."""
    if not dumps:
        return set()
    latest = dumps[-1]
    return {*latest.unreadable, *(() if latest.is_loaded else latest.state.unreadable)}


def _number_after(dumps: Sequence[Dump]) -> int:
    """Return the number of the dump that follows `dumps`, which are sorted."""
    return dumps[-1].state.number + 1 if dumps else 1
