"""Record values become Arrow batches; what a column cannot hold exactly becomes a reject, never another value."""

from ingestd.records.block import Decoded, Decoder, Reject
from ingestd.records.json import JsonDecoder

__all__ = ["Decoded", "Decoder", "JsonDecoder", "Reject"]
