"""Record values become Arrow batches, one decoder per format.

- `decoder`: the contract, `Decoder`, and its values `DecodeResult` and `Reject`.
- `record_decoder`: `RecordDecoder`, the base of all formats, which splits batches and collects rejects.
- `row_batches`: rows of Python values become Arrow batches whose timestamps have one unit.
- `json`, `delimited`, `regex`: the formats. `lazysimple` reads the fields of the last two.

To add a format, extend `RecordDecoder`: `decode_record` decodes one record into a row of `row_batches.Value`s and
raises RejectError if it cannot; `decode_batch` decodes many at once with the same result, and raises NotColumnar if it
cannot. Begin with one that always raises NotColumnar, and test any faster one against `decode_record` with hypothesis.
"""

from ingestd.formats.decoder import Decoder, DecodeResult, Reject
from ingestd.formats.json.decoder import JsonDecoder

__all__ = ["DecodeResult", "Decoder", "JsonDecoder", "Reject"]
