"""The client of the schema registry, and records that Confluent's serializer has written."""

from __future__ import annotations

import json
import pickle
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import Literal

import pytest

from ingestd.clock import monotonic
from ingestd.errors import ConfigError, LoginFailed, RegistryUnavailable
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.registry import InvalidSchema, Patience, Registry, RegistryOptions, SchemaMissing
from tests.support.avro import ISO_DATE, ISO_TIME, ISO_TIMESTAMP, encode, schema_of
from tests.support.certificates import make
from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.patience import LIMIT
from tests.support.registry import RegistryServer, registry_server, serialize

OLD = schema_of({"id": "int"})
NEW = schema_of({"name": ["null", "string"], "id": "long"})
COLUMNS = columns_of(id="bigint", name="string")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as made:
        yield made


def registry_of(server: RegistryServer, **options: object) -> Registry:
    patience = Patience(missing_seconds=LIMIT)
    return Registry(RegistryOptions(server.url, **{"lag": 0.0, **options}), patience)  # type: ignore[arg-type]


def test_decode_when_serializer_is_confluents_then_schemas_are_found_once(server: RegistryServer) -> None:
    old, new = server.serializer(OLD), server.serializer(NEW)
    records = [
        serialize(old, "t", {"id": n}) if n % 3 else serialize(new, "t", {"id": n, "name": f"n{n}"}) for n in range(30)
    ]
    records[5:7] = [struct.pack(">BI", 0, 77) + b"x", b"\x01abcdefgh"]
    registry = registry_of(server)
    server.gets.clear()

    decoded = [AvroOptions().decoder(COLUMNS, registry).decode(records) for _ in range(2)]

    for result in decoded:
        assert rows_of(result) == [{"id": n, "name": None if n % 3 else f"n{n}"} for n in range(30) if n not in (5, 6)]
        assert reasons(result) == [
            (5, "", "the registry has no schema 77"),
            (6, "", "record does not begin with the header of the framing confluent"),
        ]
    assert sorted(server.gets) == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/77"]


def test_decode_when_confluents_serializer_writes_texts_of_debezium_then_they_are_dates_and_timestamps(
    server: RegistryServer,
) -> None:
    schema = schema_of({"day": ["null", ISO_DATE], "at": ISO_TIMESTAMP, "clock": ISO_TIME})
    rows = [
        {"day": "2026-11-28Z", "at": "2026-11-28T01:02:03.000004Z", "clock": "01:02:03Z"},
        {"day": None, "at": "1969-12-31T23:59:59Z", "clock": "00:00:00Z"},
    ]
    records = [serialize(server.serializer(schema), "t", row) for row in rows]
    columns = columns_of(day="date", at="timestamp", clock="string")

    decoded = AvroOptions().decoder(columns, registry_of(server)).decode(records)

    assert rows_of(decoded) == [
        {"day": date(2026, 11, 28), "at": datetime(2026, 11, 28, 1, 2, 3, 4), "clock": "01:02:03Z"},
        {"day": None, "at": datetime(1969, 12, 31, 23, 59, 59), "clock": "00:00:00Z"},
    ]


def test_decode_when_ids_have_8_bytes_then_schemas_are_found(server: RegistryServer) -> None:
    identifier = server.register("t-value", {"schema": NEW})
    record = struct.pack(">BQ", 0, identifier) + encode(NEW, {"id": 7, "name": "x"})

    decoded = AvroOptions(framing="apicurio").decoder(COLUMNS, registry_of(server)).decode([record])

    assert rows_of(decoded) == [{"id": 7, "name": "x"}]


def test_decode_when_a_replica_of_the_registry_lags_then_schema_is_awaited(server: RegistryServer) -> None:
    record = serialize(server.serializer(NEW), "t", {"id": 7, "name": "x"})
    server.gets.clear()
    server.lagging = 3

    decoded = AvroOptions().decoder(COLUMNS, registry_of(server, lag=60.0)).decode([record] * 2)

    assert rows_of(decoded) == [{"id": 7, "name": "x"}] * 2
    assert server.gets == ["/schemas/ids/1"] * 4


def test_decode_when_many_ids_do_not_exist_then_not_each_is_awaited(server: RegistryServer) -> None:
    records = [struct.pack(">BI", 0, identifier) for identifier in range(1, 60)]

    decoded = AvroOptions().decoder(COLUMNS, registry_of(server, lag=0.05)).decode(records)

    assert len(reasons(decoded)) == len(records)
    repeated = [path for path, count in Counter(server.gets).items() if count > 1]
    assert repeated == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/3"]


def test_schema_when_waits_without_a_result_are_long_ago_then_schemas_are_awaited_again(server: RegistryServer) -> None:
    registry = Registry(RegistryOptions(server.url, lag=0.01), Patience(missing_seconds=0.0, waits_seconds=0.0))
    for identifier in range(1, 6):
        with pytest.raises(InvalidSchema):
            registry.schema(identifier, "AVRO")
    assert min(Counter(server.gets).values()) > 1
    server.register("t-value", {"schema": NEW})
    server.lagging = 1
    assert registry.schema(1, "AVRO").text == NEW


def _unknown(count: int) -> list[bytes]:
    """Return records, each of which has another id that no schema has."""
    return [struct.pack(">BI", 0, 1_000 + number) for number in range(count)]


def test_decode_when_many_ids_do_not_exist_then_each_is_requested_once_on_the_same_connection(
    server: RegistryServer,
) -> None:
    server.keeps_connections = True
    decoder = AvroOptions().decoder(COLUMNS, registry_of(server))

    decoded = [decoder.decode(_unknown(200)) for _ in range(2)]

    assert [reason for _, _, reason in reasons(decoded[0])] == [
        f"the registry has no schema {1_000 + number}" for number in range(200)
    ]
    assert reasons(decoded[1]) == reasons(decoded[0])
    assert len(server.gets) == 200
    assert server.connections == 1


def test_decode_when_a_missing_schema_is_registered_then_the_decoder_requests_it_after_a_while(
    server: RegistryServer,
) -> None:
    record = struct.pack(">BI", 0, 1) + encode(NEW, {"id": 7, "name": "x"})
    impatience = Patience(missing_seconds=0.0)
    registries = registry_of(server), Registry(RegistryOptions(server.url, lag=0.0), impatience)
    patient, impatient = (AvroOptions().decoder(COLUMNS, registry) for registry in registries)
    for decoder in (patient, impatient):
        assert reasons(decoder.decode([record])) == [(0, "", "the registry has no schema 1")]
    server.register("t-value", {"schema": NEW})

    assert reasons(patient.decode([record])) == [(0, "", "the registry has no schema 1")]
    assert rows_of(impatient.decode([record])) == [{"id": 7, "name": "x"}]


def test_decode_when_more_ids_do_not_exist_than_may_be_requested_then_the_others_are_requested_later(
    server: RegistryServer,
) -> None:
    registry = Registry(RegistryOptions(server.url, lag=0.0), Patience(requests=5, period_seconds=0.2))
    known = struct.pack(">BI", 0, server.register("t-value", {"schema": NEW})) + encode(NEW, {"id": 7, "name": "x"})
    begin = monotonic()

    decoded = AvroOptions().decoder(COLUMNS, registry).decode([*_unknown(12), known])

    assert [reason for _, _, reason in reasons(decoded)] == [
        f"the registry has no schema {1_000 + number}" for number in range(12)
    ]
    assert rows_of(decoded) == [{"id": 7, "name": "x"}]
    assert len(server.gets) == 13
    assert monotonic() - begin > 0.4


def test_schema_when_connections_end_between_requests_then_the_request_is_sent_again(server: RegistryServer) -> None:
    registry = registry_of(server)
    server.register("t-value", {"schema": OLD})
    server.register("t-value", {"schema": NEW})
    server.keeps_connections, server.max_requests = True, 1

    assert [registry.schema(identifier, "AVRO").text for identifier in (1, 2)] == [OLD, NEW]
    with pytest.raises(SchemaMissing):
        registry.schema(3, "AVRO")

    assert server.connections == 3
    server.max_requests = 0
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        registry.schema(4, "AVRO")


@pytest.mark.parametrize(("framing", "header"), [("confluent", ">BI"), ("apicurio", ">BQ")])
def test_decode_when_id_is_larger_than_any_then_record_is_rejected_without_a_request(
    server: RegistryServer, framing: Literal["confluent", "apicurio"], header: str
) -> None:
    server.status = 404  # without the error code of a registry, as Confluent's answers an id that is no int
    record = struct.pack(header, 0, 2**31) + b"x"

    decoded = AvroOptions(framing=framing).decoder(COLUMNS, registry_of(server)).decode([record])

    assert reasons(decoded) == [(0, "", "the registry has no schema 2147483648")]
    assert server.gets == []


@pytest.mark.parametrize("deleted", [(), ("unit", "item", "t-value")])
def test_decode_when_schema_refers_to_others_then_their_names_are_known(
    server: RegistryServer, deleted: tuple[str, ...]
) -> None:
    unit = json.dumps({"type": "enum", "name": "shop.unit", "symbols": ["PIECE", "KG"]})
    item = json.dumps({"type": "record", "name": "shop.item", "fields": [{"name": "unit", "type": "shop.unit"}]})
    server.register("unit", {"schema": unit})
    server.register("item", {"schema": item, "references": [{"name": "u", "subject": "unit", "version": 1}]})
    order = {
        "type": "record",
        "name": "shop.o",
        "fields": [{"name": "a", "type": "item"}, {"name": "b", "type": "unit"}],
    }
    value = {"a": {"unit": "KG"}, "b": "PIECE"}
    record = serialize(server.serializer(json.dumps(order), unit="shop.unit", item="shop.item"), "t", value)
    server.deleted.update(deleted)

    decoder = AvroOptions().decoder(columns_of(a="struct<unit:string>", b="string"), registry_of(server))

    assert rows_of(decoder.decode([record])) == [value]


def test_decode_when_schema_is_of_another_type_then_record_is_rejected(server: RegistryServer) -> None:
    server.register("t-value", {"schema": "{}", "schemaType": "JSON"})
    server.register("t-value", {"schema": '"string"'})
    records = [struct.pack(">BI", 0, identifier) for identifier in (1, 2)]

    decoded = AvroOptions().decoder(COLUMNS, registry_of(server)).decode(records)

    assert reasons(decoded) == [
        (0, "", "schema 1 of the registry has the type JSON, not AVRO"),
        (1, "", "schema 2 of the registry cannot be used: its values are not records"),
    ]


def test_decode_when_the_registry_answers_with_unpaired_surrogates_then_reasons_can_be_encoded(
    server: RegistryServer,
) -> None:
    half = "\ud800"
    unit = {"name": half, "subject": half, "version": 1}
    for schema in (
        {"schema": _record("r", half)}, {"schema": json.dumps(half)}, {"schema": half},
        {"schema": _record(half, "int")}, {"schema": "", "schemaType": half},
        {"schema": _record("r", "int"), "references": [unit]},
    ):  # fmt: skip
        server.register("t-value", schema)
        with pytest.raises(ConfigError) as caught:
            AvroOptions().columns(registry_of(server), ["t"])
        assert str(caught.value).encode()
    records = [struct.pack(">BI", 0, identifier) for identifier in range(1, 7)]

    decoded = AvroOptions().decoder(COLUMNS, registry_of(server)).decode(records)

    assert [row for row, _, reason in reasons(decoded) if reason.encode()] == [*range(6)]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_schema_when_registry_fails_then_raises_unavailable_and_recovers(server: RegistryServer, status: int) -> None:
    server.register("t-value", {"schema": NEW})
    registry = registry_of(server)
    server.status = status
    with pytest.raises(RegistryUnavailable, match=f"answers {status}"):
        registry.schema(1, "AVRO")
    server.status = None
    assert registry.schema(1, "AVRO").text == NEW


def _answered(answer: bytes) -> Exception:
    """Return the error of a request for a schema to a server that sends these bytes and ends the connection."""

    def send() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        sent = pool.submit(send)
        with pytest.raises((RegistryUnavailable, ConfigError)) as caught:
            Registry(RegistryOptions(url, username="reader", password="s3cret")).schema(1, "AVRO")
        sent.result()
    assert f"{url}/schemas/ids/1" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
@pytest.mark.parametrize("rest", [b"Transfer-Encoding: chunked\r\n\r\nff\r\n{", b"Content-Length: 99\r\n\r\n{"])
def test_schema_when_connection_ends_inside_an_answer_then_raises_unavailable(status: bytes, rest: bytes) -> None:
    assert isinstance(_answered(b"HTTP/1.1 " + status + b"\r\n" + rest), RegistryUnavailable)


@pytest.mark.parametrize("place", ["http://u:s3cret@127.0.0.1/", "file:///s3cret", "s3cret"])
def test_schema_when_redirected_to_a_place_without_a_registry_then_error_does_not_show_it(place: str) -> None:
    head = f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n"
    assert _answered(head.encode())


@pytest.mark.parametrize(
    "answer",
    [
        b'{"schema": null}', b'{"schema": "", "references": 5}', b'{"schema": "", "references": [{}]}', b"[" * 100_000,
        b'{"schema": "", "references": [{"name": "a", "subject": "b", "version": "x"}]}',
    ],
)  # fmt: skip
def test_schema_when_the_answer_does_not_describe_a_schema_then_raises_config_error(answer: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n"
    assert isinstance(_answered(head.encode() + answer), ConfigError)


@pytest.mark.parametrize(
    "answer",
    [
        b'404 Not Found\r\nContent-Type: text/html\r\n\r\n<html>404 Not Found</html>',
        b"404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b'404 Not Found\r\n\r\n{"message": "no Route matched with those values"}',
        b'404 Not Found\r\n\r\n{"error_code": 404',
        b'200 OK\r\n\r\n{"schema": "\\"string',
        b"200 OK\r\n\r\n",
        b"200 OK\r\nContent-Type: text/html\r\n\r\n<html>Back soon</html>",
    ],
)  # fmt: skip
def test_schema_when_a_proxy_answers_or_the_answer_is_cut_then_raises_unavailable(answer: bytes) -> None:
    error = _answered(b"HTTP/1.1 " + answer)
    assert isinstance(error, RegistryUnavailable)
    assert "the schema registry is not reached" in error.what


@pytest.mark.parametrize("code", [404, 40410])
def test_schema_when_a_registry_does_not_know_the_path_then_raises_config_error(code: int) -> None:
    body = json.dumps({"error_code": code, "message": "HTTP 404 Not Found"}).encode()
    assert isinstance(_answered(b"HTTP/1.1 404 Not Found\r\n\r\n" + body), ConfigError)


@contextmanager
def _endless(start: bytes, part: bytes, pause_seconds: float, first: bytes = b"") -> Iterator[str]:
    """Yield the host and port of a server that answers with `start` and then with `part`, again and again.

    It answers the first request of its only connection with `first`, unless that is empty.
    """
    ended = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # the client ends it
            connection.recv(10_000)
            if first:
                connection.sendall(first)
                connection.recv(10_000)
            connection.sendall(start)
            while not ended.wait(pause_seconds):
                connection.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        answered = pool.submit(answer)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            answered.result()


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"
# The beginning of a record of a TLS handshake with 16,000 bytes.
_HANDSHAKE = b"\x16\x03\x03\x3e\x80\x02\x00\x3e\x7c"


@pytest.mark.parametrize(
    ("scheme", "start", "part"),
    [
        ("http", _HEAD, b" "), ("http", b"", b"HTTP"), ("http", b"HTTP/1.1 200 OK\r\nA: ", b"a"),
        ("http", b"HTTP/1.1 404 Not Found\r\n\r\n", b" "), ("https", _HANDSHAKE, b"a"),
    ],
)  # fmt: skip
def test_schema_when_the_answer_arrives_byte_by_byte_then_raises_unavailable(
    scheme: str, start: bytes, part: bytes
) -> None:
    with (
        _endless(start, part, 0.05) as server,
        pytest.raises(RegistryUnavailable, match=r"after 0\.5 s \(registry\.tim"),
    ):
        Registry(RegistryOptions(f"{scheme}://{server}", timeout=0.5)).schema(1, "AVRO")


def _first_answer() -> bytes:
    body = json.dumps({"schema": OLD}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_schema_when_a_later_answer_on_a_connection_is_too_long_then_it_is_not_requested_again() -> None:
    with _endless(_HEAD, b" " * 1_000_000, 0, _first_answer()) as server:
        registry = Registry(RegistryOptions(f"http://{server}"))
        assert registry.schema(1, "AVRO").text == OLD
        with pytest.raises(RegistryUnavailable, match="the answer is longer than"):
            registry.schema(2, "AVRO")


def test_schema_when_a_later_answer_on_a_connection_arrives_byte_by_byte_then_raises_unavailable() -> None:
    with _endless(b"HTTP/1.1 200 OK\r\nA: ", b"a", 0.05, _first_answer()) as server:
        registry = Registry(RegistryOptions(f"http://{server}", timeout=0.5))
        assert registry.schema(1, "AVRO").text == OLD
        with pytest.raises(RegistryUnavailable, match=r"after 0\.5 s \(registry\.tim"):
            registry.schema(2, "AVRO")


def test_schema_when_the_answer_has_no_end_then_raises_unavailable() -> None:
    with _endless(_HEAD, b" " * (1 << 20), 0.0) as server, pytest.raises(RegistryUnavailable, match="than 64 MiB"):
        Registry(RegistryOptions(f"http://{server}", timeout=LIMIT)).schema(1, "AVRO")


def _record(name: str, field: object) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "v", "type": field}]})


def _chain(server: RegistryServer, length: int) -> int:
    """Register schemas, each of which refers to the one before; return the id of the last."""
    identifier = server.register("s0", {"schema": _record("s0", "int")})
    for number in range(1, length):
        before = f"s{number - 1}"
        references = [{"name": before, "subject": before, "version": 1}]
        schema = _record(f"s{number}", ["null", before])
        identifier = server.register(f"s{number}", {"schema": schema, "references": references})
    return identifier


def test_decode_when_schemas_refer_to_others_many_levels_deep_then_records_are_rejected(server: RegistryServer) -> None:
    records = [struct.pack(">BI", 0, _chain(server, length)) + b"\x00" for length in (51, 102, 700)]

    decoded = AvroOptions().decoder(columns_of(v="string"), registry_of(server)).decode(records)

    limits = "refers to too many schemas; it may refer to at most 1000 others, 100 levels deep"
    assert reasons(decoded) == [
        (1, "", f"schema 102 of the registry {limits}"),
        (2, "", f"schema 700 of the registry {limits}"),
    ]


def test_schema_when_registry_is_down_then_raises_unavailable() -> None:
    with registry_server() as server:
        registry = registry_of(server)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        registry.schema(1, "AVRO")


@pytest.mark.parametrize(("status", "error"), [(403, LoginFailed), (410, ConfigError), (200, ConfigError)])
def test_schema_when_answer_is_not_that_of_a_registry_then_error_is_not_retriable(
    server: RegistryServer, status: int, error: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(error):
        registry_of(server).schema(1, "AVRO")


def test_schema_when_login_is_required_then_it_is_sent_and_never_shown() -> None:
    with registry_server(login="reader:s3cret/:x") as server:
        server.register("t-value", {"schema": NEW})
        registry = registry_of(server, username="reader", password="s3cret/:x")
        assert pickle.loads(pickle.dumps(registry)).schema(1, "AVRO").text == NEW
        with pytest.raises(InvalidSchema):
            registry.schema(2, "AVRO")
        with pytest.raises(LoginFailed) as caught:
            registry_of(server, username="reader", password="wr0ng").schema(1, "AVRO")
        assert "wr0ng" not in str(caught.value)
        with pytest.raises(LoginFailed):
            registry_of(server).schema(1, "AVRO")


def test_options_when_only_the_user_is_set_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="needed together"):
        RegistryOptions("http://localhost", username="reader")
    assert "s3cret" not in repr(RegistryOptions("http://localhost", username="reader", password="s3cret"))


def test_schema_when_certificate_is_checked_then_only_the_right_ca_is_accepted(tmp_path: Path) -> None:
    make(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with registry_server(tls=tls) as server:
        server.register("t-value", {"schema": NEW})
        assert registry_of(server, ca_file=tmp_path / "ca.pem").schema(1, "AVRO").text == NEW
        with pytest.raises(LoginFailed, match="not trusted"):
            registry_of(server, ca_file=tmp_path / "other.pem").schema(1, "AVRO")
        with pytest.raises(ConfigError, match="cannot be used"):
            registry_of(server, ca_file=tmp_path / "missing.pem").schema(1, "AVRO")


def test_columns_when_subjects_have_several_versions_then_the_latest_of_each_topic_counts(
    server: RegistryServer,
) -> None:
    server.register("a-value", {"schema": OLD})
    server.register("a-value", {"schema": NEW})
    server.register("b-value", {"schema": schema_of({"id": "int", "at": "double"})})
    registry = registry_of(server)

    assert AvroOptions().columns(registry, ["a", "b"]) == tuple(columns_of(name="string", id="bigint", at="double"))
    with pytest.raises(ConfigError, match=r"the registry has no subject c-value.*list the columns"):
        AvroOptions().columns(registry, ["a", "c"])
    server.register("c-value", {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"})
    with pytest.raises(ConfigError, match="has the type PROTOBUF, not AVRO"):
        AvroOptions().columns(registry, ["c"])
    server.status = 503
    with pytest.raises(RegistryUnavailable):
        AvroOptions().columns(registry, ["a"])
