"""The options of the format `json`.

Invariant: equal options decode equally, and contain no secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ingestd.errors import ConfigError
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.envelope import DELETE, INSERTS, UPDATE, Envelope
from ingestd.formats.json.header import Framing
from ingestd.formats.json.layout import Layout, parse_path
from ingestd.formats.json.several import SeveralDecoder
from ingestd.formats.json.timestamp_formats import DEFAULT_FORMATS, parse_format
from ingestd.formats.record_decoder import TombstonesKey
from ingestd.formats.unmatched import UnmatchedKey
from ingestd.keys import NOT_EMPTY, Check, Doc
from ingestd.schema import Column

Changes = Literal["row", "reject"]


def _format(text: str) -> str:
    parse_format(text)
    return text


def _one_epoch(formats: tuple[str, ...]) -> tuple[str, ...]:
    if len([name for name in formats if name.startswith("epoch")]) > 1:
        raise ValueError("must have only one of epoch_s, epoch_ms and epoch_us, because a number can mean only one")
    return formats


def _path(text: str) -> str:
    parse_path(text)
    return text


def _distinct(paths: Mapping[str, str]) -> Mapping[str, str]:
    if len({name.lower() for name in paths}) < len(paths):
        raise ValueError("must name each column once")
    return paths


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """The fields of JSON objects are columns."""

    type: Annotated[Literal["json"], Doc("Each record is JSON.")] = "json"
    tombstones: TombstonesKey = "stop"
    fields: Annotated[
        Mapping[str, Annotated[str, Check(_path, {"pattern": "^\\$"})]],
        Check(_distinct, {}),
        Doc("The path of a column in the record, such as $.user.id; by default the field with the column's name."),
    ] = field(default_factory=dict)
    envelope: Annotated[Envelope, Doc("The envelope of each record: that of Debezium or of Kafka Connect.")] = "none"
    updates: Annotated[
        Changes, Doc("Whether the state of a row after an update is a row, or the update a reject; for debezium.")
    ] = "reject"
    deletes: Annotated[
        Changes, Doc("Whether the state of a row before its delete is a row, or the delete a reject; for debezium.")
    ] = "reject"
    framing: Annotated[
        Framing,
        Doc("What precedes the JSON text: nothing, or the header of a schema registry (confluent), which is ignored."),
    ] = "none"
    records: Annotated[
        Literal["object", "array", "lines"],
        Doc("What a record contains: one object, an array of objects, or one object per line. Each object is a row."),
    ] = "object"
    timestamp_formats: Annotated[
        tuple[Annotated[str, Check(_format, {})], ...],
        NOT_EMPTY,
        Check(_one_epoch, {}),
        Doc("The notations of timestamps: iso, epoch_s, epoch_ms, epoch_us, or patterns such as dd/MM/yyyy HH:mm:ss."),
    ] = DEFAULT_FORMATS
    lenient: Annotated[
        bool, Doc("Whether values are converted as Hive's JsonSerDe converts them, which changes many and rejects few.")
    ] = False
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Raise ConfigError for `updates` and `deletes` without the envelope that has them."""
        for key, value in (("updates", self.updates), ("deletes", self.deletes)):
            if value != "reject" and self.envelope != "debezium":
                raise ConfigError(
                    f"has no effect with envelope: {self.envelope}, whose records do not name an operation",
                    where=f".{key}",
                    hint="remove it, or set envelope: debezium",
                )

    def decoder(self, columns: Sequence[Column]) -> JsonDecoder:
        """Return a decoder of records into these columns.

        Raises ConfigError if `fields` names another column, and for `timestamp_formats` with `lenient`.
        """
        if self.lenient and self.timestamp_formats != DEFAULT_FORMATS:
            raise ConfigError(
                "lenient records have the timestamps of Hive's JsonSerDe, not those of timestamp_formats",
                where="format.timestamp_formats",
                hint="remove timestamp_formats, or lenient",
            )
        paths = {name.lower(): parse_path(path) for name, path in self.fields.items()}
        names = [column.name for column in columns]
        unknown = [name for name in paths if name not in names]
        if unknown:
            raise ConfigError(
                f"{unknown[0]} is not a column of the records: {', '.join(names)}",
                where="format.fields",
                hint="name columns of the table, but no partition columns with another source (partition)",
            )
        changes = ((UPDATE, self.updates), (DELETE, self.deletes))
        operations = (*INSERTS, *(name for name, value in changes if value == "row"))
        layout = Layout(
            paths, self.envelope, self.timestamp_formats, self.lenient, operations, self.unmatched == "reject"
        )
        if self.records == "object":
            return JsonDecoder(columns, layout, framing=self.framing, tombstones=self.tombstones)
        return SeveralDecoder(columns, self.records, layout, framing=self.framing, tombstones=self.tombstones)
