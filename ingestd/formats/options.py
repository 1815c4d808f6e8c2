"""The format of a mapping's records: one options dataclass per format, distinguished by `type`.

Invariant: the options of a format contain all that its decoder needs except the columns, and no secret, because they
are sent to Spark tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingestd.errors import ConfigError
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.inference import joined_needs
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.record_decoder import RecordDecoder
from ingestd.formats.regex import RegexOptions
from ingestd.formats.registry import InvalidSchema, Registry
from ingestd.formats.whole_value import BinaryOptions, TextOptions
from ingestd.schema import Column

# Each member has keys of its own, the key `tombstones`, and a method `decoder(columns: Sequence[Column])`, which
# returns a RecordDecoder, and raises ConfigError if the format cannot be decoded into these columns. The first member
# is the default.
FormatOptions = (
    JsonOptions
    | TextOptions
    | BinaryOptions
    | DelimitedOptions
    | CsvOptions
    | RegexOptions
    | AvroOptions
    | ProtobufOptions
)

Join = Callable[[Iterable[Column], Iterable[Column]], tuple[Column, ...]]
"""Joins the needed columns of the same name; its second argument are the columns of the table."""


def decoder_of(options: FormatOptions, columns: Sequence[Column], registry: Registry | None) -> RecordDecoder:
    """Return the decoder of a format, which may find schemas in the registry. Raises ConfigError."""
    if isinstance(options, (AvroOptions, ProtobufOptions)):
        return options.decoder(columns, registry)
    return options.decoder(columns)


def has_schema(options: FormatOptions) -> bool:
    """Return whether a schema, which `schema_columns` reads, defines the columns of the records."""
    return isinstance(options, (AvroOptions, ProtobufOptions))


def can_evolve(options: FormatOptions) -> bool:
    """Return whether the decoder of the format is `Evolving`, with these options."""
    if isinstance(options, JsonOptions):
        return not options.fields and not options.lenient
    return isinstance(options, (AvroOptions, ProtobufOptions))


def join_of(options: FormatOptions) -> Join:
    """Return the function that joins the columns that several decoders of the format need (`Evolving`).

    The types that schemas need for a field are compared all at once, and not here.
    """
    return joined_needs if isinstance(options, JsonOptions) else _all


def _all(columns: Iterable[Column], _present: Iterable[Column]) -> tuple[Column, ...]:
    return tuple(columns)


def schema_columns(options: FormatOptions, registry: Registry | None, topics: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns that store the records of these topics, by their schema.

    Raises ConfigError if there is no schema, or if no column can store a field of it, and the errors of the registry.
    """
    if isinstance(options, (AvroOptions, ProtobufOptions)):
        return options.columns(registry, topics)
    raise ConfigError(f"the format {options.type} does not derive columns from schemas", where="format.type")


def uses_registry(options: FormatOptions) -> bool:
    """Return whether the records of a mapping refer to schemas in the registry."""
    return isinstance(options, (AvroOptions, ProtobufOptions)) and options.uses_registry


def examine_registry(options: FormatOptions, registry: Registry, topics: Sequence[str]) -> dict[str, str]:
    """Read the latest schemas of topics, for a format that uses the registry; return why some cannot be used, by topic.

    That is no fault: records name their schemas by ids, whatever the subject. Raises the errors of the registry, and
    ConfigError if it does not return what the format needs.
    """
    reasons = {topic: _examine(options, registry, topic) for topic in topics}
    return {topic: reason for topic, reason in reasons.items() if reason}


def _examine(options: FormatOptions, registry: Registry, topic: str) -> str:
    """Return why the latest schema of a topic cannot be used, or ''."""
    assert isinstance(options, (AvroOptions, ProtobufOptions))
    try:
        options.latest(registry, topic)
    except InvalidSchema as error:
        return str(error)
    return ""
