"""Protobuf records that name their type in the schema registry, as Confluent's serializer writes them."""

from __future__ import annotations

import base64
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from ingestd.errors import ConfigError, RegistryUnavailable
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.registry import Patience, Registry, RegistryOptions
from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.patience import LIMIT
from tests.support.protobuf import Field, class_of, file_of, message, set_of
from tests.support.registry import SOURCE, RegistryServer, registry_server, serialize

COLUMNS = columns_of(id="bigint", name="string")
WRONG_HEADER = "record does not begin with the header of the framing confluent"
ITEM = message("Item", [Field("id", 2, "int64"), Field("name", 5, "string", "optional")])
# The index paths of the messages: Row is 0, Outer is 1 and Outer.Item is 1, 0.
FILE = file_of(message("Row", [Field("id", 1, "int32")]), message("Outer", [], ITEM))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as made:
        yield made


def registry_of(server: RegistryServer) -> Registry:
    return Registry(RegistryOptions(server.url, lag=0.0), Patience(missing_seconds=LIMIT, failure_seconds=0.0))


def text_of(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def register(server: RegistryServer, file: FileDescriptorProto, subject: str = "t-value", **more: Any) -> int:
    return server.register(subject, {"schema": text_of(file), "schemaType": "PROTOBUF", **more})


def framed(identifier: int, path: bytes, data: bytes) -> bytes:
    return struct.pack(">BI", 0, identifier) + path + data


def test_columns_when_one_message_contains_the_others_then_they_are_its_fields(server: RegistryServer) -> None:
    row = message("Row", [Field("ITEM", 1, ".shop.Outer.Item"), Field("n", 2, "uint64", key="uint64")])
    well_known = [Field("at", 1, ".google.protobuf.Timestamp"), Field("text", 3, ".google.protobuf.Duration")]
    doubled = [
        message(f"M{n}", [Field(name, i, f".shop.M{n + 1}") for i, name in ((1, "a"), (2, "b"))]) for n in range(40)
    ]
    for topic, file in (
        ("a", file_of(message("Outer", [], ITEM), row)),
        ("b", file_of(message("Row", [Field("n", 2, "string", "repeated"), *well_known]))),
        ("several", file_of(message("Row", [Field("id", 1, "int32")]), ITEM)),
        ("tree", file_of(message("Tree", [Field("next", 1, ".shop.Tree")]))),
        ("empty", file_of(message("Row", []))),
        ("case", file_of(message("Row", [Field("a", 1, "int32"), Field("A", 2, "int32")]))),
        ("large", file_of(*doubled, message("M40", [Field("a", 1, "int32")]))),
    ):
        register(server, file, f"{topic}-value")

    def found(*topics: str) -> str:
        columns = ProtobufOptions().columns(registry_of(server), topics)
        return ", ".join(f"{column.name} {column.type}" for column in columns)

    assert found("a") == "item struct<id:bigint,name:string>, n map<bigint,decimal(20,0)>"
    assert found("b") == "n array<string>, at timestamp, text string"
    for topics, reason in (
        (("several",), "it does not say which of its messages records are: shop.Row, shop.Item"),
        (("tree",), "next: a message that contains itself has no column type"),
        (("empty",), "which of its messages records are: none has a field"),
        (("case",), "A: the name of another field differs only in case"),
        (("large",), "its fields, with those inside of them, are more than 10,000"),
        (("none",), "the registry has no subject none-value"),
        (("a", "b"), r"field n of several schemas: map<bigint,decimal\(20,0\)> and array<string> have no common type"),
    ):
        with pytest.raises(ConfigError, match=reason):
            found(*topics)


@pytest.mark.parametrize("count", [1, 100])
def test_decode_when_paths_and_schemas_are_interleaved_then_each_record_has_its_type(
    server: RegistryServer, count: int
) -> None:
    identifier = register(server, FILE)
    other = register(server, file_of(message("Row", [Field("name", 1, "string"), Field("id", 9, "sint64")])))
    row = class_of(FILE)(id=7).SerializeToString()
    item = class_of(FILE, "Outer.Item")(id=8, name="x").SerializeToString()
    records = [
        framed(identifier, b"\x00", row),
        framed(identifier, b"\x02\x00", row),
        framed(identifier, b"\x04\x02\x00", item),
        framed(other, b"\x00", b"\x48\x03"),
        framed(identifier, b"\x02\x06", row),
        framed(77, b"\x00", row),
        framed(2**31, b"\x00", row),
        framed(identifier, b"\x04\x02", b""),
        framed(identifier, b"\x01", row),
        framed(identifier, b"", b""),
        b"\x01\x00\x00\x00\x01\x00" + row,
        b"",
    ]
    decoder = ProtobufOptions().decoder(COLUMNS, registry_of(server))

    decoded = decoder.decode(records * count)

    rows = [{"id": 7, "name": None}, {"id": 7, "name": None}, {"id": 8, "name": "x"}, {"id": -2, "name": ""}]
    assert rows_of(decoded) == rows * count
    wanted = [
        (4, "", f"schema {identifier} of the registry cannot be used: it has no message of the index path 3"),
        (5, "", "the registry has no schema 77"),
        (6, "", "the registry has no schema 2147483648"),
        *((row, "", WRONG_HEADER) for row in range(7, 12)),
    ]
    assert reasons(decoded) == [(row + len(records) * n, *more) for n in range(count) for row, *more in wanted]
    assert set(server.gets) == {f"/schemas/ids/{n}?format=serialized" for n in (identifier, other, 77)}


@pytest.mark.parametrize(
    ("unit_subject", "deleted"), [("unit", ()), ("unit", ("unit", "item", "t-value")), (":.lab:unit", ())]
)
def test_decode_when_schema_imports_others_then_they_are_read_by_their_names(
    server: RegistryServer, unit_subject: str, deleted: tuple[str, ...]
) -> None:
    unit = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    unit.enum_type.add(name="Unit").value.add(name="PIECE", number=0)
    register(server, unit, unit_subject)
    item = FileDescriptorProto(name="", package="shop", syntax="proto3", dependency=["shop/unit.proto"])
    item.message_type.append(message("Price", [Field("unit", 1, ".shop.Unit", is_enum=True), Field("n", 2, "int32")]))
    register(server, item, "item", references=[{"name": "shop/unit.proto", "subject": unit_subject, "version": 1}])
    main = FileDescriptorProto(name="default", package="shop", syntax="proto3", dependency=["shop/item.proto"])
    main.message_type.append(message("Row", [Field("price", 1, ".shop.Price")]))
    references = [{"name": "shop/item.proto", "subject": "item", "version": 1}]
    record = framed(register(server, main, references=references), b"\x00", bytes([10, 2, 16, 5]))
    server.deleted.update(deleted)

    decoder = ProtobufOptions().decoder(columns_of(price="struct<unit:string,n:int>"), registry_of(server))

    assert rows_of(decoder.decode([record])) == [{"price": {"unit": "PIECE", "n": 5}}]


def test_decode_when_each_record_has_another_index_path_then_schemas_are_requested_and_read_once(
    server: RegistryServer,
) -> None:
    count = 3000
    large = message("Large", [Field(f"f{number}", number, "int32") for number in range(1, 5000)])
    identifier = register(server, file_of(message("Row", [Field("id", 1, "int32")]), large))
    zigzag = range(2000, 2000 + 2 * count, 2)
    paths = [b"\x02" + struct.pack("BB", 0x80 | number & 0x7F, number >> 7) for number in zigzag]
    records = [framed(number, path, b"") for path in paths for number in (identifier, 99)]

    decoded = ProtobufOptions().decoder(COLUMNS, registry_of(server)).decode(records)

    assert len(decoded.rejects) == 2 * count
    assert server.gets == [f"/schemas/ids/{number}?format=serialized" for number in (identifier, 99)]
    assert {reject.reason for reject in decoded.rejects[1::2]} == {"the registry has no schema 99"}


def test_decode_when_a_schema_to_which_another_refers_is_missing_then_reason_names_it(server: RegistryServer) -> None:
    identifier = register(server, FILE, references=[{"name": "x.proto", "subject": "x", "version": 3}])
    decoded = ProtobufOptions().decoder(COLUMNS, registry_of(server)).decode([framed(identifier, b"\x00", b"")])
    assert reasons(decoded) == [(0, "", "the registry has no version 3 of the subject x, to which a schema refers")]


def test_decode_when_schema_is_of_another_type_or_damaged_then_record_is_rejected(server: RegistryServer) -> None:
    server.register("t-value", {"schema": "{}", "schemaType": "JSON"})
    register(server, file_of(message("Row", [Field("a", 1, ".shop.Missing")])))

    decoded = ProtobufOptions().decoder(COLUMNS, registry_of(server)).decode([framed(n, b"\x00", b"") for n in (1, 2)])

    first, second = reasons(decoded)
    assert first == (0, "", "schema 1 of the registry has the type JSON, not PROTOBUF")
    assert second[2].startswith("schema 2 of the registry cannot be used: its descriptors are not valid: ")


def test_decode_when_registry_returns_the_source_then_raises_config_error(server: RegistryServer) -> None:
    identifier = server.register("t-value", {"schema": SOURCE, "schemaType": "PROTOBUF"})
    decoder = ProtobufOptions().decoder(COLUMNS, registry_of(server))
    with pytest.raises(ConfigError, match="the text of its source"):
        decoder.decode([framed(identifier, b"\x00", b"")])


def test_decode_when_registry_always_fails_for_descriptors_but_returns_the_source_then_raises_config_error(
    server: RegistryServer,
) -> None:
    record = framed(register(server, FILE), b"\x00", b"\x08\x07")
    decoder = ProtobufOptions().decoder(COLUMNS, registry_of(server))
    server.fails_descriptors = True
    with pytest.raises(ConfigError, match="returns schema 1, but not its descriptors: it answers 500") as caught:
        decoder.decode([record])
    assert "format.descriptor_set" in str(caught.value.hint)
    assert set(server.gets) == {"/schemas/ids/1", "/schemas/ids/1?format=serialized"}
    with pytest.raises(ConfigError, match="returns subject t-value, but not its descriptors"):
        ProtobufOptions().columns(registry_of(server), ["t"])
    server.register("avro", {"schema": "{}"})
    assert reasons(decoder.decode([framed(number, b"\x00", b"") for number in (7, 2)])) == [
        (0, "", "the registry has no schema 7"),
        (1, "", "schema 2 of the registry has the type AVRO, not PROTOBUF"),
    ]

    server.fails_descriptors = False
    assert rows_of(decoder.decode([record])) == [{"id": 7, "name": None}]


def test_decode_when_registry_fails_for_descriptors_that_a_producer_has_registered_then_these_are_used(
    server: RegistryServer,
) -> None:
    imported = file_of(ITEM)
    imported.name = "item.proto"
    register(server, imported, "item")
    file = file_of(message("Row", [Field("item", 1, ".shop.Item")]))
    file.dependency.append(imported.name)
    identifier = register(server, file, references=[{"name": imported.name, "subject": "item", "version": 1}])
    server.fails_descriptors = server.returns_registered = True

    columns = ProtobufOptions().columns(registry_of(server), ["t"])
    decoded = (
        ProtobufOptions().decoder(columns, registry_of(server)).decode([framed(identifier, b"\0", b"\x0a\x02\x10\7")])
    )

    assert columns == columns_of(item="struct<id:bigint,name:string>")
    assert rows_of(decoded) == [{"item": {"id": 7, "name": None}}]


def test_decode_when_registry_fails_for_all_requests_then_it_is_unavailable(server: RegistryServer) -> None:
    record = framed(register(server, FILE), b"\x00", b"\x08\x07")
    decoder = ProtobufOptions().decoder(COLUMNS, registry_of(server))
    server.status = 500
    with pytest.raises(RegistryUnavailable, match="answers 500"):
        decoder.decode([record])
    server.status = None
    assert rows_of(decoder.decode([record])) == [{"id": 7, "name": None}]


def test_columns_when_the_answer_for_a_subject_lacks_the_id_then_the_error_says_so(server: RegistryServer) -> None:
    register(server, FILE)
    server.hides_ids = True
    with pytest.raises(ConfigError, match="the answer for subject t-value lacks the id of the schema") as caught:
        ProtobufOptions().columns(registry_of(server), ["t"])
    assert caught.value.where == f"{server.url}/subjects/t-value/versions/latest"


@pytest.mark.parametrize("count", [1, 100])
def test_decode_when_the_descriptors_are_configured_then_the_registry_is_not_asked(count: int) -> None:
    item = class_of(FILE, "Outer.Item")(id=8, name="x").SerializeToString()
    records = [
        framed(5, b"\x04\x02\x00", item),
        framed(2**31, b"\x04\x02\x00", item),
        framed(5, b"\x00", item),
        framed(5, b"\x04\x02\x02", item),
        item,
        framed(5, b"\x04", b""),
    ]
    options = ProtobufOptions(descriptor_set=set_of(FILE), message="shop.Outer.Item")

    decoded = options.decoder(COLUMNS).decode(records * count)

    assert not options.uses_registry
    assert options.columns(None, ["t"]) == tuple(COLUMNS)
    assert rows_of(decoded) == [{"id": 8, "name": "x"}] * 2 * count
    wanted = [
        (2, "", "the record has a message of the index path 0, but that of shop.Outer.Item is 1, 0"),
        (3, "", "the record has a message of the index path 1, 1, but that of shop.Outer.Item is 1, 0"),
        (4, "", WRONG_HEADER),
        (5, "", WRONG_HEADER),
    ]
    assert reasons(decoded) == [(row + len(records) * n, *more) for n in range(count) for row, *more in wanted]


def _with_map(*nested: str) -> FileDescriptorProto:
    """Return a file whose message Outer has a map, and contains messages of these names and the type of its entries."""
    outer = message("Outer", [Field("m", 1, "int32", key="string")])
    [entry] = outer.nested_type
    messages = {
        "MEntry": entry,
        "A": message("A", [Field("id", 1, "int32")]),
        "B": message("B", [Field("id", 1, "int64")]),
    }
    del outer.nested_type[:]
    outer.nested_type.extend(messages[name] for name in nested)
    return file_of(outer)


@pytest.mark.parametrize(
    ("nested", "name", "accepted"),
    [
        (("MEntry", "A"), "A", [0, 1]),
        (("MEntry", "A", "B"), "B", [2]),  # as 1 is the path of A
        (("MEntry", "A", "B"), "A", [0, 1]),
        (("A", "MEntry", "B"), "B", [1, 2]),
        (("A", "B", "MEntry"), "B", [1]),
    ],
)
def test_decode_when_a_java_producer_normalizes_schemas_then_entries_of_maps_do_not_count(
    nested: tuple[str, ...], name: str, accepted: list[int]
) -> None:
    options = ProtobufOptions(descriptor_set=set_of(_with_map(*nested)), message=f"shop.Outer.{name}")
    records = [framed(5, bytes([4, 0, 2 * index]), b"\x08\x07") for index in range(4)]
    decoded = options.decoder(COLUMNS).decode(records)
    assert [index for index in range(4) if index not in {reject.row for reject in decoded.rejects}] == accepted


def test_decode_when_registry_has_a_normalized_schema_then_the_entries_of_maps_are_behind_the_other_messages(
    server: RegistryServer,
) -> None:
    """Confluent's registry builds descriptors in this order from the source, which has no messages for entries."""
    identifier = register(server, _with_map("A", "B", "MEntry"))
    decoder = ProtobufOptions().decoder(COLUMNS, registry_of(server))
    assert rows_of(decoder.decode([framed(identifier, b"\x04\x00\x02", b"\x08\x07")])) == [{"id": 7, "name": None}]


def test_decode_when_serializer_is_confluents_then_rows_are_exact(server: RegistryServer) -> None:
    with warnings.catch_warnings(record=True):  # a library that the client imports warns of its next release
        library = pytest.importorskip("confluent_kafka.schema_registry.protobuf", reason="googleapis-common-protos")
    kinds = {name: class_of(FILE, name) for name in ("Row", "Outer.Item")}
    serializers = {name: library.ProtobufSerializer(kind, server.client()) for name, kind in kinds.items()}
    records = [
        serialize(serializers["Outer.Item"], "t", kinds["Outer.Item"](id=n, name=f"n{n}"))
        if n % 3
        else serialize(serializers["Row"], "t", kinds["Row"](id=n))
        for n in range(300)
    ]
    server.gets.clear()

    decoded = ProtobufOptions().decoder(COLUMNS, registry_of(server)).decode(records)

    assert decoded.rejects == []
    assert rows_of(decoded) == [{"id": n, "name": f"n{n}" if n % 3 else None} for n in range(300)]
