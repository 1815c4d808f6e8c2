"""Options, the builder, the Hive configuration, and their effects on files."""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingestd.acid import orc_proto
from ingestd.errors import ConfigError
from ingestd.hive.tables import TableName, read_table
from ingestd.storage.local import local_path
from ingestd.storage.options import S3Options, StorageOptions
from ingestd.storage.s3_settings import Keys, resolve
from ingestd.streaming import (
    ArrowWriter,
    ConnectionOptions,
    HiveStreamingConnection,
    InvalidConnection,
    StreamingException,
)
from ingestd.streaming.builder import Builder
from ingestd.streaming.configuration import FORCED, OPTIMIZATIONS, Configuration
from tests.streaming.support import connect, rows, sees
from tests.support.metastore import free_port
from tests.support.stack import Stack

_DATA, _ROW_INDEX, _DIRECT, _DIRECT_V2 = 1, 6, 0, 2
_NONE, _SNAPPY, _ZSTD = 0, 2, 5


# --- options


def test_builder_then_has_exactly_one_method_per_option() -> None:
    given: dict[str, Any] = {}
    builder = Builder(lambda **options: given.update(options))
    methods = [method for name, method in inspect.getmembers(builder) if name.startswith("with_")]
    for method in methods:
        assert method(method.__name__) is builder
    builder.connect()
    assert set(given) == {field.name for field in fields(ConnectionOptions)}
    assert len(set(given.values())) == len(methods)
    renamed = {"configuration": "with_hive_conf"}
    assert all(value == renamed.get(option, f"with_{option}") for option, value in given.items())


def test_constructor_then_its_parameters_are_the_options_for_help_and_type_checkers() -> None:
    parameters = inspect.signature(HiveStreamingConnection).parameters
    assert list(parameters) == [field.name for field in fields(ConnectionOptions)]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())
    # mypy reports an unused "type: ignore", so these lines also test the static types.
    with pytest.raises(InvalidConnection, match="no option 'tabel'"):
        HiveStreamingConnection(record_writer=ArrowWriter(), tabel="t")  # type: ignore[call-arg]
    with pytest.raises(InvalidConnection, match="table must be text"):
        HiveStreamingConnection(record_writer=ArrowWriter(), table=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options by name"):
        HiveStreamingConnection(ArrowWriter())  # type: ignore[call-arg]


def test_storage_when_hive_and_hadoop_are_configured_then_hive_overrides_hadoop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, hive = tmp_path / "core-site.xml", tmp_path / "hive-site.xml"
    core.write_text(_site({"fs.s3a.endpoint": "http://old:1", "fs.s3a.path.style.access": "true", "key": "k"}))
    hive.write_text(_site({"fs.s3a.endpoint": "http://new:2", "fs.s3a.access.key": "${key}", "fs.s3a.secret.key": "s"}))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    by_file = Configuration.of(hive).storage_options(None)
    settings = resolve("bucket", by_file)
    assert (settings.endpoint, settings.is_path_style, settings.credentials) == ("http://new:2", True, Keys("k", "s"))
    typed = StorageOptions(timeout=5, s3=S3Options(endpoint="http://typed:3", access_key="a", secret_key="b"))
    settings = resolve("bucket", Configuration.of(hive).storage_options(typed))
    assert (settings.endpoint, settings.is_path_style, settings.credentials) == ("http://typed:3", True, Keys("a", "b"))
    assert settings.timeout_seconds == 5

    core.write_text("<configuration>")
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        Configuration.of(hive).storage_options(None)
    with pytest.raises(InvalidConnection, match="storage must be of the type StorageOptions, not str"):
        ConnectionOptions(record_writer=ArrowWriter(), table="t", storage="s3a://bucket")  # type: ignore[arg-type]


def _site(properties: dict[str, str]) -> str:
    rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    return f"<configuration>{rows}</configuration>"


class _Raw:
    dbName, tableName = "Sales", "Orders"  # noqa: N815 - Thrift's names


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"record_writer": None}, "record writer is missing"),
        ({"table": ""}, "table is missing"),
        ({"static_partition_values": "Asia"}, "must be a list"),
        ({"transaction_batch_size": 0}, "1 or more"),
        ({"write_id": 5}, "must be given together"),
        ({"statement_id": 1}, "requires write_id"),
        ({"configuration": {"hive.metastore.kerberos.principal": "hive/_HOST@R"}}, "sasl.enabled: is not set"),
        ({"write_id": 5, "table_object": _Raw()}, "do not match table_object"),
        ({"write_id": 5, "table_object": _Raw(), "table": "orders", "database": "other"}, "do not match table_object"),
    ],
)
def test_options_when_contradictory_then_rejected_before_any_network_call(options: dict[str, Any], what: str) -> None:
    unused = f"thrift://localhost:{free_port()}"
    given: dict[str, Any] = {"table": "t", "record_writer": ArrowWriter(), "metastore_uri": unused} | options
    with pytest.raises(StreamingException, match=what) as caught:
        HiveStreamingConnection(**given)
    assert type(caught.value) is InvalidConnection


def test_builder_when_the_record_writer_is_missing_then_rejected() -> None:
    with pytest.raises(StreamingException, match="record writer is missing"):
        HiveStreamingConnection.new_builder().with_table("t").connect()


def test_table_object_when_names_are_omitted_or_match_then_accepted() -> None:
    for database, table in (("", ""), ("", "ORDERS"), ("sales", "orders")):
        ConnectionOptions(record_writer=ArrowWriter(), write_id=5, table_object=_Raw(), database=database, table=table)


def test_static_partition_values_when_none_then_partitioning_is_dynamic(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")
    with connect(stack, static_partition_values=None) as connection:
        assert connection.is_dynamic_partitioning
        assert connection.static_partition_values == ()
        with connection.transaction():
            connection.write(rows(0, day=["a", "b"] * 5))
    sees(stack, range(10))


# --- configuration


def test_configuration_then_six_settings_are_forced_and_each_override_is_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    wrong = dict.fromkeys(FORCED, "wrong") | {OPTIMIZATIONS: "false", "a.b": " c "}
    lines = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in wrong.items())
    site = tmp_path / "hive-site.xml"
    site.write_text(f"<configuration>{lines}</configuration>")
    with caplog.at_level(logging.WARNING):
        found = Configuration.of(site, streaming_optimizations=True)
    assert found == FORCED | {OPTIMIZATIONS: "true", "a.b": "c"}
    assert len(caplog.records) == len(FORCED) + 1 == 6
    assert f"{OPTIMIZATIONS} is set to true instead of false, as the option streaming_optimizations requires" in (
        caplog.messages
    )

    caplog.clear()
    again = Configuration.of(found, streaming_optimizations=True)
    assert again == found
    assert Configuration.of(None, streaming_optimizations=False) == FORCED | {OPTIMIZATIONS: "false"}
    # Without a connection, as for `Security.from_hive_conf`, the option is not known.
    assert Configuration.of({}) == FORCED
    assert not caplog.records


def test_optimizations_when_disabled_in_the_configuration_then_the_option_takes_precedence(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    stack.table("id int, note string")
    for option, wanted in (({}, "true"), ({"streaming_optimizations": False}, "false")):
        with connect(stack, configuration={OPTIMIZATIONS: "false"}, **option) as connection:
            assert connection.configuration[OPTIMIZATIONS] == wanted
        assert (OPTIMIZATIONS in caplog.text) is (wanted == "true")
        caplog.clear()


# --- files


def test_files_when_optimized_then_have_light_compression_and_no_dictionaries_or_indexes(stack: Stack) -> None:
    cases = {"ZLIB": _ZSTD, "": _ZSTD, "SNAPPY": _SNAPPY, "NONE": _NONE}
    names = [f"{stack.name}_{number}" for number in range(len(cases))]
    for name, (table, compression) in zip(names, cases.items(), strict=True):
        stack.table("id int, note string", name=name, **({"orc.compress": table} if table else {}))
        for size in (1, 2):
            found = _Orc(_written(stack, table=name, transaction_batch_size=size))
            assert found.compression == compression, (table, size)
            # DIRECT and DIRECT_V2 encode integers and strings without dictionaries.
            assert set(found.encodings) <= {_DIRECT, _DIRECT_V2}, (table, size)
            assert found.index_entries <= 1, (table, size)
    each = (f"SELECT '{name}', count(*), count(DISTINCT note) FROM {name} WHERE id >= 0" for name in names)
    assert sorted(stack.sql(" UNION ALL ".join(each))) == [(name, 60_000, 5) for name in names]


def test_files_when_not_optimized_then_have_the_tables_compression_dictionaries_and_indexes(stack: Stack) -> None:
    stack.table("id int, note string", **{"orc.compress": "ZLIB"})
    found = _Orc(_written(stack, streaming_optimizations=False))
    assert found.compression == orc_proto.ZLIB
    assert set(found.encodings) - {_DIRECT, _DIRECT_V2}
    assert found.index_entries == 3


def _written(stack: Stack, **options: Any) -> Path:
    """Write a file of 30,000 rows and return its path."""
    with connect(stack, **options) as connection:
        connection.begin_transaction()
        connection.write(pa.table({"id": range(30_000), "note": [f"value {n % 5}" for n in range(30_000)]}))
        ids = sorted(connection.txn_to_write_ids.values())
        place = connection.delta_file_location([], 0, ids[0], ids[-1])
        connection.commit_transaction()
    return local_path(place)


class _Orc:
    """Metadata of a file, read from its tail and stripe footers by the field numbers of orc_proto."""

    def __init__(self, file: Path) -> None:
        data = file.read_bytes()
        with file.open("rb") as opened:
            post_script, plain, _ = orc_proto.read_tail(opened)
        self.compression = _number(post_script, 2)
        self.encodings: list[int] = []
        self.index_entries = 0
        for stripe in _messages(plain, 3):
            self._read_stripe(data, stripe)

    def _read_stripe(self, data: bytes, stripe: bytes) -> None:
        offset, index, body, length = (_number(stripe, number) for number in (1, 2, 3, 4))
        end = offset + index + body
        tail = orc_proto.decompress(data[end : end + length], self.compression)
        self.encodings += [_number(encoding, 1) for encoding in _messages(tail, 2)]
        for stream in _messages(tail, 1):
            size = _number(stream, 3)
            if _number(stream, 1) == _ROW_INDEX:
                entries = _messages(orc_proto.decompress(data[offset : offset + size], self.compression), 1)
                self.index_entries = max(self.index_entries, len(entries))
            offset += size


def _messages(message: bytes, number: int) -> list[bytes]:
    return [value for key, value in orc_proto.fields(message) if key == number and isinstance(value, bytes)]


def _number(message: bytes, number: int) -> int:
    return orc_proto.number(dict(orc_proto.fields(message)), number)


def test_hive_site_when_not_named_then_not_read(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option `configuration`, no file is read, not even from HIVE_CONF_DIR."""
    stack.table("id int, note string")
    (tmp_path / "hive-site.xml").write_text("<configuration><nonsense")
    monkeypatch.setenv("HIVE_CONF_DIR", str(tmp_path))
    with connect(stack) as connection:
        assert connection.configuration == FORCED | {OPTIMIZATIONS: "true"}
    with pytest.raises(StreamingException, match="cannot read the configuration"):
        connect(stack, configuration=tmp_path / "hive-site.xml")
    raw = read_table(stack.metastore, TableName("default", stack.name))
    assert raw.tableName == stack.name
