"""Compares a sample of a topic's records with the columns of a table, and proposes a format and columns for it.

Invariant: nothing is stored, and no position is committed.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.routing import Shape
from ingestd.errors import ConfigError, encodable
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.decoder import ConstraintDecoder, decode_in_parts, without_tombstones
from ingestd.formats.json.envelope import envelope_of
from ingestd.formats.json.header import texts_of
from ingestd.formats.json.layout import PLAIN
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, decoder_of, schema_columns
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.registry import InvalidSchema, Registry
from ingestd.ingest.inspection.excerpt import ANSWER_SECONDS, ExcerptLimits, read_excerpt
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange
from ingestd.schema import Column, HiveType, is_virtual

_HEADER, _LONG_HEADER = 5, 9  # bytes of the header of a schema registry, with an id of 4 or 8 bytes
_LONG_IDS = (
    "The ids of schemas have 8 bytes, as those of Apicurio before version 3; make sure that they are content ids"
    " (docs/formats.md)."
)
_RECORDS = 200
_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,127}")
_STRING, _BINARY = HiveType("string"), HiveType("binary")
# The types that are tried for fields whose values are texts.
_TEXTS = HiveType("date"), HiveType("timestamp")
# A sample has a format if at least this share of its records has it; the others are misfits. Text has commas by chance,
# so that for formats which are less certain the share is larger.
_SHARE, _LARGE_SHARE = 0.5, 0.8
_DELIMITERS = "\x01\t;|,"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,15})?")
_CONFLUENT, _SINGLE_OBJECT = b"\x00", b"\xc3\x01"
# A decoder needs a column. This is not the name of a column, so a field with it is not proposed.
_NO_FIELD = Column("no field", _STRING)
_UNWRAPS = "format.envelope unwraps their rows."
_ENVELOPES = {
    "connect": f"The records are in the envelope of Kafka Connect (schema, payload); {_UNWRAPS}",
    "debezium": f"The records are changes of Debezium; {_UNWRAPS}",
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A format for the records of a sample, as the key `format` of a mapping; it is empty for plain JSON objects.

    `format` is None if the user has to decide. `columns` are those of a table that can store the records, none if they
    are unknown or the table exists. `note` is a sentence about the records, or ''.
    """

    format: Mapping[str, object] | None
    columns: tuple[Column, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """How the fields of a sample fit columns. All names are sorted, and those of columns are in lower case.

    `stored` are the columns with a field, `empty` those without. `ignored` are the fields without a column.
    `misfits` is the number of rejects, and `reason` is that of the first.
    """

    records: int
    stored: tuple[str, ...]
    empty: tuple[str, ...]
    ignored: tuple[str, ...]
    misfits: int
    reason: str


def read_sample(settings: Mapping[str, Any], topic: str) -> tuple[list[bytes | None], str]:
    """Return the values of the last records of the partitions, at most 200 in all. A tombstone is None.

    Also returns a sentence about those of them that cannot be read, '' if there are none. `settings` are librdkafka
    properties. Raises InvalidTopic, LoginFailed and BrokerUnavailable.
    """
    broker = Broker(settings, timeout_seconds=ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions([topic])
    first, ends = broker.earliest(partitions), broker.ends(partitions)
    ranges = [OffsetRange(*p, first[p], ends[p]) for p in partitions if ends[p] > first[p]]
    excerpt = read_excerpt(settings, ranges, ExcerptLimits(_RECORDS), "last", on_unreadable="reject")
    values = [value for batch in excerpt.batches for value in batch.values]
    if not excerpt.unreadable:
        return values, ""
    bad = excerpt.unreadable[0]
    number = excerpt.records - len(values)
    return values, (
        f"Of the last {excerpt.records} records, {number} cannot be read, and the mapping stops before them unless"
        f" on_unreadable: reject is set. In {bad.partition}, {bad.reason}: {bad.hint}."
    )


def match(
    sample: Sequence[bytes | None], shape: Shape, options: FormatOptions, registry: Registry | None = None
) -> Match:
    """Compare a sample with all columns of a table, including its partition columns.

    Raises ConfigError if the format does not fit the columns, and the errors of the registry.
    """
    columns = (*shape.columns, *shape.partition_columns)
    decoder = ConstraintDecoder(decoder_of(options, columns, registry), partial(unfit_rows, shape=shape))
    rejects = [reject for _, _, part in decode_in_parts(decoder.decode, sample) for reject in part.rejects]
    seen = _with_all_rows(options) if isinstance(options, JsonOptions) else options
    fields = decoder_of(seen, columns, registry)
    values = without_tombstones(sample)
    names = {column.name for column in columns}
    absent = fields.absent_columns(values) if values else names
    return Match(
        records=len(sample),
        stored=tuple(sorted(names - absent)),
        empty=tuple(sorted(absent)),
        ignored=tuple(sorted(map(encodable, fields.unstored_fields(values, ())))),
        misfits=len(rejects),
        reason=f"{rejects[0].column or 'the record'}: {rejects[0].reason}" if rejects else "",
    )


def propose(
    sample: Sequence[bytes | None], table: Sequence[Column] | None, registry: Registry | None, topic: str
) -> Proposal:
    """Return the format that most records of a sample have. `table` are the columns of the table, None without one.

    Fields with the name of a virtual column of Hive are not among its columns. Raises the errors of the registry.
    """
    proposal = _propose(sample, table, registry, topic)
    hidden = [column.name for column in proposal.columns if is_virtual(column.name)]
    if not hidden:
        return proposal
    visible = tuple(column for column in proposal.columns if column.name not in hidden)
    what = f"Hive has virtual columns with the names of the fields {', '.join(hidden)}, so the table has no columns for"
    return replace(proposal, columns=visible, note=f"{proposal.note} {what} them.".lstrip())


def _propose(
    sample: Sequence[bytes | None], table: Sequence[Column] | None, registry: Registry | None, topic: str
) -> Proposal:
    values = without_tombstones(sample)
    if not values:
        return Proposal({})
    for documents, framing in ((values, {}), (texts_of(values)[0], {"framing": "confluent"})):
        if (keys := _json_format(documents, table)) is not None:
            return _json(values, {**framing, **keys}, table)
    if _most(len(value) > _HEADER and value.startswith(_CONFLUENT) for value in values):
        return _registered(values, table, registry, topic)
    if _most(value.startswith(_SINGLE_OBJECT) for value in values):
        what = "The records are Avro in single-object encoding"
        return Proposal(None, note=f"{what}: set format.type: avro, framing: single_object, and format.schemas.")
    texts = [text for value in values if (text := _text(value)) is not None]
    if len(texts) < _LARGE_SHARE * len(values):
        return _whole("binary", Column("value", _BINARY), table)
    return _delimited(texts, table) or _whole("text", Column("line", _STRING), table)


def _json(values: Sequence[bytes], keys: Mapping[str, str], table: Sequence[Column] | None) -> Proposal:
    """Return the format of JSON records with these options."""
    columns = _columns(values, JsonOptions(**keys)) if table is None else ()  # type: ignore[arg-type]  # its keys
    return Proposal({"type": "json", **keys} if keys else {}, columns, _ENVELOPES.get(keys.get("envelope", ""), ""))


def _json_format(values: Sequence[bytes], table: Sequence[Column] | None) -> dict[str, str] | None:
    """Return the options of JSON records that differ from the defaults, None if most records are not JSON.

    Records are in no envelope if one of them has a field of the table (`Layout.own_members`).
    """
    parsed = [_parsed(value) for value in values]
    records = [record for record in parsed if isinstance(record, dict)]
    if _most(isinstance(record, dict) for record in parsed):
        own = PLAIN.own_members(table or ())
        if any(name.lower() in own for record in records for name in record):
            return {}
        [(envelope, count)] = Counter(map(envelope_of, records)).most_common(1)
        return {"envelope": envelope} if envelope != "none" and 2 * count > len(records) else {}
    if _most(isinstance(record, list) and all(isinstance(item, dict) for item in record) for record in parsed):
        return {"records": "array"}
    if _most(all(isinstance(_parsed(line), dict) for line in value.splitlines() or [b""]) for value in values):
        return {"records": "lines"}
    return None


def _registered(
    values: Sequence[bytes], table: Sequence[Column] | None, registry: Registry | None, topic: str
) -> Proposal:
    """Return the format of records with the header of the schema registry."""
    if registry is None:
        what = "The records have the header of a schema registry. Name it with --set registry.url=URL"
        return Proposal(None, note=f"{what}, so that the format can be found.")
    identifier = _id_in(values, _HEADER)
    if not identifier and (long_identifier := _id_in(values, _LONG_HEADER)):  # registries count from 1
        identifier = long_identifier
        candidates: tuple[AvroOptions | ProtobufOptions, ...] = (AvroOptions(framing="apicurio"),)
    else:
        candidates = AvroOptions(), ProtobufOptions()
    for options in candidates:
        keys = {"type": options.type} | ({} if options.framing == "confluent" else {"framing": options.framing})
        note = "" if options.framing == "confluent" else _LONG_IDS
        try:
            registry.schema(identifier, "AVRO" if options.type == "avro" else "PROTOBUF")
            columns = () if table is not None else schema_columns(options, registry, [topic])
        except InvalidSchema:
            continue
        except ConfigError as error:
            why = f"The columns of a table are not proposed: {error.what}."
            return Proposal(keys, note=f"{note} {why}".lstrip())
        return Proposal(keys, columns, note)
    types = " or ".join(options.type.capitalize() for options in candidates)
    what = f"The records have the header of a schema registry, which has no {types} schema {identifier}."
    return Proposal(None, note=what)


def _id_in(values: Sequence[bytes], header: int) -> int:
    """Return the most frequent id in headers of this many bytes, the first of which is no part of it."""
    return Counter(int.from_bytes(value[1:header], "big") for value in values).most_common(1)[0][0]


def _delimited(texts: Sequence[str], table: Sequence[Column] | None) -> Proposal | None:
    """Return the format of texts most of which have the same number of fields, more than one; None for other texts."""
    for delimiter in _DELIMITERS:
        parts = [_split(text, delimiter) for text in texts]
        width = Counter(map(len, parts)).most_common(1)[0][0]
        if width > 1 and _most((len(part) == width for part in parts), _LARGE_SHARE):
            break
    else:
        return None
    rows = [part for part in parts if len(part) == width]
    if table is not None and len(table) != width:
        note = f"The records have {width} fields between {delimiter!r}, but the table has {len(table)} columns"
        return Proposal(None, note=f"{note}: set format.type: csv, field_delimiter, and format.fields.")
    names = [f"c{number}" for number in range(1, width + 1)] if table is None else [column.name for column in table]
    code = str(ord(delimiter)) if delimiter < " " else delimiter
    kind = "delimited" if delimiter == "\x01" else "csv"
    keys = {"type": kind, "field_delimiter": code, "fields": names}
    if table is not None:
        return Proposal(keys)
    objects = [json.dumps(dict(zip(names, map(_scalar, row), strict=True))).encode() for row in rows]
    note = "The columns have invented names, in the order of the fields."
    return Proposal(keys, _columns(objects, JsonOptions()), note)


def _whole(kind: str, column: Column, table: Sequence[Column] | None) -> Proposal:
    """Return the format of values that are stored as a whole."""
    if table is None:
        return Proposal({"type": kind}, (column,))
    fitting = [existing.name for existing in table if existing.type.kind == column.type.kind]
    if len(fitting) == 1:
        return Proposal({"type": kind, "column": fitting[0]})
    what = f"The records are {'text' if kind == 'text' else 'bytes'} without a known structure"
    return Proposal(None, note=f"{what}: set format.type: {kind} and format.column, or another format.")


def _columns(values: Sequence[bytes], options: JsonOptions) -> tuple[Column, ...]:
    """Return a column for each field of the rows whose name can be that of a column, in the order of the fields.

    The type is that of a new column in schema evolution, or, for texts, a date or timestamp that stores every value.
    """
    options = _with_all_rows(options)
    decoder = options.decoder([_NO_FIELD])
    fields = decoder.unstored_fields(values, ())
    names = list(filter(_COLUMN.fullmatch, fields))
    if not names:
        return ()
    others = {_NO_FIELD.name, *fields} - {*names}
    types = {column.name: column.type.known for column in decoder.needed_columns(values, others)}

    def rejects(column: Column) -> int:
        return sum(len(part.rejects) for _, _, part in decode_in_parts(options.decoder([column]).decode, values))

    def column_of(name: str) -> Column:
        column = Column(name, types.get(name, _STRING))
        narrower = [Column(name, kind) for kind in _TEXTS if types.get(name) == _STRING]
        damaged = rejects(column) if narrower else 0
        return next((narrow for narrow in narrower if rejects(narrow) == damaged), column)

    return tuple(map(column_of, names))


def _with_all_rows(options: JsonOptions) -> JsonOptions:
    """Return options that make rows of all objects, so that all fields are seen.

    Those of a mapping may reject updates, deletes and objects none of whose fields is a column.
    """
    changes = {"updates": "row", "deletes": "row"} if options.envelope == "debezium" else {}
    return replace(options, unmatched="null", **changes)  # type: ignore[arg-type]  # literals


def _parsed(text: bytes) -> object:
    """Return the value of JSON, None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _split(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _scalar(text: str) -> object:
    """Return the number or the truth value that a text contains, None if it is empty, else the text itself."""
    if _NUMBER.fullmatch(text) or text in ("true", "false"):
        return json.loads(text)
    return text or None


def _most(conditions: Iterable[bool], share: float = _SHARE) -> bool:
    answers = list(conditions)
    return sum(answers) >= share * len(answers)
