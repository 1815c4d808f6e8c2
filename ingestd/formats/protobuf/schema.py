"""Protobuf descriptors, read into values that the decoder compiles.

Invariant: a `ProtoType` is valid by the rules of Protobuf. Names, imports and the features of editions are resolved.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ingestd.formats.protobuf.known_files import KNOWN_FILES
from ingestd.formats.registry import InvalidSchema

# The name of each type of a field, as in a .proto file.
_KINDS = {
    getattr(FieldDescriptor, f"TYPE_{kind.upper()}"): kind
    for kind in (
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
        *("sfixed32", "sfixed64", "bool", "string", "bytes", "enum", "message", "group"),
    )
}
_MAIN = "the schema"  # the name of a file that has none
_UNREGISTERED = (
    "to which the schema does not refer: register the schema with them as references,"
    " or set format.descriptor_set and format.message"
)

Scalar = bool | int | float | bytes


@dataclass(eq=False, slots=True)
class ProtoType:
    """The type of a message: its full name and its fields."""

    name: str
    is_map_entry: bool
    fields: tuple[ProtoField, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class ProtoEnum:
    """An enum: its full name, and its names by number. A closed one has no other numbers."""

    name: str
    names: Mapping[int, str]
    is_closed: bool


@dataclass(frozen=True, eq=False, slots=True)
class ProtoField:
    """A field of a message.

    `default` is its value if the message does not contain it, None for messages; `nullable` says that it is NULL
    instead, because the field has presence and no default of its own. `oneof` is '' outside a oneof.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool
    nullable: bool
    default: Scalar | None
    oneof: str
    message: ProtoType | None = None
    enum: ProtoEnum | None = None

    def __str__(self) -> str:
        named = self.message or self.enum
        kind = named.name if named else self.kind
        if self.message and self.message.is_map_entry:
            key, value = self.message.fields
            return f"map<{key}, {value}>"
        return f"repeated {kind}" if self.is_repeated else kind


@contextmanager
def _utf8_required() -> Iterator[None]:
    """Raise InvalidSchema for names that are not UTF-8: the library decodes them when they are used."""
    try:
        yield
    except UnicodeDecodeError:
        raise InvalidSchema("its descriptors contain a name that is not UTF-8") from None


@_utf8_required()
def read_set(text: str, name: str) -> ProtoType:
    """Return the type of a name from the Base64 text of a FileDescriptorSet. Raises InvalidSchema."""
    return _named(_pool_of_set(text), name)


def paths_in_set(text: str, name: str) -> tuple[tuple[int, ...], ...]:
    """Return the index paths of a message, which `read_set` has found: see `SchemaFile.find`.

    The first is its path. With `normalize.schemas=true`, Confluent's Java serializer does not count the types of the
    entries of maps, which are inside of messages: this is the second path, unless it is that of another message.
    """
    message: Descriptor = _pool_of_set(text).FindMessageTypeByName(name)
    path, normalized = _path(message, is_normalized=False), _path(message, is_normalized=True)
    found: Descriptor | None = None
    places: Sequence[Descriptor] = list(message.file.message_types_by_name.values())
    for index in normalized:
        found = places[index] if index < len(places) else None
        places = list(found.nested_types) if found else ()
    is_of_another = found is not None and not found.GetOptions().map_entry
    return (path,) if is_of_another else (path, normalized)


def _path(message: Descriptor, *, is_normalized: bool) -> tuple[int, ...]:
    outer = message.containing_type
    if outer is None:
        return (list(message.file.message_types_by_name).index(message.name),)
    names = [inner.name for inner in outer.nested_types if not (is_normalized and inner.GetOptions().map_entry)]
    return *_path(outer, is_normalized=is_normalized), names.index(message.name)


def _pool_of_set(text: str) -> DescriptorPool:
    try:
        descriptors = FileDescriptorSet.FromString(_decoded(text))
    except DecodeError:
        raise InvalidSchema("it is not a set of descriptors") from None
    return _pool(descriptors.file, "which the set does not contain")


class SchemaFile:
    """The Base64 text of a FileDescriptorProto and, by their names, those of the files that it imports.

    Raises InvalidSchema. The descriptors are read once, however many types are found.
    """

    @_utf8_required()
    def __init__(self, text: str, references: Sequence[tuple[str, str]]) -> None:
        self._files = []
        for name, reference in references:
            self._files.append(_file(reference))
            self._files[-1].name = name
        self._main = _file(text)
        if not self._main.name or self._main.name in {name for name, _ in references}:
            self._main.name = _MAIN
        self._files.append(self._main)
        self._pool: DescriptorPool | None = None

    @_utf8_required()
    def find(self, path: Sequence[int]) -> ProtoType:
        """Return the type of a path: the index of a message among those of the file, then among those in it, and so on.

        Raises InvalidSchema.
        """
        messages: Sequence[DescriptorProto] = self._main.message_type
        names = [self._main.package] if self._main.package else []
        for index in path:
            if not 0 <= index < len(messages):
                raise InvalidSchema(f"it has no message of the index path {', '.join(map(str, path))}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        if self._pool is None:
            self._pool = _pool(self._files, _UNREGISTERED)
        return _named(self._pool, ".".join(names))

    @_utf8_required()
    def outermost(self) -> ProtoType:
        """Return the only type with fields that is not contained in others of the file. Raises InvalidSchema."""
        types = [self.find((index,)) for index in range(len(self._main.message_type))]
        with_fields = [kind for kind in types if kind.fields]
        inner = {name for kind in with_fields for name in _parts(kind) - {kind.name}}
        outer = [kind for kind in with_fields if kind.name not in inner]
        if len(outer) != 1:
            names = ", ".join(kind.name for kind in outer or with_fields) or "none has a field"
            raise InvalidSchema(f"it does not say which of its messages records are: {names}")
        return outer[0]


def _parts(kind: ProtoType) -> set[str]:
    """Return the names of all messages that a message can contain."""
    names: set[str] = set()
    waiting = [kind]
    while waiting:
        messages = [field.message for field in waiting.pop().fields if field.message]
        waiting += [message for message in messages if message.name not in names]
        names |= {message.name for message in messages}
    return names


def is_descriptor(text: str) -> bool:
    """Return whether a text is a file's descriptor in Base64, and not the source of a .proto file."""
    try:
        _file(text)
    except InvalidSchema:
        return False
    return True


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSchema("it is not Base64") from None


def _file(text: str) -> FileDescriptorProto:
    try:
        return FileDescriptorProto.FromString(_decoded(text))
    except DecodeError:
        raise InvalidSchema("it is not the descriptor of a file") from None


def _pool(files: Iterable[FileDescriptorProto], missing: str) -> DescriptorPool:
    """Return a pool of these files and of the known files that they import.

    An imported file that is neither of them is empty: many files only define options, which have no effect on the data.
    `missing` says of such files where they are missing, if their types are needed.
    """
    pool = DescriptorPool()
    by_name = {file.name: file for file in files}
    added: set[str] = set()
    unknown: list[str] = []

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = by_name.get(name) or KNOWN_FILES.get(name)
        if file is None:
            unknown.append(name)
            file = FileDescriptorProto(name=name)
        for imported in file.dependency:
            add(imported)
        pool.Add(file)

    try:
        for name in by_name:
            add(name)
    except TypeError as error:
        imports = f"; it imports {', '.join(unknown)}, {missing}" if unknown else ""
        raise InvalidSchema(f"its descriptors are not valid: {error}{imports}") from None
    except RecursionError:
        raise InvalidSchema("its imports nest too deeply") from None
    return pool


def _named(pool: DescriptorPool, name: str) -> ProtoType:
    try:
        return _type(pool.FindMessageTypeByName(name), {})
    except KeyError:
        raise InvalidSchema(f"it has no message {name}") from None
    except RecursionError:
        raise InvalidSchema("its types nest too deeply") from None


def _type(descriptor: Descriptor, known: dict[str, ProtoType]) -> ProtoType:
    """Return the type of a message. `known` contains the types of messages that contain each other."""
    if descriptor.full_name not in known:
        kind = known[descriptor.full_name] = ProtoType(descriptor.full_name, descriptor.GetOptions().map_entry)
        kind.fields = tuple(_field(field, known) for field in descriptor.fields)
    return known[descriptor.full_name]


def _field(descriptor: FieldDescriptor, known: dict[str, ProtoType]) -> ProtoField:
    kind = _KINDS[descriptor.type]
    default = None if descriptor.is_repeated or descriptor.message_type else descriptor.default_value
    oneof = descriptor.containing_oneof
    return ProtoField(
        descriptor.name,
        descriptor.number,
        kind,
        is_repeated=descriptor.is_repeated,
        nullable=descriptor.has_presence and not (default is not None and descriptor.has_default_value),
        default=default.encode() if isinstance(default, str) else default,
        oneof=oneof.name if oneof and len(oneof.fields) > 1 else "",
        message=_type(descriptor.message_type, known) if descriptor.message_type else None,
        enum=_enum(descriptor.enum_type) if descriptor.enum_type else None,
    )


def _enum(descriptor: EnumDescriptor) -> ProtoEnum:
    names: dict[int, str] = {}
    for value in descriptor.values:
        names.setdefault(value.number, value.name)  # the first of several names of a number
    return ProtoEnum(descriptor.full_name, names, descriptor.is_closed)
