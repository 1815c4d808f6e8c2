"""HiveServer2 finds each text, whatever its length, and files with long texts are as small as those of Hive."""

from __future__ import annotations

import base64
import random
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from ingestd.schema import HiveType
from ingestd.storage.local import local_path
from tests.streaming.support import connect
from tests.support.compaction import compact
from tests.support.files import files_below
from tests.support.stack import Stack

PREFIX = "k" * 1022 + "é"  # 1,024 bytes, so that all texts that begin with it have the same lower bound
NESTED = "struct<a:string,b:array<string>,c:map<string,string>>"
COLUMNS = f"id int, s string, v varchar(4000), c char(200), n {NESTED}, p binary, t timestamp"
PROPERTIES = {"orc.row.index.stride": "1000", "orc.bloom.filter.columns": "v", "orc.stripe.size": "4194304"}
# The second is written by pyorc.
TIMES = {"pyarrow": datetime(2020, 1, 1), "pyorc": datetime(1969, 1, 1, 0, 0, 0, 500_000)}
COUNT = 1200  # for each writer
NUL_IDS = range(3 * COUNT, 3 * COUNT + 3)
SPECIAL = {0: "", 1: "l" + "\uffff" * 400, 2: "z" * 30_000} | dict(zip(NUL_IDS, ("n\0c", "n\0b", "n\0d"), strict=True))


def text_of(number: int) -> str:
    """Return one of many texts that have the first 1,024 bytes in common, or a special one."""
    special = {0: "", 1: "l" + "\uffff" * 400, 2: "z" * 30_000} | dict(
        zip(NUL_IDS, ("n\0c", "n\0b", "n\0d"), strict=True)
    )
    return special.get(number, PREFIX + f"{number:06d}" + "x" * (number % 50))


def rows(ids: range, time: datetime) -> pa.Table:
    texts = [text_of(identity) for identity in ids]
    nested = [{"a": text, "b": [text, None], "c": [(text, text)]} for text in texts]
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "s": texts,
            "v": [text[:4000] for text in texts],
            "c": [text[:200] for text in texts],
            "n": pa.array(nested, HiveType.parse(NESTED).arrow),
            "p": [text.encode() for text in texts],
            "t": pa.array([time] * len(ids), pa.timestamp("us")),
        }
    )


def literal(text: str) -> str:
    return "'" + text.replace("\0", "\\000") + "'"


def check(stack: Stack) -> None:
    """Check the answers to predicates that Hive evaluates with the statistics, and those to aggregates."""
    texts = {number: text_of(number) for number in range(NUL_IDS.stop)}
    low, high, text = PREFIX + "001500", PREFIX + "002700x", texts[2500]
    expected = {
        **{f"s = {literal(texts[number])}": [number] for number in (2, 1000, 2500, *NUL_IDS)},
        f"v = {literal(text)}": [2500],
        f"n.a = {literal(text)}": [2500],
        f"s = {literal(PREFIX)}": [],
        f"s < {literal(low)}": [number for number, other in texts.items() if other.encode() < low.encode()],
        f"s > {literal(high)}": [number for number, other in texts.items() if other.encode() > high.encode()],
        f"s BETWEEN {literal(low)} AND {literal(high)}": [n for n, other in texts.items() if low <= other <= high],
        f"s IN ({literal(low)}, {literal(text)}, 'a')": [1500, 2500],
    }
    for condition, ids in expected.items():
        found = stack.sql(f"SELECT id FROM {stack.name} WHERE {condition}")
        assert sorted(row[0] for row in found) == ids, condition[:20]
    greatest = max(texts.values(), key=str.encode)
    aggregates = "count(*), max(length(s)), max(length(n.b[0])), max(length(p)), min(s), max(s)"
    assert stack.sql(f"SELECT {aggregates} FROM {stack.name}") == [(len(texts), 30_000, 30_000, 30_000, "", greatest)]


# One compaction a table: Hive accepts a second one only when the cleaner has removed the files of the first.
@pytest.mark.parametrize("kind", ["minor", "major"])
def test_read_when_texts_are_long_then_predicates_find_them(stack: Stack, kind: str) -> None:
    stack.table(COLUMNS, **PROPERTIES)
    with connect(stack) as connection:
        for number, time in enumerate(TIMES.values()):
            with connection.transaction():
                connection.write(rows(range(number * COUNT, (number + 1) * COUNT), time))
        with connection.transaction():  # a file of their own, whose statistics describe only them
            connection.write(rows(NUL_IDS, TIMES["pyarrow"]))
    with connect(stack, transaction_batch_size=2) as connection:
        for start in (2 * COUNT, 2 * COUNT + COUNT // 2):
            with connection.transaction():
                connection.write(rows(range(start, start + COUNT // 2), TIMES["pyarrow"]))
            assert stack.count("WHERE s > 'j'") == start + COUNT // 2 + 2  # while the file grows
    check(stack)
    compact(stack, f"default.{stack.name}", kind)
    check(stack)


def _bytes(stack: Stack, name: str) -> int:
    root = local_path(stack.addresses.warehouse) / name
    return sum(path.stat().st_size for path in files_below(root) if path.name.startswith("bucket_"))


def test_write_when_each_text_has_a_mebibyte_then_the_file_is_as_small_as_that_of_hive(stack: Stack) -> None:
    stack.table("id int, s string")
    choose = random.Random(1)
    texts = [base64.b64encode(choose.randbytes(3 << 18)).decode() for _ in range(64)]
    data: dict[str, Any] = {"id": pa.array(range(64), pa.int32()), "s": texts}
    with connect(stack) as connection, connection.transaction():
        connection.write(pa.table(data))
    copy = f"{stack.name}_copy"
    stack.sql(f"CREATE TABLE {copy} STORED AS ORC TBLPROPERTIES ('transactional'='true') AS SELECT * FROM {stack.name}")
    assert _bytes(stack, stack.name) <= 1.05 * _bytes(stack, copy)
    assert stack.sql(f"SELECT count(*), min(length(s)) FROM {stack.name}") == [(64, 1 << 20)]
    assert stack.sql(f"SELECT id FROM {stack.name} WHERE s = '{texts[40][:1024]}'") == []
