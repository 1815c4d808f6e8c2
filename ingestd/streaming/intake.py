"""What the record writer of a connection makes of the data that `write` is given: batches that the table can take.

Invariant: no row that the table cannot take leaves this module; a batch of transactions gets no date or timestamp that
Hive would read wrongly from a file that is still open (`julian.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.routing import Shape
from ingestd.formats.decoder import ConstraintDecoder, Decoder
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.errors import SerializationError, StreamingException, TableChanged, streaming_errors
from ingestd.streaming.julian import REASON, ModernDecoder, modern_check, old_rows
from ingestd.streaming.record_buffer import RecordFeed, Sink, StrictDecoder
from ingestd.streaming.session import Change, Session


class RecordIntake:
    """The record writer of one session: `feed` takes records in bytes, and is None when the writer takes Arrow data.

    Making one raises what the record writer raises for the table's columns, StreamingException for a writer that is
    none.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_batch = session.options.transaction_batch_size > 1
        self.feed = self._new_feed()

    def begin(self) -> None:
        """A new transaction: records are counted from 0."""
        if self.feed:
            self.feed.begin()

    def look_again(self) -> Change:
        """Compare the table; one that has changed gets a new decoder. Raises TableChanged, MetastoreUnavailable."""
        session = self._session
        before = session.table, session.shape
        change = session.look_again()
        if change is not Change.NONE:
            try:
                self.feed = self._new_feed()
            except BaseException as error:
                session.table, session.shape = before  # as the decoder that is left
                if not isinstance(error, StreamingException):
                    raise
                raise TableChanged(
                    f"the table changed so that the record writer does not fit it any more: {error.what}",
                    where=f"table {session.table.name}",
                    hint="close this connection and make a new one with a writer that fits",
                ) from error
        return change

    def write_arrow(self, data: object, sink: Sink) -> None:
        """Take Arrow data: all of it, or none with a SerializationError that names a row and its column."""
        writer, stats = self._session.options.writer, self._session.stats
        assert isinstance(writer, ArrowWriter)
        batches = list(writer.batches(data, self._session.record_columns))
        if self._is_batch:
            _refuse_old(batches)
        _refuse_unfit(batches, self._session.shape)
        for batch in batches:
            sink(batch)
            stats.records_written += batch.num_rows
            stats.records_size += batch.nbytes

    def _new_feed(self) -> RecordFeed | None:
        writer, columns = self._session.options.writer, self._session.record_columns
        if isinstance(writer, ArrowWriter):
            return None
        with streaming_errors():
            made, check = writer.decoder(columns), writer.checker(columns)
        if not callable(getattr(made, "decode", None)) or not callable(check):
            raise StreamingException(
                f"{type(writer).__name__}.decoder returned {type(made).__name__}, which has no method decode",
                where="record_writer",
            )
        decoder: Decoder = StrictDecoder(made, columns)
        if self._is_batch:
            decoder = modern = ModernDecoder(decoder)
            check = modern_check(modern, check)
        decoder = ConstraintDecoder(decoder, partial(unfit_rows, shape=self._session.shape))
        return RecordFeed(decoder, check, writer.line_pattern, self._session.stats)


def _refuse_unfit(batches: Sequence[pa.RecordBatch], shape: Shape) -> None:
    first = 0
    for batch in batches:
        unfit = unfit_rows(batch, shape)
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
