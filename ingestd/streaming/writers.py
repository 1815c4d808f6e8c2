"""Record writers, which convert the data that a connection's `write` accepts into rows.

Invariant: a writer has no state that belongs to a connection, so several connections may use it, even concurrently.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from ingestd.formats.decoder import Decoder, Reject
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.layout import Layout
from ingestd.formats.lazysimple.values import check_choice
from ingestd.formats.regex import RegexDecoder
from ingestd.formats.unmatched import Unmatched
from ingestd.schema import Column
from ingestd.streaming.arguments import check_flag, check_text
from ingestd.streaming.errors import StreamingException, streaming_errors
from ingestd.streaming.record_buffer import as_decoded
from ingestd.streaming.record_stream import LINES


class RecordWriter(ABC):
    """Converts records, which are bytes, into rows (org.apache.hive.streaming.RecordWriter).

    A custom writer must implement `decoder`; docs/streaming.md shows one for msgpack. If the decoder also has a method
    `check`, writing records one by one is much faster (see `checker`). `line_delimiter_pattern` is a regular expression
    without groups that splits streams into records.

    `reads_by_position` states whether the fields of a record are the columns in order, with the partition columns last.
    If so, a connection with dynamic partitioning raises TableChanged after ADD COLUMNS, because the partition values
    would shift. Set it to False in a writer that finds fields by name.
    """

    reads_by_position: ClassVar[bool] = True
    line_pattern: re.Pattern[bytes] = LINES

    def __init__(self, *, line_delimiter_pattern: str | None = None) -> None:
        self.line_pattern = LINES if line_delimiter_pattern is None else _compiled(line_delimiter_pattern)

    @abstractmethod
    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """Return a decoder that converts batches of records into these columns.

        `columns` are those of the table, followed by the partition columns if partitioning is dynamic.
        """

    def checker(self, columns: Sequence[Column]) -> Callable[[bytes], Reject | None]:
        """Return a function that checks a single record, so that `write` can reject it before it is buffered.

        The function returns the reject that `decode` would return for this record alone, or None. It is the decoder's
        own `check(value: bytes) -> Reject | None` if there is one. Otherwise it decodes a batch of one record, which
        limits `write(bytes)` to about 1,000 records per second, a hundredth of the rate with `check`. Records of lists
        and streams are not checked one by one.
        """
        decoder = self.decoder(columns)
        quick: Callable[[bytes], Reject | None] | None = getattr(decoder, "check", None)
        if quick is not None:
            return quick

        def check(record: bytes) -> Reject | None:
            return next(iter(as_decoded(decoder.decode([record])).rejects), None)

        return check


class StrictDelimitedInputWriter(RecordWriter):
    """Decodes delimited text as Hive's LazySimpleSerDe does (see the table in docs/streaming.md).

    As in Hive, malformed values and missing fields become NULL by default, and extra fields are dropped. With
    `bad_values="reject"` and `bad_counts="reject"` such records raise SerializationError instead. A text that is not
    empty and does not contain the delimiter raises it if there are several columns; `unmatched="null"` restores Hive's
    behavior.
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
        unmatched: Unmatched = "reject",
    ) -> None:
        """The other options are those of `DelimitedFormat`. Raises StreamingException for an invalid option."""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        with streaming_errors():
            self.format = DelimitedFormat(
                field_delimiter, collection_delimiter, map_key_delimiter, null_text, escape, bad_values, bad_counts
            )
            check_choice("unmatched", unmatched, ("null", "reject"))
        self._unmatched = unmatched

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """Return a decoder of delimited text. Raises StreamingException for unsupported columns."""
        with streaming_errors():
            return DelimitedDecoder(columns, self.format, unmatched=self._unmatched)


class StrictJsonWriter(RecordWriter):
    """Decodes one JSON object per record (`ingestd.formats.json`). No value is wrapped, truncated or replaced by 0.

    An object with fields, none of which is a column, raises SerializationError; with `unmatched="null"` it is a row of
    NULLs, as in Hive.
    """

    reads_by_position = False

    def __init__(self, *, line_delimiter_pattern: str | None = None, unmatched: Unmatched = "reject") -> None:
        """Raises StreamingException for an invalid option."""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        with streaming_errors():
            check_choice("unmatched", unmatched, ("null", "reject"))
        self._layout = Layout(rejects_unmatched=unmatched == "reject")

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """Return a decoder of JSON objects."""
        return JsonDecoder(columns, self._layout)


class StrictRegexWriter(RecordWriter):
    """Decodes text with a regular expression that matches the whole record. Group n is column n (RegexSerDe)."""

    def __init__(
        self,
        regex: str,
        *,
        line_delimiter_pattern: str | None = None,
        ignore_case: bool = False,
        bad_values: Literal["null", "reject"] = "null",
        unmatched: Unmatched = "reject",
    ) -> None:
        """The options are those of `RegexDecoder`. Raises StreamingException for an invalid option."""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        check_text("regex", regex, kind=StreamingException)
        check_flag("ignore_case", ignore_case, kind=StreamingException)
        self._regex = regex
        self._ignore_case = ignore_case
        self._bad_values = bad_values
        self._unmatched = unmatched

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """Return a decoder that matches records with the regular expression."""
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
        what = f"{pattern!r} is not a valid Python regular expression: {error}"
        raise StreamingException(what, where="line_delimiter_pattern") from error
    if compiled.groups:
        raise StreamingException(
            f"{pattern!r} has groups", where="line_delimiter_pattern", hint="use non-capturing groups: (?:…)"
        )
    return compiled
