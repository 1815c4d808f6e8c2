"""The record writers: what a connection's `write` takes and how it becomes rows.

Invariant: a writer keeps nothing of a connection, so one writer may serve several connections, one after the other or
side by side.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from ingestd.formats.decoder import Decoder, Reject
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.regex import RegexDecoder
from ingestd.schema import Column
from ingestd.streaming.arguments import check_flag, check_text
from ingestd.streaming.errors import StreamingException, streaming_errors
from ingestd.streaming.record_buffer import as_decoded
from ingestd.streaming.record_stream import LINES


class RecordWriter(ABC):
    """Turns records, which are bytes, into rows (org.apache.hive.streaming.RecordWriter).

    Others may implement it: `decoder` is all that is needed, `docs/streaming.md` shows one for msgpack. A decoder with
    a method `check` besides makes writing one by one much faster, see `checker`.
    `line_delimiter_pattern` splits the streams that `write` is given; it may have no groups.

    `reads_by_position` says that the fields of a record are the columns in their order, partition columns last. Then a
    connection with dynamic partitioning refuses to go on after ADD COLUMNS, which would shift the partition values.
    Set it to False in a writer that finds fields by their names.
    """

    reads_by_position: ClassVar[bool] = True
    line_pattern: re.Pattern[bytes] = LINES

    def __init__(self, *, line_delimiter_pattern: str | None = None) -> None:
        self.line_pattern = LINES if line_delimiter_pattern is None else _compiled(line_delimiter_pattern)

    @abstractmethod
    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """A decoder of blocks of records into these columns: the table's, then, if dynamic, the partition columns."""

    def checker(self, columns: Sequence[Column]) -> Callable[[bytes], Reject | None]:
        """A look at one record before it is taken, so that a bad one is refused at once; it says what is wrong.

        It is the decoder's own `check(value: bytes) -> Reject | None` if it has one: the reject that `decode` would
        make of a block of this record alone, or None. Without one it decodes such a block, and `write(bytes)` takes
        about 1,000 records a second, where `check` lets it take a hundred times as many; lists and streams are never
        looked at like this.
        """
        decoder = self.decoder(columns)
        quick: Callable[[bytes], Reject | None] | None = getattr(decoder, "check", None)
        if quick is not None:
            return quick

        def check(record: bytes) -> Reject | None:
            return next(iter(as_decoded(decoder.decode([record])).rejects), None)

        return check


class StrictDelimitedInputWriter(RecordWriter):
    """Delimited text, read as Hive's LazySimpleSerDe reads it (table in docs/streaming.md).

    By default a bad value is NULL, a missing field is NULL and a field too many is dropped, as in Hive;
    `bad_values="reject"` and `bad_counts="reject"` refuse such records with a SerializationError instead.
    """

    def __init__(  # noqa: PLR0913 - the options of a format, by name only
        self,
        *,
        line_delimiter_pattern: str | None = None,
        field_delimiter: str = "\x01",
        collection_delimiter: str = "\x02",
        map_key_delimiter: str = "\x03",
        null_text: str = r"\N",
        escape: str | None = None,
        bad_values: Literal["null", "reject"] = "null",
        bad_counts: Literal["fit", "reject"] = "fit",
    ) -> None:
        """The options are those of `DelimitedFormat`. Raises StreamingException."""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        with streaming_errors():
            self.format = DelimitedFormat(
                field_delimiter, collection_delimiter, map_key_delimiter, null_text, escape, bad_values, bad_counts
            )

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """See `RecordWriter`."""
        with streaming_errors():
            return DelimitedDecoder(columns, self.format)


class StrictJsonWriter(RecordWriter):
    """One JSON object per record, as `ingestd.formats.json` reads it: nothing is wrapped, cut or set to 0."""

    reads_by_position = False

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """See `RecordWriter`."""
        return JsonDecoder(columns)


class StrictRegexWriter(RecordWriter):
    """Text that a regular expression matches as a whole; group n is column n (RegexSerDe)."""

    def __init__(
        self,
        regex: str,
        *,
        line_delimiter_pattern: str | None = None,
        ignore_case: bool = False,
        bad_values: Literal["null", "reject"] = "null",
        unmatched: Literal["null", "reject"] = "reject",
    ) -> None:
        """The options are those of `RegexDecoder`. Raises StreamingException."""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        check_text("regex", regex, kind=StreamingException)
        check_flag("ignore_case", ignore_case, kind=StreamingException)
        self._regex = regex
        self._ignore_case = ignore_case
        self._bad_values = bad_values
        self._unmatched = unmatched

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """See `RecordWriter`."""
        with streaming_errors():
            return RegexDecoder(
                columns,
                self._regex,
                ignore_case=self._ignore_case,
                bad_values=self._bad_values,
                unmatched=self._unmatched,
            )


def _compiled(pattern: str) -> re.Pattern[bytes]:
    check_text("line_delimiter_pattern", pattern, kind=StreamingException)
    try:
        compiled = re.compile(pattern.encode())
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise StreamingException(f"{pattern!r} is not a regular expression: {error}") from error
    if compiled.groups:
        raise StreamingException(f"{pattern!r} has groups", where="line_delimiter_pattern", hint="use (?:…)")
    return compiled
