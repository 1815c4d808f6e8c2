"""The options of the format `avro`, and where its schemas are found.

Invariant: equal options decode equally, and contain no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ingestd.errors import ConfigError
from ingestd.formats.avro.columns import columns_of
from ingestd.formats.avro.decoder import AvroDecoder, Schemas
from ingestd.formats.avro.defaults import check_defaults
from ingestd.formats.avro.framing import ONLY_SCHEMA, Framing
from ingestd.formats.avro.schema import AvroType, read_schema
from ingestd.formats.columnar_decoder import no_columns
from ingestd.formats.record_decoder import TombstonesKey
from ingestd.formats.registry import InvalidSchema, Registry
from ingestd.formats.unmatched import UnmatchedKey
from ingestd.keys import Check, Doc, UnshownValueError
from ingestd.schema import Column


def _schema(text: str) -> str:
    return _checked(text, read_schema)


def _reader_schema(text: str) -> str:
    return _checked(text, _read_target)


def _read_target(text: str) -> AvroType:
    record = read_schema(text).record
    check_defaults(record)
    return record


def _checked(text: str, read: Callable[[str], object]) -> str:
    try:
        read(text)
    except InvalidSchema as error:
        raise UnshownValueError(f"must be the text of an Avro schema, but {error}") from None
    return text


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """A record is one Avro record. `framing` says how its schema is found: in the registry, or among `schemas`."""

    type: Annotated[Literal["avro"], Doc("Each record is one Avro record.")] = "avro"
    tombstones: TombstonesKey = "stop"
    framing: Annotated[
        Framing,
        Doc("How a record names its schema: by an id of the registry (confluent, apicurio), a fingerprint, or not."),
    ] = "confluent"
    schemas: Annotated[
        tuple[Annotated[str, Check(_schema, {})], ...],
        Doc("The schemas of records without an id of the registry, as JSON text; one if framing is none."),
    ] = ()
    reader_schema: Annotated[
        str | None,
        Check(_reader_schema, {}),
        Doc("The schema as which all records are read, as JSON text: its aliases and defaults apply."),
    ] = None
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Raise ConfigError unless the number of schemas fits the framing."""
        if self.uses_registry and self.schemas:
            raise ConfigError(
                f"has no effect with framing: {self.framing}, because the registry has the schemas of all records",
                where=".schemas",
                hint="remove it, or set framing: none or framing: single_object",
            )
        if self.framing == "none" and len(self.schemas) != 1:
            raise ConfigError(
                f"must contain exactly one schema with framing: none, not {len(self.schemas)}",
                where=".schemas",
                hint='set one schema, such as ["${FILE:/etc/ingestd/orders.avsc}"], or framing: single_object',
            )
        if self.framing == "single_object" and not self.schemas:
            raise ConfigError("is missing", where=".schemas", hint="set the schemas that producers use")
        if self.framing == "single_object":
            self._require_distinct_fingerprints()

    @property
    def uses_registry(self) -> bool:
        """Whether the schemas of the records are in the registry."""
        return self.framing in ("confluent", "apicurio")

    def decoder(self, columns: Sequence[Column], registry: Registry | None = None) -> AvroDecoder:
        """Return a decoder of records into these columns. Raises ConfigError if it needs a registry and has none."""
        target = self.reader_schema and _read_target(self.reader_schema)
        return AvroDecoder(
            columns,
            self._schemas(registry),
            self.framing,
            target=target or None,
            unmatched=self.unmatched,
            tombstones=self.tombstones,
        )

    def columns(self, registry: Registry | None, topics: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns that store the records of these topics.

        They are those of the reader schema. Without one, they are those of the schemas of the configuration, or of the
        latest schemas that the registry has for the values of the topics (subject `TOPIC-value`). Raises ConfigError if
        there is no schema, or if no column can store a field, and the errors of the registry.
        """
        try:
            if self.reader_schema is not None:
                return columns_of([_read_target(self.reader_schema)])
            if not self.uses_registry:
                return columns_of(read_schema(text).record for text in self.schemas)
            return columns_of([self.latest(Registry.required(registry), topic) for topic in topics])
        except InvalidSchema as error:
            raise no_columns(error) from None

    def latest(self, registry: Registry, topic: str) -> AvroType:
        """Return the latest schema that the registry has for the values of a topic.

        Raises InvalidSchema if there is none, or if it does not describe records, and the errors of the registry.
        """
        schema = registry.latest(f"{topic}-value", "AVRO")
        return read_schema(schema.text, [reference.text for reference in schema.references]).record

    def _require_distinct_fingerprints(self) -> None:
        """Raise ConfigError if records do not say which schema is theirs.

        A fingerprint ignores logical types, defaults, aliases and attributes such as `connect.name`.
        """
        indexes: dict[int, int] = {}
        for index, text in enumerate(self.schemas):
            first = indexes.setdefault(read_schema(text).fingerprint, index)
            if first != index:
                raise ConfigError(
                    f"has the fingerprint of schemas[{first}], so records do not say which of them is theirs",
                    where=f".schemas[{index}]",
                    hint="remove one of them",
                )

    def _schemas(self, registry: Registry | None) -> Schemas:
        if not self.uses_registry:
            return _Configured(self.schemas, self.framing)
        return _Registered(Registry.required(registry))


class _Configured:
    """The schemas of the configuration, by the id that the framing gives them; see `decoder.Schemas`."""

    def __init__(self, texts: Sequence[str], framing: Framing) -> None:
        schemas = [read_schema(text) for text in texts]
        self._types = {
            schema.fingerprint if framing == "single_object" else ONLY_SCHEMA: schema.record for schema in schemas
        }

    def find(self, identifier: int) -> AvroType:
        if identifier not in self._types:
            raise InvalidSchema(f"format.schemas has no schema with the fingerprint {identifier:016x}")
        return self._types[identifier]


class _Registered:
    """The schemas of the registry; see `decoder.Schemas`. Raises the errors of `Registry.schema`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def find(self, identifier: int) -> AvroType:
        schema = self._registry.schema(identifier, "AVRO")
        try:
            return read_schema(schema.text, [reference.text for reference in schema.references]).record
        except InvalidSchema as error:
            raise InvalidSchema(f"schema {identifier} of the registry cannot be used: {error}") from None
