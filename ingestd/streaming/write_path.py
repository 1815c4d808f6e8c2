"""Converts the data of `write` to rows, checks them and adds them to the open batch by partition and bucket.

Invariant: every row that is added fits the table. In a transaction batch no row contains a date or timestamp that Hive
would misread in a file that is still open (`julian.py`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from ingestd.acid.routing import route
from ingestd.errors import IngestdError
from ingestd.formats.decoder import ConstraintDecoder, Decoder, FindViolations
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.configuration import Configuration
from ingestd.streaming.errors import SerializationError, StreamingException, TableChanged
from ingestd.streaming.julian import REASON, ModernDecoder, modern_check, old_rows
from ingestd.streaming.lifecycle import AnyBatch, Lifecycle
from ingestd.streaming.memory import MemoryWatch
from ingestd.streaming.record_buffer import RecordBuffer, Sink, StrictDecoder
from ingestd.streaming.session import Session, TableChange

_BYTES = (bytes, bytearray, memoryview)  # the types of one record


class WritePath:
    """Converts the data of each `write` and passes the rows to the open batch of `lifecycle`.

    The constructor raises the errors of the record writer for the table's columns, and StreamingException if the writer
    has no usable decoder.
    """

    def __init__(self, session: Session, configuration: Configuration, lifecycle: Lifecycle) -> None:
        self._session = session
        self._lifecycle = lifecycle
        self._is_shared = session.options.transaction_batch_size > 1
        self._memory = MemoryWatch(configuration, session.options.auto_flush_check_interval_size)
        self._buffer = self._new_buffer()

    def begin(self) -> None:
        """Start a transaction, in which records are numbered from 0."""
        if self._buffer:
            self._buffer.begin()

    def refresh_table(self) -> TableChange:
        """Re-read the table and, if it has changed, create a new decoder.

        Raises TableChanged or MetastoreUnavailable.
        """
        session = self._session
        before = session.table, session.shape
        change = session.refresh_table()
        if change is not TableChange.NONE:
            try:
                self._buffer = self._new_buffer()
            except BaseException as error:
                session.table, session.shape = before  # the old decoder stays, and so must the table that it fits
                if not isinstance(error, IngestdError):
                    raise
                raise TableChanged(
                    f"the record writer no longer matches the changed table: {error.what}",
                    where=f"table {session.table.name}",
                    hint="close this connection and open a new one with a writer that matches the table",
                ) from error
        return change

    def write(self, data: Any) -> None:
        """Write one record, a list of records, a stream or Arrow data (see `HiveStreamingConnection.write`)."""
        batch = self._lifecycle.open_batch()
        buffer = self._buffer
        if buffer is None:
            self._give(batch, partial(self._write_arrow, data))
        elif isinstance(data, _BYTES):
            try:  # instead of `Lifecycle.guard`, which costs more than the rest of this call
                batch.check()
            except StreamingException as error:
                self._lifecycle.fail(error)
                raise
            if buffer.add(data if type(data) is bytes else _copied(data, "write")):
                self._give(batch, buffer.drain)
        elif isinstance(data, io.TextIOBase):
            raise StreamingException("a stream must return bytes, not text", where="write", hint="open it in mode 'rb'")
        elif hasattr(data, "read"):
            self._give(batch, partial(buffer.write_stream, data))
        else:
            self._give(batch, partial(buffer.write_list, _records(data)))
        if self._memory.is_short(self._session.stats.records_size):
            with self._lifecycle.guard():
                batch.flush()
            self._session.stats.auto_flushes += 1

    def drain(self) -> None:
        """Decode all buffered records and add them to the open batch. Raises SerializationError."""
        if self._buffer:
            self._give(self._lifecycle.open_batch(), self._buffer.drain)

    def _give(self, batch: AnyBatch, write: Callable[[Sink], None]) -> None:
        def sink(rows: pa.RecordBatch) -> None:
            for part in route(rows, self._session.shape, self._session.static):
                self._lifecycle.open_batch().add(part)  # not `batch`: the `read` of a stream may have ended it

        with self._lifecycle.guard():
            batch.check()
            write(sink)

    def _write_arrow(self, data: object, sink: Sink) -> None:
        """Write all of the data, or write nothing and raise SerializationError, which names a row and its column."""
        writer, stats = self._session.options.record_writer, self._session.stats
        assert isinstance(writer, ArrowWriter)
        batches = list(writer.batches(data, self._session.record_columns))
        if self._is_shared:
            _refuse_old(batches)
        _refuse_unfit(batches, self._session.find_unfit)
        for batch in batches:
            sink(batch)
            stats.records_written += batch.num_rows
            stats.records_size += batch.nbytes

    def _new_buffer(self) -> RecordBuffer | None:
        """Return a buffer with a decoder for the table's columns, or None for Arrow data, which needs neither."""
        writer, columns = self._session.options.record_writer, self._session.record_columns
        if isinstance(writer, ArrowWriter):
            return None
        made, check = writer.decoder(columns), writer.checker(columns)
        if not callable(getattr(made, "decode", None)) or not callable(check):
            raise StreamingException(
                f"{type(writer).__name__}.decoder returned {type(made).__name__}, which has no method decode",
                where="record_writer",
                hint="return an object with the method decode(values) -> DecodeResult",
            )
        decoder: Decoder = StrictDecoder(made, columns)
        if self._is_shared:
            decoder = modern = ModernDecoder(decoder)
            check = modern_check(modern, check)
        decoder = ConstraintDecoder(decoder, self._session.find_unfit)
        return RecordBuffer(decoder, check, writer.line_pattern, self._session.stats)


def _records(data: Iterable[Any]) -> list[bytes]:
    """Return the records as a list of bytes. Raises StreamingException for any other type."""
    if isinstance(data, (str, Mapping)) or not isinstance(data, Iterable):
        raise StreamingException(f"a record must be bytes, not {type(data).__name__}", where="write")
    records = data if isinstance(data, list) else list(data)
    if set(map(type, records)) <= {bytes}:
        return records
    return [_as_bytes(record, f"write, item {place}") for place, record in enumerate(records)]


def _as_bytes(record: object, where: str) -> bytes:
    if not isinstance(record, _BYTES):
        raise StreamingException(f"a record must be bytes, not {type(record).__name__}", where=where)
    return _copied(record, where)


def _copied(record: bytes | bytearray | memoryview, where: str) -> bytes:
    """Return an immutable copy of a record. Raises StreamingException if its memory has been released."""
    try:
        return bytes(record)
    except ValueError as error:
        raise StreamingException(f"a record cannot be read: {error}", where=where) from error


def _refuse_unfit(batches: Sequence[pa.RecordBatch], find_unfit: FindViolations) -> None:
    """Raise SerializationError for rows that violate NOT NULL or another constraint of the table."""
    first = 0
    for batch in batches:
        unfit = find_unfit(batch)
        if unfit:
            row = min(unfit)
            column, reason = unfit[row]
            more = f" ({len(unfit)} such rows in the batch)" if len(unfit) > 1 else ""
            raise SerializationError(f"{reason}{more}", where=f"Arrow data, row {first + row}, column {column}")
        first += batch.num_rows


def _refuse_old(batches: Sequence[pa.RecordBatch]) -> None:
    first = 0
    for batch in batches:
        mask = old_rows(batch)
        if mask is not None:
            raise SerializationError(REASON, where=f"Arrow data, row {first + int(mask.argmax())}")
        first += batch.num_rows
