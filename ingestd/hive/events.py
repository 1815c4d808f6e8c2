"""Reads the metastore's event log: what changed in the warehouse, and which files each transaction wrote.

Invariant: `read` returns events with consecutive ids, or raises EventsExpired. Nothing is filtered in the metastore:
its filters drop the events of transactions, which name no database, and hide that events are missing. HMS keeps an
event for a day by default (`metastore.event.db.listener.timetolive`). An id can be stored as a position: HMS locks its
sequence until the change commits, so a lower id never appears after a higher one (DbNotificationListener).

A metastore that was restored from a backup gives the ids of the events that it has lost to other events. Who stores an
id as a position therefore stores the `fingerprint` of its event as well, and calls `require_same` before it goes on.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from hive_metastore import ttypes

from ingestd.errors import BootstrapRequired
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName

_GZIP = "gzip("
_SCANNED = 1000
_CATALOG_KEY, _CATALOG = "metastore.catalog.default", "hive"
_ABSENT = "no event"


class EventsExpired(BootstrapRequired):
    """The metastore no longer has all events after the given id."""


class EventsReplaced(BootstrapRequired):
    """The metastore has other events than those that were read: it was restored from a backup."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log. `type` is Hive's name, such as ALLOC_WRITE_ID_EVENT.

    `seconds` is the Unix time. `database` and `table` are in lower case, and empty if the event has none, as those of
    transactions. `text` is the JSON of the message. An event of another catalog than the metastore's default one has
    neither names nor a message: a database there may have the same name.
    """

    id: int
    seconds: int
    type: str
    database: str
    table: str
    text: str

    @property
    def message(self) -> dict[str, Any]:
        """The parsed message. Metastore objects in it are texts for `thrift_json.decode`."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed

    @property
    def fingerprint(self) -> str:
        """A text that differs from that of any other event which could have the same id. It is stored in dumps."""
        moment = datetime.fromtimestamp(self.seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        subject = ".".join(name for name in (self.database, self.table) if name)
        digest = sha256(self.text.encode(errors="surrogatepass")).hexdigest()[:16]
        return " ".join(part for part in (self.type, subject, moment, digest) if part)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a transaction wrote.

    `folder` is its path below the table's or partition's directory without the name, such as `delta_0000005_0000005`.
    `checksum` and `archive`, the root of the change manager, are empty unless the change manager is on, on HDFS.
    """

    uri: str
    checksum: str
    archive: str
    folder: str


@dataclass(frozen=True, slots=True)
class Write:
    """The files that a transaction wrote to a table or to one of its partitions.

    `partition` is the name of the partition, or empty. `table_object` and `partition_object` are JSON texts
    (`thrift_json`) of the objects as they were at the time of the write.
    """

    table: TableName
    partition: str
    write_id: int
    files: tuple[WrittenFile, ...]
    table_object: str
    partition_object: str


class EventLog:
    """The event log of a metastore with DbNotificationListener."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._catalog = ""  # of the metastore, once it is known

    def current_id(self) -> int:
        """Return the id of the newest event, 0 if there was none yet. Raises MetastoreUnavailable."""
        return int(self._metastore.call("get_current_notificationEventId").eventId)

    def read(self, after: int, limit: int) -> list[Event]:
        """Return at most `limit` events with the ids `after + 1`, `after + 2`, …; [] if there are none yet.

        Raises EventsExpired if the log lacks some of these events, and MetastoreUnavailable.
        """
        events = self._fetch(after, limit)
        if not events:
            self._require_position(after)
            events = self._fetch(after, limit)  # it may have been written since
        for expected, event in enumerate(events, after + 1):
            if event.eventId != expected:
                raise self._expired(f"event {expected} is missing, and event {event.eventId} is present")
        return [self._event(event) for event in events]

    def scan(self, after: int, skipped: Sequence[str]) -> Iterator[Event]:
        """Yield the events after `after` whose type is not in `skipped`; unlike `read`, this finds no gap."""
        while events := self._fetch(after, _SCANNED, skipped):
            yield from map(self._event, events)
            after = events[-1].eventId

    def writes(self, transaction: int, database: str) -> list[Write]:
        """Return the files that a committed transaction wrote in `database`, one element per table or partition.

        HMS keeps them as long as events. Afterwards the list is empty, so call `require` with an earlier event when all
        writes are read. Raises MetastoreUnavailable.
        """
        request = ttypes.GetAllWriteEventInfoRequest(txnId=transaction, dbName=database)
        return [_write(write) for write in self._metastore.call("get_all_write_event_info", request)]

    def require(self, after: int) -> None:
        """Raise EventsExpired unless the event after `after` is still in the log, and MetastoreUnavailable."""
        events = self._fetch(after, 1)
        if not events or events[0].eventId != after + 1:
            raise self._expired(f"event {after + 1} was removed while the events were read")

    def fingerprint(self, event_id: int) -> str:
        """Return the fingerprint of an event; of one that the log does not contain, a text that says so.

        Raises MetastoreUnavailable.
        """
        events = self._fetch(event_id - 1, 1)
        return self._event(events[0]).fingerprint if events and events[0].eventId == event_id else _ABSENT

    def require_same(self, event_id: int, fingerprint: str) -> None:
        """Raise EventsReplaced if the log has another event of this id than the one with `fingerprint`.

        A log that does not contain the event any more is not one that was replaced: `read` notices that. Without a
        fingerprint (''), nothing is compared. Raises MetastoreUnavailable.
        """
        current = self.fingerprint(event_id) if fingerprint else _ABSENT
        if current not in (fingerprint, _ABSENT):
            raise EventsReplaced(
                f"the event log has other events than before: event {event_id} was [{fingerprint}], and is now "
                f"[{current}]; the metastore was probably restored from a backup",
                where=self._where,
                hint="the copy may have changes that the source has lost; bootstrap again",
            )

    def _fetch(self, after: int, limit: int, skipped: Sequence[str] = ()) -> Sequence[Any]:
        request = ttypes.NotificationEventRequest(
            lastEvent=after, maxEvents=limit, eventTypeSkipList=list(skipped) or None
        )
        return self._metastore.call("get_next_notification", request).events or ()

    def _event(self, raw: Any) -> Event:
        catalog = raw.catName or ""
        if catalog and not self._catalog:
            self._catalog = str(self._metastore.call("get_config_value", _CATALOG_KEY, _CATALOG))
        if catalog != self._catalog and catalog:
            return Event(raw.eventId, raw.eventTime, raw.eventType, "", "", "{}")
        text = raw.message
        if (raw.messageFormat or "").startswith(_GZIP):
            text = gzip.decompress(base64.b64decode(text)).decode()
        database, table = (raw.dbName or "").lower(), (raw.tableName or "").lower()
        return Event(raw.eventId, raw.eventTime, raw.eventType, database, table, text)

    def _require_position(self, after: int) -> None:
        """Raise EventsExpired if an empty answer does not mean that `after` is the newest event."""
        current = self.current_id()
        if current < after:
            raise EventsExpired(
                f"the event log is incomplete: its newest event is {current}, but event {after} has already been read",
                where=self._where,
                hint="the metastore was probably restored from a backup; bootstrap again",
            )
        if current > after and not self._fetch(after, 1):
            raise self._expired(f"events {after + 1} to {current} are missing")

    def _expired(self, what: str) -> EventsExpired:
        return EventsExpired(
            f"the event log is incomplete: {what}",
            where=self._where,
            hint="bootstrap again, and raise metastore.event.db.listener.timetolive or run the policy more often",
        )

    @property
    def _where(self) -> str:
        host, port = self._metastore.preferred_address
        return f"metastore {host}:{port}"


def _write(raw: Any) -> Write:
    return Write(
        TableName(raw.database.lower(), raw.table.lower()),
        raw.partition or "",
        raw.writeId,
        tuple(_file(entry) for entry in (raw.files or "").split("]") if entry),
        raw.tableObj or "",
        raw.partitionObj or "",
    )


def _file(entry: str) -> WrittenFile:
    """Parse `URI#CHECKSUM#ARCHIVE#FOLDER`, of which the end may be absent (ReplChangeManager.encodeFileUri)."""
    uri, checksum, archive, folder, *_ = [*entry.split("#"), "", "", ""]
    return WrittenFile(uri, checksum, archive, folder)
