"""Complex columns are written by both writers and read back unchanged, even from slices and below null structs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyorc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyorc.converters import ORCConverter

from ingestd.acid.encoding import STANDARD, Encoding
from ingestd.acid.layout import bucket_property
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.pyorc_writer import PyOrcWriter
from ingestd.acid.routing import Shape, route
from ingestd.acid.writer import rows_for_pyorc
from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.schema import Column, HiveType
from ingestd.storage.local import LocalStorage

SECOND = 10**9
FIRST, LAST = -62135596800 * SECOND, 253402300799 * SECOND + 999_999_000


class _Pair(ORCConverter):
    """Reads timestamps as nanoseconds since 1970."""

    @staticmethod
    def from_orc(seconds: int, nanos: int, _zone: object) -> int:
        return seconds * SECOND + nanos

    @staticmethod
    def to_orc(_value: int, _zone: object) -> tuple[int, int]:
        raise NotImplementedError


class _Day(ORCConverter):
    """Reads dates as days since 1970."""

    @staticmethod
    def from_orc(days: int) -> int:
        return days

    @staticmethod
    def to_orc(_value: int) -> int:
        raise NotImplementedError


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """Return the `row` struct of every event."""
    converters = {pyorc.TypeKind.TIMESTAMP: _Pair, pyorc.TypeKind.DATE: _Day}
    with path.open("rb") as file:
        return [unpadded(event[5]) for event in pyorc.Reader(file, converters=converters)]


def unpadded(value: Any) -> Any:
    """Return the value with the spaces removed that pyorc appends to char."""
    if isinstance(value, str):
        return value.rstrip(" ")
    if isinstance(value, dict):
        return {key: unpadded(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(unpadded, value))
    return value


TYPES = {
    "a": "array<int>",
    "m": "map<string,double>",
    "s": "struct<a:int,b:string,t:timestamp,d:date>",
    "o": "array<struct<s:struct<x:int,y:array<string>>,v:varchar(3),c:char(2),n:decimal(10,2)>>",
    "mt": "map<date,map<int,timestamp>>",
    "mm": "map<binary,array<boolean>>",
    "odd": "struct<a b:int,x.y:struct<größe:tinyint>>",
}
COLUMNS = [Column(name, HiveType.parse(text)) for name, text in TYPES.items()]
EMPTY: tuple[Any, ...] = (None,) * len(COLUMNS)


def record(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(TYPES) | values


RECORDS = [
    record(a=[1, None, -(2**31)], m=[("k", 0.5), ("", None)]),
    record(s={"a": 1, "b": "x", "t": 0, "d": -719162}, o=[None, {"s": None, "v": "abc"}, {"s": {"x": 1, "y": []}}]),
    record(),
    record(s={"a": None, "b": None, "t": None, "d": None}, a=[], m=[], o=[], mt=[], mm=[]),
    record(s={"a": 2, "b": "y", "t": -1_500_001_000, "d": 2932896}, mt=[(-141428, [(1, FIRST), (2, LAST), (3, None)])]),
    record(
        o=[{"s": {"x": 2, "y": ["p", None]}, "v": "q", "c": "z", "n": "1.50"}, {"s": {"x": 3}}], mm=[(b"\0", [True])]
    ),
    record(odd={"a b": 1, "x.y": None}, mt=[(0, None)], mm=[(b"", None), (b"\xff", [])]),
    record(odd={"a b": 2, "x.y": {"größe": 127}}),
]


# A timestamp before 1970 with a fraction of a second, or outside the range of timestamp[ns], needs pyorc.
FOR_PYARROW = [row for row in RECORDS if not row["mt"] or row["s"] is None or row["s"]["t"] != -1_500_001_000]


def value_of(kind: HiveType, value: Any, unit: int) -> Any:
    """Convert a value to the form that `pa.array` accepts; `unit` is one tick of a timestamp in nanoseconds."""
    if value is None:
        return None
    if kind.kind == "map":
        key, item = kind.children
        return [(value_of(key, first, unit), value_of(item, second, unit)) for first, second in value]
    if kind.kind == "array":
        return [value_of(kind.children[0], item, unit) for item in value]
    if kind.kind == "struct":
        fields = zip(kind.names, kind.children, strict=True)
        return {name: value_of(child, value.get(name), unit) for name, child in fields}
    if kind.kind == "timestamp":
        return value // unit
    return Decimal(value) if kind.kind == "decimal" else value


def stored(kind: HiveType, value: Any) -> Any:
    """Convert a value to the form in which pyorc reads it, but without the spaces that pyorc adds to char."""
    if value is None:
        return None
    if kind.kind == "array":
        return [stored(kind.children[0], item) for item in value]
    if kind.kind == "map":
        return {key: stored(kind.children[1], item) for key, item in value}
    if kind.kind == "struct":
        return tuple(stored(child, value[name]) for name, child in zip(kind.names, kind.children, strict=True))
    return value


def arrow_of(kind: HiveType, unit: str) -> pa.DataType:
    """Return the Arrow type of a Hive type, with timestamps in this unit."""
    if kind.kind == "timestamp":
        return pa.timestamp(unit)
    children = [arrow_of(child, unit) for child in kind.children]
    if kind.kind == "struct":
        return pa.struct(list(zip(kind.names, children, strict=True)))
    if kind.kind == "map":
        return pa.map_(*children)
    return pa.list_(*children) if children else kind.arrow


def batch_of(records: list[dict[str, Any]], unit: str) -> pa.RecordBatch:
    size = 1000 if unit == "us" else 1
    arrays = [
        pa.array([value_of(c.type, row[c.name], size) for row in records], arrow_of(c.type, unit)) for c in COLUMNS
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(TYPES))


def expected(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(stored(c.type, value_of(c.type, row[c.name], 1)) for c in COLUMNS) for row in records]


@pytest.mark.parametrize(("writer_type", "records"), [(PyOrcWriter, RECORDS), (PyArrowWriter, FOR_PYARROW)])
def test_write_when_columns_are_complex_then_pyorc_reads_them_back(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter], records: list[dict[str, Any]]
) -> None:
    path = tmp_path / "f.orc"
    writer = writer_type(path, COLUMNS, 7, bucket_property(0, 0))
    batch = batch_of(records, "us")
    assert all(batch.column(c.name).type == c.type.arrow for c in COLUMNS if "timestamp" not in str(c.type))
    writer.write(batch)
    writer.write(batch.slice(3, 0))
    writer.write(batch.slice(4, 3))
    writer.write(batch_of(records[:4], "ns").slice(1))
    assert writer.close().rows == len(records) + 3 + 3
    assert rows_of(path) == expected(records + records[4:7] + records[1:4])
    with path.open("rb") as file:
        schema = f"row:struct<{','.join(f'{c.name}:{c.type}' for c in COLUMNS)}>>"
        if writer_type is PyArrowWriter:
            schema = schema.replace("varchar(3)", "string").replace("char(2)", "string")
        assert str(pyorc.Reader(file).schema).endswith(schema)


def test_write_when_many_rows_have_null_structs_then_values_stay_in_their_rows(tmp_path: Path) -> None:
    """There are more rows than pyorc and Arrow process in one batch."""
    path = tmp_path / "f.orc"
    columns = [Column("n", HiveType.parse("int")), Column("s", HiveType.parse("struct<a:int,l:array<struct<b:int>>>"))]
    rows: list[tuple[int, Any]] = [
        (n, None if n % 3 == 0 else (n, [None, (n,)] if n % 5 else None)) for n in range(5000)
    ]
    dicts: list[dict[str, Any]] = [
        {"n": n, "s": s and {"a": s[0], "l": s[1] and [item and {"b": item[0]} for item in s[1]]}} for n, s in rows
    ]
    writer = PyOrcWriter(path, columns, 1, 1 << 29, encoding=Encoding(stripe_bytes=4096))
    writer.write(pa.RecordBatch.from_pylist(dicts, schema=pa.schema([(c.name, c.type.arrow) for c in columns])))
    writer.close()
    assert rows_of(path) == rows


def test_write_when_there_are_only_nulls_or_no_rows_then_file_is_readable(tmp_path: Path) -> None:
    for count in (0, 3):
        path = tmp_path / f"{count}.orc"
        writer = PyOrcWriter(path, COLUMNS, 1, 1 << 29)
        writer.write(batch_of([record()] * count, "ns"))
        writer.close()
        assert rows_of(path) == [EMPTY] * count


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("array<timestamp>", lambda stamp: [0, stamp, None]),
        ("map<int,timestamp>", lambda stamp: [(1, 0), (2, stamp)]),
        ("map<timestamp,int>", lambda stamp: [(stamp, 1)]),
        ("struct<a:int,t:timestamp>", lambda stamp: {"a": 1, "t": stamp}),
        ("array<struct<m:map<int,array<timestamp>>>>", lambda stamp: [None, {"m": [(1, []), (2, [0, stamp])]}]),
    ],
)
def test_rows_for_pyorc_when_a_complex_value_has_a_fraction_before_1970_then_its_row_is_selected(
    text: str, stamp: Callable[[int], Any]
) -> None:
    kind = HiveType.parse(text)
    values = [stamp(0), None, stamp(-1), stamp(-SECOND), stamp(-SECOND - 1), stamp(1)]
    array = pa.array([value_of(kind, value, 1) for value in values], arrow_of(kind, "ns"))
    batch = pa.RecordBatch.from_arrays([pa.array(range(6)), array], names=["n", "c"])
    assert rows_for_pyorc(batch) == pa.array([False, False, True, False, True, False])
    assert rows_for_pyorc(batch.slice(3)) == pa.array([False, True, False])
    assert rows_for_pyorc(batch.slice(0, 2)) is None


_COMPLEX = st.recursive(
    st.sampled_from([pa.int32(), pa.string(), pa.decimal128(5, 2), pa.bool_()]),
    lambda child: st.one_of(
        child.map(pa.list_),
        child.map(lambda item: pa.map_(pa.string(), item)),
        st.lists(child, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{n}", k) for n, k in enumerate(kinds)])
        ),
    ),
    max_leaves=6,
)


def values(kind: pa.DataType, random: Random, nulls: float) -> Any:
    """Return a random value of an Arrow type, in the form that both `pa.array` and `read_by_pyorc` have."""
    if random.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return tuple(values(child.type, random, nulls) for child in kind)
    count = random.choice([0, 1, 1, 2, 5])
    if pa.types.is_map(kind):
        return {f"k{n}": values(kind.item_type, random, nulls) for n in range(count)}
    if pa.types.is_list(kind):
        return [values(kind.value_type, random, nulls) for _ in range(count)]
    number = random.randrange(-99_999, 99_999)
    primitives = {pa.int32(): number, pa.string(): f"x{number}", pa.bool_(): number % 2 == 0}
    return primitives.get(kind, Decimal(number).scaleb(-2))


def arrow_value(kind: pa.DataType, value: Any) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {child.name: arrow_value(child.type, item) for child, item in zip(kind, value, strict=True)}
    if pa.types.is_map(kind):
        return [(key, arrow_value(kind.item_type, item)) for key, item in value.items()]
    return [arrow_value(kind.value_type, item) for item in value]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_COMPLEX, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([1, 70, 1500]))
def test_write_by_pyarrow_when_values_are_null_at_any_depth_then_others_stay_in_their_rows(
    tmp_path: Path, kind: pa.DataType, random: Random, nulls: float, count: int
) -> None:
    column = Column("c", HiveType.parse(hive_text(kind)))
    rows = [values(kind, random, nulls) for _ in range(count)]
    batch = pa.RecordBatch.from_arrays([pa.array([arrow_value(kind, row) for row in rows], kind)], names=["c"])
    path = tmp_path / f"{random.getrandbits(64):x}.orc"
    writer = PyArrowWriter(path, [column], 1, 1 << 29, encoding=Encoding(stripe_bytes=4096))
    writer.write(batch)
    writer.write(batch.slice(count // 3, count // 2))
    writer.close()
    assert rows_of(path) == [(row,) for row in rows + rows[count // 3 : count // 3 + count // 2]]
    path.unlink()


def hive_text(kind: pa.DataType) -> str:
    """Return the Hive type of an Arrow type."""
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{child.name}:{hive_text(child.type)}' for child in kind)}>"
    if pa.types.is_map(kind):
        return f"map<string,{hive_text(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{hive_text(kind.value_type)}>"
    return {pa.int32(): "int", pa.string(): "string", pa.bool_(): "boolean"}.get(kind, "decimal(5,2)")


def test_pool_when_columns_are_complex_then_every_row_is_written_once(tmp_path: Path) -> None:
    """pyorc writes the rows with timestamps that pyarrow cannot write, so there are two files."""
    files = StagingFiles(LocalStorage().outbox(str(tmp_path), "task"), COLUMNS, 1)
    pool = WriterPool(files)
    for start in range(len(RECORDS)):
        pool.add((), 0, batch_of(RECORDS * 200, "us").slice(start * 100, 100))
    pool.close()
    stored_rows = [row for file in files.closed for row in rows_of(Path(file.uri))]
    assert len(files.closed) == 2
    assert sorted(map(repr, stored_rows)) == sorted(map(repr, expected(RECORDS * 100)))


def test_route_when_columns_are_complex_then_values_stay_in_their_rows() -> None:
    key = Column("p", HiveType.parse("int"))
    records = RECORDS * 3
    batch = batch_of(records, "us").append_column("p", pa.array([n % 4 for n in range(len(records))], pa.int32()))
    parts = route(batch, Shape(tuple(COLUMNS), (key,), None, STANDARD), ())
    found = {part.partition: part.rows.to_pylist() for part in parts}
    assert found == {(str(n),): batch_of(records[n::4], "us").to_pylist() for n in range(4)}
