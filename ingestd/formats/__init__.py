"""Decoders, one per format, that turn record values into Arrow batches.

- `decoder`: the contract, `Decoder`, and its values `DecodeResult` and `Reject`.
- `record_decoder`: `RecordDecoder`, the base class of all formats, which splits batches and collects rejects.
- `columnar_decoder`: `ColumnarDecoder`, the base class of binary formats. It decodes `values` of many records at once,
  and `conversions` converts them to arrays of Hive's types.
- `row_batches`: the conversion of rows of Python values to Arrow batches whose timestamps have one unit.
- `options`: `FormatOptions`, the keys of all formats of mappings.
- `registry`: the client of the schema registry.
- `json`, `avro`, `protobuf`, `delimited`, `csv`, `regex`, `whole_value`: the formats. `lazysimple` decodes the fields
  of `delimited`, `csv` and `regex`; `fields` has the keys that they share.

docs/formats.md says how to add a format.
"""

from ingestd.formats.decoder import Decoder, DecodeResult, Reject
from ingestd.formats.json.decoder import JsonDecoder

__all__ = ["DecodeResult", "Decoder", "JsonDecoder", "Reject"]
