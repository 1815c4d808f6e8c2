"""Record values become Arrow batches; what a column cannot hold exactly becomes a reject, never another value."""

from ingestd.formats.decoder import Decoder, DecodeResult, Reject
from ingestd.formats.json.decoder import JsonDecoder

__all__ = ["DecodeResult", "Decoder", "JsonDecoder", "Reject"]
