"""Keeps the files of a source until its target has copied them: Hive's cleaner waits for open read transactions.

A compaction replaces files, and the cleaner removes them, although events name them that are not dumped, or dumps that
are not loaded. A hold is a read transaction that is opened before a dump reads the source. It keeps the files of this
dump until they are loaded, and those of the next dump until that one is loaded. Holds overlap, so a source that is
written all the time loses no file. A hold concerns the write ids that the target may lack, so that the cleaner
continues behind it.

Invariant: a hold only delays the cleaner, and never for longer than its limit. It ends earlier if its process is killed
(the metastore aborts the transaction), or if it cannot be kept. Then files may vanish, and the next dump contains their
tables as a whole. No step of a policy waits for a hold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ingestd.clock import Deadline
from ingestd.errors import TransactionAborted
from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.objects import table_names
from ingestd.hive.snapshot import ReadTransaction, read_write_ids
from ingestd.hive.tables import TableName
from ingestd.hive.write_ids import read_transactions
from ingestd.replication.directory.dump_files import DumpState, Phase
from ingestd.replication.directory.protocol import Dump, DumpDirectory

HOLD = "ingestd repl hold"
"""How the agents of all holds begin."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The state of a source at the event with the id `event`.

    `first` is, for each table, the first write id whose end may be a later event.
    """

    event: int
    first: Mapping[TableName, int] = field(default_factory=dict)

    @classmethod
    def now(cls, metastore: Metastore, tables: list[TableName]) -> _Moment:
        by_table = read_write_ids(metastore, tables, read_transactions(metastore))
        first = {name: min(ids.open, default=ids.high_watermark + 1) for name, ids in by_table.items()}
        return cls(EventLog(metastore).current_id(), first)

    def missing(self, state: DumpState) -> dict[TableName, int]:
        """Return the first write ids that the target may lack before a dump, whose first event is not before `event`.

        Tables that the dump copies as a whole are left out: the target may lack all of them.
        """
        if state.phase is Phase.BOOTSTRAP:
            return {}
        previous = state.previous_scope or state.scope
        return {
            name: write_id
            for name, write_id in self.first.items()
            if name.table not in state.tables and previous.contains(name.table)
        }


_BEGINNING = _Moment(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """The hold that began with the dump `number`, at a moment. It ends at the deadline at the latest."""

    policy: str
    directory: DumpDirectory
    number: int
    moment: _Moment
    transaction: ReadTransaction
    deadline: Deadline

    def is_needed(self) -> bool:
        """Return whether the dump after this one is not loaded yet; the one after that begins only when it is."""
        later = [dump for dump in self.directory.dumps() if dump.state.number > self.number]
        return not any(dump.is_loaded or dump.state.number > self.number + 1 for dump in later)

    def is_open(self) -> bool:
        """Return whether the transaction still keeps files. Raises MetastoreUnavailable."""
        with suppress(TransactionAborted):
            self.transaction.check()
            return True
        return False


class Holds:
    """The holds of this process; those of other processes are independent of them. Thread-safe."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._lock = threading.Lock()
        self._holds: list[_Hold] = []
        self._is_closed = False

    def begin(self, policy: str, directory: DumpDirectory, dump: Dump, seconds: float) -> None:
        """Begin a hold, before the dump reads the source, for at most `seconds`; 0: none.

        A dump that is repeated keeps its hold, if that has not ended. Raises MetastoreUnavailable.
        """
        with self._lock:
            own = [other for other in self._holds if other.policy == policy]
        if seconds <= 0 or any(earlier.number == dump.state.number and earlier.is_open() for earlier in own):
            return
        scope = dump.state.scope
        names = filter(scope.contains, table_names(self._metastore, scope.database))
        tables = [TableName(scope.database, name) for name in names]
        transaction = ReadTransaction(self._metastore, f"{HOLD} {policy}")
        try:
            reached = (earlier.moment for earlier in reversed(own) if earlier.moment.event <= dump.state.from_event)
            transaction.keep_files(tables, next(reached, _BEGINNING).missing(dump.state))
            moment = _Moment.now(self._metastore, tables)
        except BaseException:
            transaction.close()
            raise
        hold = _Hold(policy, directory, dump.state.number, moment, transaction, Deadline.after(seconds))
        with self._lock:
            self._holds.append(hold)
            is_closed = self._is_closed
        if is_closed:
            self._end(hold)

    def review(self, policies: Container[str]) -> None:
        """End the holds that are not needed any more, or too old, or whose policy is not one of `policies`.

        Raises StorageUnavailable; then holds that are not needed may remain until the next review.
        """
        with self._lock:
            held = list(self._holds)
        ended = [hold for hold in held if hold.deadline.passed or hold.policy not in policies]
        for hold in ended:
            _log.info("files for dump %d of the policy %s are not kept any longer", hold.number + 1, hold.policy)
            self._end(hold)
        for hold in held:
            if hold not in ended and not hold.is_needed():
                self._end(hold)

    def close(self) -> None:
        """End all holds, and begin no more."""
        with self._lock:
            self._is_closed = True
            held = list(self._holds)
        for hold in held:
            self._end(hold)

    def _end(self, hold: _Hold) -> None:
        with self._lock:
            if hold not in self._holds:
                return
            self._holds.remove(hold)
        hold.transaction.close()
