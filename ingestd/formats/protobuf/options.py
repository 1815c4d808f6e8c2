"""The options of the format `protobuf`, and where its descriptors are found.

Invariant: equal options decode equally, and contain no secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ingestd.errors import ConfigError
from ingestd.formats.columnar_decoder import joined_columns, no_columns
from ingestd.formats.protobuf.columns import row_of
from ingestd.formats.protobuf.decoder import ProtobufDecoder, Types
from ingestd.formats.protobuf.framing import ONLY_TYPE, Framing, Key
from ingestd.formats.protobuf.schema import ProtoType, SchemaFile, is_descriptor, paths_in_set, read_set
from ingestd.formats.record_decoder import TombstonesKey
from ingestd.formats.registry import InvalidSchema, RegisteredSchema, Registry, SchemaMissing
from ingestd.formats.unmatched import UnmatchedKey
from ingestd.keys import Doc
from ingestd.schema import Column


@dataclass(frozen=True, slots=True)
class ProtobufOptions:
    """A record is one Protobuf message. Its type is in the registry, unless `descriptor_set` and `message` are set."""

    type: Annotated[Literal["protobuf"], Doc("Each record is one Protobuf message.")] = "protobuf"
    tombstones: TombstonesKey = "stop"
    framing: Annotated[
        Framing, Doc("How a record names its type: by an id of the registry and an index path (confluent), or not.")
    ] = "confluent"
    descriptor_set: Annotated[
        str | None,
        Doc(
            "The descriptors of all records, which protoc writes, as Base64 text; without them, the registry has them."
        ),
    ] = None
    message: Annotated[str | None, Doc("The full name of the type of all records, with descriptor_set.")] = None
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Raise ConfigError unless the message is described, which it must be if records have no header."""
        missing = [key for key in ("descriptor_set", "message") if getattr(self, key) is None]
        if missing and not self.uses_registry:
            reason = "records with framing: none do not name their type"
            if self.framing == "confluent":
                reason = "descriptor_set and message are needed together"
            raise ConfigError(
                f"is missing, but {reason}",
                where=f".{missing[0]}",
                hint="set descriptor_set and message, or framing: confluent, with which the registry has the types",
            )
        if self.descriptor_set is not None and self.message is not None:
            try:
                read_set(self.descriptor_set, self.message)
            except InvalidSchema as error:
                raise ConfigError(
                    f"does not describe the message {self.message}: {error}",
                    where=".descriptor_set",
                    hint="protoc --include_imports --descriptor_set_out=FILE writes the descriptors; encode FILE with"
                    " base64",
                ) from None

    @property
    def uses_registry(self) -> bool:
        """Whether the types of the records are in the registry."""
        return self.framing == "confluent" and self.descriptor_set is None and self.message is None

    def decoder(self, columns: Sequence[Column], registry: Registry | None = None) -> ProtobufDecoder:
        """Return a decoder of records into these columns. Raises ConfigError if it needs a registry and has none."""
        return ProtobufDecoder(
            columns, self._types(registry), self.framing, unmatched=self.unmatched, tombstones=self.tombstones
        )

    def columns(self, registry: Registry | None, topics: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns that store the records of these topics.

        They are those of the message of the configuration, or of the latest schemas that the registry has for the
        values of the topics (subject `TOPIC-value`). Raises ConfigError if there is no schema, or if no column can
        store a field, and the errors of the registry.
        """
        try:
            if self.descriptor_set is not None and self.message is not None:
                return joined_columns([row_of(read_set(self.descriptor_set, self.message))])
            required = Registry.required(registry)
            return joined_columns(row_of(self.latest(required, topic).outermost()) for topic in topics)
        except InvalidSchema as error:
            raise no_columns(error) from None

    def latest(self, registry: Registry, topic: str) -> SchemaFile:
        """Return the latest types that the registry has for the values of a topic.

        Raises InvalidSchema if there are none, ConfigError if the registry does not return their descriptors, and the
        errors of the registry.
        """
        subject = f"{topic}-value"
        return _schema_file(registry.latest(subject, "PROTOBUF"), f"the subject {subject}")

    def _types(self, registry: Registry | None) -> Types:
        if self.descriptor_set is not None and self.message is not None:
            kind = read_set(self.descriptor_set, self.message)
            has_path = self.framing == "confluent"
            return _Configured(kind, paths_in_set(self.descriptor_set, self.message) if has_path else (ONLY_TYPE[1],))
        return _Registered(Registry.required(registry))


class _Configured:
    """The type of all records, and the index paths with which they may name it; see `decoder.Types`."""

    by_id = False

    def __init__(self, kind: ProtoType, paths: Sequence[tuple[int, ...]]) -> None:
        self._kind, self._paths = kind, paths

    def find(self, key: Key) -> ProtoType:
        if key[1] not in self._paths:
            given, wanted = (", ".join(map(str, path)) for path in (key[1], self._paths[0]))
            raise InvalidSchema(
                f"the record has a message of the index path {given}, but that of {self._kind.name} is {wanted}"
            )
        return self._kind


class _Registered:
    """The types of the registry; see `decoder.Types`. Raises the errors of `Registry.schema`."""

    by_id = True

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # A damaged record can have any index path, so the cost of one must not be that of its schema.
        self._files: dict[int, SchemaFile | str] = {}

    def find(self, key: Key) -> ProtoType:
        identifier, path = key
        if identifier not in self._files:
            try:
                self._files[identifier] = self._file(identifier)
            except SchemaMissing:  # which the registry remembers
                raise
            except InvalidSchema as error:
                self._files[identifier] = str(error)
        file = self._files[identifier]
        if isinstance(file, str):
            raise InvalidSchema(file)
        try:
            return file.find(path)
        except InvalidSchema as error:
            raise InvalidSchema(f"schema {identifier} of the registry cannot be used: {error}") from None

    def _file(self, identifier: int) -> SchemaFile:
        return _schema_file(self._registry.schema(identifier, "PROTOBUF"), f"schema {identifier}")


def _schema_file(schema: RegisteredSchema, what: str) -> SchemaFile:
    """Return the types in a schema of the registry; `what` is what it describes. Raises ConfigError."""
    texts = [schema.text, *(reference.text for reference in schema.references)]
    if not all(map(is_descriptor, texts)):
        raise ConfigError(
            f"the registry does not return the descriptors of {what}, but the text of its source",
            where="registry.url",
            hint="set format.descriptor_set and format.message, or use a registry whose API has the parameter"
            " format=serialized",
        )
    return SchemaFile(schema.text, [(reference.name, reference.text) for reference in schema.references])
