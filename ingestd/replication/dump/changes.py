"""Selects from the event log of a source what a target in the scope of a policy must replay.

Invariant: every event up to `position` that concerns a table in scope is selected, unless the table is bootstrapped:
then none of its events is, because its copy replaces the table. A table is bootstrapped from one name to the next: if a
rename concerns such a table, the tables of both names are bootstrapped.

The events are read without filters of the metastore (`hive/events.py`), and filtered here. The names of event types are
those of 4.2.0 (EventMessage.EventType).
"""

from __future__ import annotations

import json
import logging
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ingestd.hive.attachments import Constraint, ConstraintKind
from ingestd.hive.events import Event, EventLog, Write
from ingestd.hive.objects import TableKind, TableObject
from ingestd.replication.cycle_plan import ALTERATIONS, Outcome, Outcomes, truncating_write_id
from ingestd.replication.directory.event_records import ABORT, ALLOCATE, COMMIT, EventRecord
from ingestd.replication.dump.partition_columns import ColumnChange
from ingestd.replication.dump.written_files import CommittedWrite
from ingestd.replication.lag import COMPACTION, rebalanced
from ingestd.replication.statements.scope import Scope

_log = logging.getLogger(__name__)
_PAGE = 1000
_OPEN = "OPEN_TXN"
_ENDS = (COMMIT, ABORT)
_VIEW = "MATERIALIZED_VIEW"
_MANAGED = "MANAGED_TABLE"
_OF_DATABASE = frozenset(("CREATE_DATABASE", "ALTER_DATABASE", "DROP_DATABASE", "CREATE_FUNCTION", "DROP_FUNCTION"))
_OF_TABLE = frozenset((
    ALLOCATE, "CREATE_TABLE", "DROP_TABLE", "ADD_PARTITION", "ALTER_PARTITION", "ALTER_PARTITIONS",
    "DROP_PARTITION", "UPDATE_TBL_COL_STAT_EVENT", "UPDATE_PART_COL_STAT_EVENT",
    "DELETE_TBL_COL_STAT_EVENT", "DELETE_PART_COL_STAT_EVENT", "ADD_PRIMARYKEY", "ADD_UNIQUECONSTRAINT",
    "ADD_NOTNULLCONSTRAINT", "ADD_DEFAULTCONSTRAINT", "ADD_CHECKCONSTRAINT",
    "DROP_CONSTRAINT",
))  # fmt: skip
# After these, a table without transactions may have other rows. HiveServer2 sends INSERT for such tables only.
_WITH_ROWS = frozenset(("CREATE_TABLE", "ADD_PARTITION", "INSERT"))
# They change nothing that a target has.
_WITHOUT_EFFECT = frozenset(("RELOAD",))
_VIEWS = (TableKind.VIEW, TableKind.MATERIALIZED_VIEW)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a target has and must have.

    The tables of `scope` are replicated. `previous` is the scope of the target, if it differs: tables that were not in
    it are bootstrapped, and so are those in `tables`. `views` are the materialized views of the source, which are not
    replicated, because they can be rebuilt.
    """

    scope: Scope
    previous: Scope | None
    tables: frozenset[str]
    views: frozenset[str]

    def is_followed(self, table: str) -> bool:
        """Return whether the target has the table, if it exists, and follows its events."""
        is_known = self.previous is None or self.previous.contains(table)
        return self.scope.contains(table) and is_known and table not in self.tables


class Changes:
    """The changes after the event `position`, which moves as they are read. All of them are in memory."""

    def __init__(self, log: EventLog, wanted: Wanted, position: int, fingerprint: str) -> None:
        self.scope = wanted.scope
        self.position = position
        self.fingerprint = fingerprint
        """That of the event `position`; '' if it is not known."""
        self.read_until = 0
        """The Unix time of the last event that was read."""
        self._log = log
        self._wanted = wanted
        self._bootstrapped = set(wanted.tables)
        self._events: list[EventRecord] = []
        self._renames: list[tuple[int, str, str]] = []
        self._column_changes: list[ColumnChange] = []
        self._kinds = _Kinds(wanted.views)
        self._outcomes = Outcomes()
        self._opened: set[int] = set()
        self._committed: dict[int, frozenset[int] | None] = {}
        self._truncations: list[tuple[int, str, int]] = []
        self._writes: list[CommittedWrite] = []

    def read(self, limit: int, on_events: Callable[[int, int], None], stop: threading.Event) -> int:
        """Read at most `limit` events, until `stop` is set; return the id of the newest event of the log.

        `on_events` is called with the number of events that were read, and the number of all events to read. Raises
        EventsExpired if events are missing, and EventsReplaced if the position is that of another event.
        """
        newest = self._log.current_id()
        self._log.require_same(self.position, self.fingerprint)
        first, last = self.position, min(newest, self.position + limit)
        end: Event | None = None
        # Even if there is nothing to read, reading finds out whether the position is still one of the log.
        events = self._log.read(self.position, max(1, min(_PAGE, last - self.position)))
        while events:
            for event in events:
                if event.id <= last:
                    self._add(event)
                    self.position, self.read_until, end = event.id, event.seconds, event
            on_events(self.position - first, last - first)
            if self.position >= last or stop.is_set():
                break
            events = self._log.read(self.position, min(_PAGE, last - self.position))
        if end is None:
            self.fingerprint = self.fingerprint or self._log.fingerprint(self.position)
        else:
            self.fingerprint = end.fingerprint
            self._log.require(first)  # else the log may have had no files any more for some commits
        return newest

    def truncated(self) -> set[str]:
        """Return the tables with a TRUNCATE of which the events do not tell whether its transaction commits."""
        return {truncation[1] for truncation in self._truncations if self._outcomes.of(*truncation) is None}

    def bootstrap(self, tables: Iterable[str]) -> None:
        """Drop the changes of tables: they are copied as they are after the changes."""
        self._bootstrapped |= set(tables)
        known = -1
        while len(self._bootstrapped) > known:
            known = len(self._bootstrapped)
            for _, *pair in self._renames:
                if not all(map(self._is_followed, pair)):
                    self._bootstrapped |= set(pair)

    def renamed(self, tables: Iterable[str]) -> set[str]:
        """Return the tables, and those to whose names they are renamed."""
        names = set(tables)
        for _, old, new in self._renames:
            if old in names:
                names.add(new)
        return names

    def bootstrapped(self, tables: Iterable[str]) -> set[str]:
        """Return the tables to copy, whether they exist or not; `tables` are those of the source."""
        self.bootstrap(())
        entered = {table for table in tables if self._wanted.scope.contains(table) and not self._is_followed(table)}
        return self._bootstrapped | entered

    def events(self) -> Iterator[EventRecord]:
        """Yield the events to replay."""
        for event in self._events:
            if not event.table or self.is_replayed(event.event, event.table):
                yield event

    def writes(self) -> list[CommittedWrite]:
        """Return the writes of the commits to replay."""
        return [write for write in self._writes if self.is_replayed(write.event, write.write.table.table)]

    def known_writes(self) -> Iterator[CommittedWrite]:
        """Yield the writes of `writes`, and those to tables that the target has, but whose changes are left out."""
        for write in self._writes:
            table = write.write.table.table
            if self.is_replayed(write.event, table) or table in self._bootstrapped:
                yield write

    def column_changes(self) -> Iterator[ColumnChange]:
        """Yield the changes of the columns of partitioned tables that are to be replayed."""
        for change in self._column_changes:
            if self.is_replayed(change.event, change.table):
                yield change

    def is_aborted(self, event: int, table: str, write_id: int) -> bool:
        """Return whether the events tell that the transaction aborts that had a write id of a table at an event."""
        return self._outcomes.of(event, table, write_id) is Outcome.ABORTED

    def uncommitted_writers(self, event: int, table: str, write_id: int) -> Collection[int] | None:
        """Return the transaction that has a write id of a table at an event; () if the events contain its commit.

        None if the write id was allocated before these events.
        """
        writer = self._outcomes.writer(event, table, write_id)
        if writer is None:
            return None
        return () if self._outcomes.of(event, table, write_id) is Outcome.COMMITTED else (writer,)

    def earlier_writers(self) -> dict[int, frozenset[int] | None]:
        """Return the transactions that were opened before these events and commit in them, with write ids.

        The write ids are those in all tables of the database for which a transaction has announced nothing. They are
        None if the event of its commit contains no write ids (before Hive 4.2, HIVE-28976).
        """
        return {txn_id: ids for txn_id, ids in self._committed.items() if txn_id not in self._opened}

    def is_replayed(self, event: int, table: str) -> bool:
        """Return whether a change of a table by an event is to be replayed."""
        return self._is_followed(table) and not self._kinds.is_view(event, table)

    def _is_followed(self, table: str) -> bool:
        return self._wanted.is_followed(table) and table not in self._bootstrapped

    def _add(self, event: Event) -> None:
        """Keep an event, if it is in scope."""
        if event.type == _OPEN:
            self._opened.update(_opened(event.message))
        elif event.type in _ENDS:
            self._add_end(event)
        elif event.type == "ALTER_TABLE":
            self._add_alteration(event)
        elif event.type == "ADD_FOREIGNKEY" and event.database:
            self._add_foreign_key(event)
        elif event.type == COMPACTION:
            scope = self._wanted.scope
            self._bootstrapped.update(filter(scope.contains, rebalanced(event, scope.database)))
        elif event.database == self._wanted.scope.database:
            self._add_own(event)

    def _add_own(self, event: Event) -> None:
        """Keep an event of the database, if it is in scope."""
        if event.type in _OF_DATABASE:
            self._keep(EventRecord(event.id, event.type, "", event.text))
        elif event.type in _OF_TABLE and self._wanted.scope.contains(event.table):
            self._add_rows(event)
            if event.type in {"CREATE_TABLE", "DROP_TABLE"}:
                self._kinds.add(event.id, event.table, is_view=event.message.get("tableType") == _VIEW)
            self._keep(EventRecord(event.id, event.type, event.table, event.text))
        elif event.type == "INSERT":
            self._add_rows(event)
        elif event.table and event.type not in _WITHOUT_EFFECT:
            self._add_unknown(event)

    def _keep(self, record: EventRecord) -> None:
        """Keep an event.

        If a TRUNCATE of partitions has no write id, the event has that of their last write, whose transaction has ended
        before. If that was aborted, the TRUNCATE may also be its own, which has removed no file: the table is copied.
        """
        if record.type in ALTERATIONS and (write_id := truncating_write_id(record.message)):
            outcome = self._outcomes.of(record.event, record.table, write_id)
            if outcome is None:
                self._truncations.append((record.event, record.table, write_id))
            elif outcome is Outcome.COMMITTED:
                record = replace(record, text=json.dumps({**record.message, "writeId": 0}))
            else:
                self._bootstrapped.add(record.table)
        self._events.append(record)
        self._outcomes.add(record)

    def _add_rows(self, event: Event) -> None:
        """Bootstrap a managed table without transactions that may have other rows; only Hive 3 creates such tables."""
        if event.type in _WITH_ROWS and self._wanted.scope.contains(event.table) and _is_managed(event.message):
            self._bootstrapped.add(event.table)

    def _add_unknown(self, event: Event) -> None:
        """Bootstrap a table that was changed in a way that this version of ingestd does not know."""
        if self._wanted.scope.contains(event.table):
            _log.warning("the table %s is copied, because event %d has the type %s", event.table, event.id, event.type)
            self._bootstrapped.add(event.table)

    def _add_end(self, event: Event) -> None:
        """Keep the end of a transaction that may have written in the database, with the files of its writes.

        An empty list of databases is no proof: replicated transactions have none, and Hive before 4.2 sends none.
        """
        message, database = event.message, self._wanted.scope.database
        databases = message.get("databases") or message.get("dbsUpdated")
        if databases and database not in databases:
            return
        txn_id = message["txnid"]
        self._keep(EventRecord(event.id, event.type, "", json.dumps({"txnid": txn_id})))
        if event.type == COMMIT:
            writes = self._log.writes(txn_id, database)
            self._committed[txn_id] = _unannounced(message, database, writes)
            for write in writes:
                if self._wanted.scope.contains(write.table.table):
                    self._writes.append(CommittedWrite.of(event.id, write))

    def _add_alteration(self, event: Event) -> None:
        """Keep the alteration of a table; one that takes the table out of scope becomes the drop of the table.

        The event of a rename to another database has that database, so it is found by its text.
        """
        database = self._wanted.scope.database
        if event.database != database and database not in event.text:
            return
        message = event.message
        before, after = (TableObject.parse(message[f"tableObj{when}Json"]) for when in ("Before", "After"))
        old, new = (table.name.table if table.name.database == database else None for table in (before, after))
        is_new = new is not None and self._wanted.scope.contains(new)
        if old is None or not self._wanted.scope.contains(old):
            if new is not None and is_new:
                self._bootstrapped.add(new)
            return
        if new is not None and is_new:
            if old != new:
                self._renames.append((event.id, old, new))
            elif before.columns != after.columns and after.partition_columns and after.kind not in _VIEWS:
                self._column_changes.append(ColumnChange(event.id, new, after.columns))
            if _is_replaced(before, after):
                self._bootstrapped.add(new)
            self._kinds.add(event.id, old, is_view=before.kind is TableKind.MATERIALIZED_VIEW)
            self._keep(EventRecord(event.id, event.type, old, event.text))
        else:
            text = json.dumps({"tableObjJson": message["tableObjBeforeJson"]})
            self._keep(EventRecord(event.id, "DROP_TABLE", old, text))

    def _add_foreign_key(self, event: Event) -> None:
        """Keep a foreign key as a change of its table; the event has the name of the table to which it refers."""
        table = Constraint.parse(ConstraintKind.FOREIGN_KEY, event.message["foreignKeyListJson"]).table
        if table.database == self._wanted.scope.database and self._wanted.scope.contains(table.table):
            self._keep(EventRecord(event.id, event.type, table.table, event.text))


def _opened(message: Mapping[str, Any]) -> Iterable[int]:
    """Return the transactions that an event has opened: a list of them, or a range (JSONOpenTxnMessage)."""
    return message.get("txnIds") or range(message["fromTxnId"], message["toTxnId"] + 1)


def _unannounced(message: Mapping[str, Any], database: str, writes: Iterable[Write]) -> frozenset[int] | None:
    """Return the write ids in a database for which a transaction has announced no `writes`.

    None if the event of its commit contains no write ids. The event does not say to which tables they belong.
    """
    if message.get("writeIds") is None:
        return None
    pairs = zip(message["databases"], message["writeIds"], strict=True)
    left = Counter(write_id for name, write_id in pairs if name == database)
    left.subtract(write_id for _, write_id in {(write.table, write.write_id) for write in writes})
    return frozenset(+left)


def _is_managed(message: Mapping[str, Any]) -> bool:
    """Return whether the table of an event is a managed one without transactions."""
    return message.get("tableType") == _MANAGED and TableObject.parse(message["tableObjJson"]).kind is TableKind.MANAGED


def _is_replaced(before: TableObject, after: TableObject) -> bool:
    """Return whether an alteration gives a table other files: those of an external table, or of another directory."""
    if not (before.kind.is_transactional and after.kind.is_transactional):
        return before.kind is not after.kind
    return before.name == after.name and before.location != after.location


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Tells which events concern a materialized view. An event without a table object tells it by its neighbours.

    `views` are the views of the source as they are now.
    """

    views: frozenset[str]
    _known: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, event: int, table: str, *, is_view: bool) -> None:
        """Record whether the table of an event is a materialized view."""
        self._known[table].append((event, is_view))

    def is_view(self, event: int, table: str) -> bool:
        """Return whether an event concerns a materialized view.

        An event is followed by the drop or alteration of its table, or comes after all of these. A view allocates write
        ids before it is created.
        """
        known = self._known.get(table)
        if not known:
            return table in self.views
        place = bisect_left(known, (event, False))
        return known[min(place, len(known) - 1)][1]
