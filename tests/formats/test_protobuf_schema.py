"""Descriptors of Protobuf messages and the keys of the format: what is unusable is refused with the reason."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import Edition, FeatureSet

from ingestd.errors import ConfigError
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.protobuf.schema import read_set
from ingestd.formats.registry import InvalidSchema
from tests.support.decoding import columns_of, rows_of
from tests.support.protobuf import Field, class_of, decoder_of, file_of, message, set_of


def test_schema_when_it_is_unusable_then_error_tells_why() -> None:
    file = file_of(message("Row", [Field("a", 1, ".other.Missing")]))
    not_utf8 = base64.b64encode(base64.b64decode(set_of(file)).replace(b".proto", b"\xffproto")).decode()
    faults = []
    for text, name in (
        ("%", "a"),
        ("AAAA", "a"),
        (set_of(file_of(message("Row", [Field("a", 1, "int32")]))), "shop.X"),
        (not_utf8, "a"),
        (set_of(file), "a"),
    ):
        with pytest.raises(InvalidSchema) as caught:
            read_set(text, name)
        faults.append(str(caught.value))
    assert faults[:4] == [
        "it is not Base64",
        "it is not a set of descriptors",
        "it has no message shop.X",
        "its descriptors contain a name that is not UTF-8",
    ]
    assert faults[4].startswith("its descriptors are not valid: ")


def test_schema_when_types_nest_deeply_then_error_tells_why() -> None:
    messages = [message(f"M{level}", [Field("next", 1, f".shop.M{level + 1}")]) for level in range(2000)]
    with pytest.raises(InvalidSchema, match="its types nest too deeply"):
        read_set(set_of(file_of(*messages, message("M2000", []))), "shop.M0")


def test_schema_when_an_import_only_defines_options_then_it_may_be_missing() -> None:
    file = file_of(message("Row", [Field("a", 1, "int32")]))
    file.dependency.append("validate/validate.proto")
    assert rows_of(decoder_of(file, columns_of(a="int")).decode([struct.pack("BB", 8, 5)])) == [{"a": 5}]


def test_schema_when_it_defines_options_then_it_is_read() -> None:
    file = file_of(message("Row", [Field("a", 1, "int32")]))
    file.dependency.append("google/protobuf/descriptor.proto")
    file.extension.add(name="masked", number=50_000, type=8, label=1, extendee=".google.protobuf.FieldOptions")
    assert rows_of(decoder_of(file, columns_of(a="int")).decode([struct.pack("BB", 8, 5)])) == [{"a": 5}]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"message": "a.B"}, ".descriptor_set: is missing, but descriptor_set and message are needed together"),
        ({"descriptor_set": "CgA="}, ".message: is missing, but descriptor_set and message are needed together"),
        ({"framing": "none"}, ".descriptor_set: is missing, but records with framing: none do not name their type"),
        ({"framing": "none", "descriptor_set": "CgA="}, ".message: is missing, but records with framing: none"),
        (
            {"framing": "none", "message": "a.B", "descriptor_set": "CgA="},
            ".descriptor_set: does not describe the message a.B: it has no message a.B",
        ),
    ],
)
def test_options_when_keys_do_not_fit_the_framing_then_raises_config_error(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProtobufOptions(**options)
    assert str(caught.value).startswith(fault)


def test_decoder_when_registry_is_missing_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="registry: is missing"):
        ProtobufOptions().decoder(columns_of(a="int"))


def test_decode_when_schema_has_features_of_editions_then_they_are_respected() -> None:
    inner = message("Inner", [Field("a", 1, "int32")])
    fields = [
        Field("m", 1, ".shop.Inner"),
        Field("i", 2, "int32"),
        Field("j", 3, "int32"),
        Field("r", 4, "int32", "repeated"),
        Field("e", 5, ".shop.Size", is_enum=True),
    ]
    file = file_of(message("Row", fields), inner, syntax="editions", Size={"SMALL": 0, "LARGE": 1})
    file.edition = Edition.EDITION_2023
    columns = file.message_type[0].field
    columns[0].options.features.message_encoding = FeatureSet.DELIMITED
    columns[1].options.features.field_presence = FeatureSet.IMPLICIT
    file.enum_type[0].options.features.enum_type = FeatureSet.CLOSED
    full = class_of(file)(m={"a": 3}, r=[1, 2], e=1).SerializeToString()
    unknown_number = b"\x28\x09"

    types = columns_of(m="struct<a:int>", i="int", j="int", r="array<int>", e="string")
    decoded = decoder_of(file, types).decode([full, unknown_number])

    absent: dict[str, object] = {"m": None, "i": 0, "j": None, "r": [], "e": None}
    assert rows_of(decoded) == [{**absent, "m": {"a": 3}, "r": [1, 2], "e": "LARGE"}, absent]
