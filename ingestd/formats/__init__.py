"""Decoders, one per format, that turn record values into Arrow batches.

- `decoder`: the contract, `Decoder`, and its values `DecodeResult` and `Reject`.
- `record_decoder`: `RecordDecoder`, the base class of all formats, which splits batches and collects rejects.
- `row_batches`: the conversion of rows of Python values to Arrow batches whose timestamps have one unit.
- `json`, `delimited`, `regex`: the formats. `lazysimple` decodes the fields of the last two.

To add a format, extend `RecordDecoder`. `decode_record` decodes one record into a row of `row_batches.Value`s, or
raises RejectError. `decode_batch` decodes many records at once with the same result, or raises NotColumnar. Begin with
a `decode_batch` that always raises NotColumnar, and use hypothesis to test a faster one against `decode_record`.
"""

from ingestd.formats.decoder import Decoder, DecodeResult, Reject
from ingestd.formats.json.decoder import JsonDecoder

__all__ = ["DecodeResult", "Decoder", "JsonDecoder", "Reject"]
