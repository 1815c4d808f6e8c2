"""Copies the files of many commits at once, before the events of their tables are replayed.

Invariant: when an event of a table is replayed, the files of the next commits of the table are in place, or the table
is lost (`directory/lost_tables.py`). Before a commit makes files of a lost table visible, or an empty base, they are
removed.

Files under write ids that are not committed are invisible, so one copy places the files of all commits that it can. It
must not run ahead of an event that moves or removes the directory (a barrier): the files of a commit are copied as soon
as the last barrier of their table before the commit has been replayed. So a cycle without DDL copies all files in one
job, and a file that has vanished is noticed before anything of its table is replayed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ingestd.acid.layout import base_name
from ingestd.errors import IngestdError
from ingestd.hive.objects import TableObject
from ingestd.hive.replay import Replay
from ingestd.replication.copying.copy import Copier
from ingestd.replication.copying.report import Copied
from ingestd.replication.copying.transfer import CopyFile
from ingestd.replication.cycle_plan import CyclePlan
from ingestd.replication.directory.event_records import EmptyBaseRecord, WrittenFileRecord
from ingestd.replication.directory.lost_tables import LostTables
from ingestd.replication.directory.manifest import Manifest
from ingestd.replication.load.definitions import Definitions
from ingestd.storage.contract import child
from ingestd.storage.storages import Storages


@dataclass(slots=True)
class CopyAhead:
    """The copies of one load.

    `absent` contains the URIs of target files that were not copied: their table or partition is dropped later.
    """

    manifest: Manifest
    plan: CyclePlan
    definitions: Definitions
    replay: Replay
    lost: LostTables
    storages: Storages
    copied: Copied
    on_files: Callable[[int, int], None]
    absent: set[str] = field(default_factory=set)
    _barriers: frozenset[int] | None = None
    _bases: Sequence[EmptyBaseRecord] | None = None

    def copy(self, event: int, copier: Copier, stop: threading.Event) -> bool:
        """Copy the files whose last barrier is `event`, 0 for those without one; return whether there were any.

        Raises the errors of `Copier.copy`.
        """
        if self._barriers is None:
            self._barriers = frozenset(map(self._barrier, self._committed_later()))
        if event not in self._barriers:
            return False
        files = {}
        for record in self._files(event):
            table = self.definitions.table(record.table)
            assert table is not None  # `_files` yields none of a missing table
            file = self._copy_of(record, table)
            files[file.target] = (file, record)
        on_progress = self.copied.reporting(self.on_files)
        result = copier.copy([file for file, _ in files.values()], stop=stop, on_progress=on_progress)
        self.copied.add(result)
        lost: dict[str, str] = {}
        refused: dict[str, IngestdError] = {}
        for loss in result.lost:
            record = files[loss.file.target][1]
            if self.plan.is_dropped(record.event, record.table, record.partition):
                self.absent.add(loss.file.target)
            elif loss.refusal is None:
                lost.setdefault(record.table, loss.reason)
            else:
                refused.setdefault(record.table, loss.refusal)
        self.lost.add_unreadable(refused, others_are_read=bool(result.copied))
        for name, reason in lost.items():
            if name not in refused:
                self.lost.add(name, f"a file of the source vanished before it was copied: {reason}")
        return True

    def remove(self, event: int, files: Iterable[WrittenFileRecord], check: Callable[[], None]) -> None:
        """Remove what the commit `event` would make visible of lost tables: the copies of `files`, and empty bases.

        The write id of a lost table becomes valid with the transaction if it was allocated before the table was lost. A
        base hides older rows even when it is empty, so directories are removed. `check` is called before each change.
        """
        places: dict[tuple[str, int], set[tuple[str, str]]] = defaultdict(set)
        for record in files:
            if record.directory:  # else the file is in none of a write, and visible in any case
                places[record.table, record.write_id].add((record.partition, record.directory.partition("/")[0]))
        for base in self._empty_bases() if self.lost.names else ():
            if base.event <= event:
                for name in self.plan.renamed(base.table):  # it may have another name since
                    places[name, base.write_id].add((base.partition, base_name(base.write_id)))
        for (name, write_id), of_write in places.items():
            table = self.definitions.find(name) if name in self.lost else None
            if table is not None and self.replay.has(self.plan.commits[event], table.name, write_id):
                for partition, written in sorted(of_write):
                    check()
                    directory = child(table.location, *filter(None, [partition]), written)
                    self.storages.at(directory).remove(directory)

    def _empty_bases(self) -> Sequence[EmptyBaseRecord]:
        """Return the empty bases of the dump, which are read once."""
        if self._bases is None:
            self._bases = list(self.manifest.read(EmptyBaseRecord))
        return self._bases

    def _committed_later(self) -> Iterator[WrittenFileRecord]:
        """Yield the files of the commits that are not replayed yet."""
        return (record for record in self.manifest.read(WrittenFileRecord) if record.event in self.plan.commits)

    def _barrier(self, record: WrittenFileRecord) -> int:
        return self.plan.last_barrier(record.event, record.table)

    def _files(self, barrier: int) -> Iterator[WrittenFileRecord]:
        """Yield the files with that barrier.

        A file of a write id that has ended on the target is not needed: a bootstrap has copied its rows. The source
        transaction may still be open there: it had the write id before the table was replaced by a whole copy.
        """
        highest: dict[str, int] = {}
        is_open: dict[tuple[str, int], bool] = {}
        for record in self._committed_later():
            if self._barrier(record) != barrier or record.table in self.lost:
                continue
            if record.table not in highest:
                existing = self.definitions.table(record.table)
                highest[record.table] = self.replay.highest_write_id(existing.name) if existing else 2**63
            write = record.table, record.write_id
            if record.write_id <= highest[record.table] and write not in is_open:
                table, txn_id = self.definitions.table(record.table), self.plan.commits[record.event]
                is_open[write] = table is not None and self.replay.has(txn_id, table.name, record.write_id)
            if record.write_id > highest[record.table] or is_open[write]:
                yield record

    def _copy_of(self, record: WrittenFileRecord, table: TableObject) -> CopyFile:
        directory = child(table.location, *filter(None, [record.partition, record.directory]))
        archive = record.archive or None
        return CopyFile(record.source, record.length, directory, record.name, archive, written=record.written)
