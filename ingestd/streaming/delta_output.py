"""Where the rows of a transaction go until it commits: files of its own, or files that a batch shares.

Invariant: no row can be read before its transaction has committed, and none of an aborted one ever can.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from ingestd.acid.appendable import AppendableFile
from ingestd.acid.layout import MAX_STATEMENT, ORC_ACID_VERSION, ORC_ACID_VERSION_FILE, batch_delta_name, bucket_name
from ingestd.acid.routing import BucketPools, Part, Shape
from ingestd.acid.writer_pool import StagingFile, storage_errors
from ingestd.background import Background
from ingestd.errors import InvalidTable, StorageUnavailable
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import Table
from ingestd.publish.deltas import DeltaFiles, Placement, StagedFiles
from ingestd.publish.protocol import Files
from ingestd.publish.row_count_parameters import Increment
from ingestd.publish.staging import Staging
from ingestd.storage.local import Location, local_path

_log = logging.getLogger(__name__)
Partition = tuple[str, ...]
# Makes and registers partitions with the open transaction; answers by partition name.
Locate = Callable[[Iterable[Partition]], Mapping[str, PartitionInfo]]
_PENDING_BYTES = 64 << 20
_MAX_OPEN = 64


class Output(Protocol):
    """Takes the rows of one transaction after the other. Methods raise StorageUnavailable, InvalidTable."""

    def begin(self, write_id: int) -> None:
        """Rows belong to this write id from now on."""
        ...

    def add(self, part: Part) -> None:
        """Take rows."""
        ...

    def flush(self) -> None:
        """Free memory: give rows that wait to their files."""
        ...

    def finish(self) -> Files:
        """The rows of the transaction, ready to be published."""
        ...

    def discard(self) -> None:
        """Forget the transaction's rows; never raises."""
        ...

    def close(self) -> None:
        """Finish files that outlive a transaction."""
        ...

    def abandon(self) -> None:
        """Let go of everything after a failure; never raises."""
        ...


class TransactionOutput:
    """Each transaction has its own deltas: staged under a hidden directory, renamed to their place at the end."""

    def __init__(self, shape: Shape, staging: Staging, *, statement: int | None = None) -> None:
        """`statement`: all files take this one; by default a transaction numbers its files itself."""
        self._shape = shape
        self._staging = staging
        self._statement = statement
        self._pools: BucketPools | None = None
        self._encoding = Background("ingestd-encode")

    def begin(self, write_id: int) -> None:
        """See `Output`."""
        self._pools = BucketPools(
            self._staging.make(),
            self._shape,
            write_id,
            max_pending_bytes=_PENDING_BYTES,
            statement=self._statement,
        )

    def add(self, part: Part) -> None:
        """See `Output`; the files are written while the caller makes the next rows."""
        assert self._pools
        with self._explained():
            self._encoding.run(partial(self._pools.add, part))

    def flush(self) -> None:
        """See `Output`."""
        assert self._pools
        with self._explained():
            self._encoding.run(self._pools.flush)
            self._encoding.wait()

    def finish(self) -> StagedFiles:
        """See `Output`."""
        files = self._close_pools(self._pools)
        self._pools = None
        return StagedFiles(files, self._staging)

    def _close_pools(self, pools: BucketPools | None) -> list[StagingFile]:
        assert pools
        files: list[StagingFile] = []
        with self._explained():
            self._encoding.run(lambda: files.extend(pools.close()))
            self._encoding.wait()
        self._encoding.close()
        return files

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StorageUnavailable as error:
            raise self._staging.explain(error) from error

    def discard(self) -> None:
        """See `Output`."""
        self._encoding.close()
        if self._pools:
            self._pools.abort()
            self._pools = None
        self._staging.discard()

    def close(self) -> None:
        """See `Output`; nothing outlives a transaction."""

    def abandon(self) -> None:
        """See `Output`."""
        self.discard()


class BatchOutput:
    """All transactions of a batch write one delta, `delta_first_last_0000`, one file per partition and bucket.

    At most 64 files are open: beyond that the one used longest ago is finished, and a further file of its partition
    and bucket goes into the delta of the next statement.
    """

    def __init__(self, table: Table, shape: Shape, locate: Locate, write_ids: tuple[int, int]) -> None:
        self._table = table
        self._shape = shape
        self._locate = locate
        self._range = write_ids
        self._write_id = 0
        self._waiting: list[Part] = []
        self._bytes = 0
        self._touched: set[tuple[Partition, int]] = set()
        self._open: OrderedDict[tuple[Partition, int], AppendableFile] = OrderedDict()
        self._statements: dict[tuple[Partition, int], int] = {}
        self._homes: dict[tuple[Partition, int], str] = {}  # locations of their partitions
        self._flushed: dict[str, Increment] = {}
        self._placed: set[DeltaFiles] = set()
        self._finished: list[AppendableFile] = []  # in the open transaction, with rows of it

    def begin(self, write_id: int) -> None:
        """See `Output`."""
        self._write_id = write_id
        self._flushed = {}
        self._placed = set()
        self._finished = []

    def add(self, part: Part) -> None:
        """See `Output`."""
        self._waiting.append(part)
        self._bytes += part.rows.nbytes
        if self._bytes > _PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """See `Output`."""
        if not self._waiting:
            return
        found = self._locate({part.partition for part in self._waiting})
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for part in waiting:
            info = found[self._table.partition_name(part.partition)]
            with storage_errors(local_path(info.location)):
                self._file(part, info).write(part.rows, self._write_id)
            self._touched.add((part.partition, part.bucket))
            self._placed.add(self._place_of(part, info.location))

    def finish(self) -> Files:
        """See `Output`."""
        return self

    @property
    def partitions(self) -> Collection[Partition]:
        """See `Files`."""
        return {part.partition for part in self._waiting} | {one.partition for one in self._placed}

    def place(self, _table: Table, _write_id: int, _partitions: Mapping[str, PartitionInfo]) -> Placement:
        """See `Files`: give all rows to their files, and let readers have them as their transaction commits."""
        self.flush()
        for key in sorted(self._touched):
            self._flush(key)
        self._touched = set()
        return Placement(sorted(self._placed, key=str), self._flushed)

    def discard(self) -> None:
        """See `Output`; rows that are in a shared file already are hidden by their write id."""
        self._waiting, self._bytes = [], 0
        self._touched = set()

    def withdraw(self, _deltas: Iterable[DeltaFiles] = ()) -> None:
        """See `Files`; rows of the batch's earlier transactions stay."""
        for file in [*self._open.values(), *self._finished]:
            try:
                file.withdraw(self._write_id)
            except OSError as error:  # noqa: PERF203 - each file for itself
                _log.warning("rows of an aborted transaction are left in the files of its batch: %s", error)

    def close(self) -> None:
        """See `Output`."""
        while self._open:
            self._close_oldest()

    def abandon(self) -> None:
        """See `Output`."""
        self.discard()
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _place_of(self, part: Part, location: str) -> DeltaFiles:
        """Where the rows of a part went. Side files are not told: those are gone when the batch has ended."""
        delta = batch_delta_name(*self._range, self._statements[part.partition, part.bucket])
        return DeltaFiles(part.partition, location, delta, (ORC_ACID_VERSION_FILE, bucket_name(part.bucket)))

    def _flush(self, key: tuple[Partition, int]) -> None:
        name = self._table.partition_name(key[0])
        with storage_errors(Path(name)):
            done = self._open[key].flush(self._write_id)
        self._add(name, Increment(done.rows, 0, done.bytes))

    def _add(self, name: str, more: Increment) -> None:
        self._flushed[name] = self._flushed.get(name, Increment()) + more

    def _file(self, part: Part, info: PartitionInfo) -> AppendableFile:
        key = (part.partition, part.bucket)
        self._leave_moved(key, info)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        while len(self._open) >= _MAX_OPEN:
            self._close_oldest()
        statement = self._statements.get(key, -1) + 1
        if statement > MAX_STATEMENT:
            raise InvalidTable(
                "a batch has opened too many files of one partition and bucket",
                where=f"partition {self._table.partition_name(part.partition)}",
                hint=f"write to at most {_MAX_OPEN} partitions and buckets in a batch, or use transaction_batch_size=1",
            )
        delta = Location.of(info.location).make_directory(batch_delta_name(*self._range, statement))
        (delta / ORC_ACID_VERSION_FILE).write_bytes(ORC_ACID_VERSION)
        self._open[key] = AppendableFile(delta, self._shape.columns, part.bucket, statement, self._shape.encoding)
        self._statements[key] = statement
        self._homes[key] = info.location
        self._add(self._table.partition_name(part.partition), Increment(files=1))
        return self._open[key]

    def _leave_moved(self, key: tuple[Partition, int], info: PartitionInfo) -> None:
        """Let go of a file whose partition was moved, or dropped and made again, since an earlier transaction."""
        if key not in self._open:
            return
        if key not in self._touched and not self._open[key].is_in_place:
            self._open.pop(key).abandon()
        elif info.location != self._homes[key]:
            self._close(key)

    def _close_oldest(self) -> None:
        self._close(next(iter(self._open)))

    def _close(self, key: tuple[Partition, int]) -> None:
        file = self._open[key]
        with storage_errors(Path(self._table.partition_name(key[0]))):
            if key in self._touched:
                self._flush(key)
                self._touched.discard(key)
                self._finished.append(file)
            file.close()
        del self._open[key]
