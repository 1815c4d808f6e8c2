"""Records that a connection decodes together: what the error of a decoder means for the others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from ingestd.errors import RecordError
from ingestd.formats.decoder import DecodeResult
from ingestd.streaming import SerializationError, StreamingException
from ingestd.streaming.record_buffer import RecordBuffer, StrictDecoder
from ingestd.streaming.record_stream import LINES
from ingestd.streaming.stats import Counters
from tests.support.decoding import columns_of


class _Raising:
    """A decoder that raises an error for a batch that contains `bad`."""

    def __init__(self, error: RecordError) -> None:
        self._error = error

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        if b"bad" in values:
            raise self._error
        return DecodeResult([pa.record_batch({"note": [str(value) for value in values]})], [], 0)


@pytest.mark.parametrize("error", [SerializationError("no note"), RecordError("no note")])
def test_write_when_the_decoder_raises_the_error_of_a_record_then_the_transaction_does_not_continue(
    error: RecordError,
) -> None:
    buffer = RecordBuffer(
        StrictDecoder(_Raising(error), columns_of(note="string")), lambda _record: None, LINES, Counters()
    )
    written: list[pa.RecordBatch] = []
    buffer.write_list([b"first"], written.append)
    buffer.add(b"bad")

    with pytest.raises(StreamingException, match=r"the decoder raised .*no note") as failed:
        buffer.write_list([b"second"], written.append)

    assert not isinstance(failed.value, RecordError)  # with which the others would be committed
    assert sum(batch.num_rows for batch in written) == 1
