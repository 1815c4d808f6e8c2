"""JSON records of many objects, which two bytes make values of many columns, are rejects before they need memory.

Those of Avro and Protobuf are in the tests of these formats.
"""

from __future__ import annotations

import pytest

from ingestd.formats.json.options import JsonOptions
from ingestd.formats.values import TOO_MANY_VALUES
from tests.support.decoding import columns_of, reasons, rows_of

NAMES = [f"x{number}" for number in range(2_000)]
WIDE = f"struct<{','.join(f'{name}:bigint' for name in NAMES)}>"
MANY = 10_000


@pytest.mark.parametrize(
    "options",
    [JsonOptions(), JsonOptions(lenient=True), JsonOptions(fields={"n": "$.n"}), JsonOptions(envelope="connect")],
    ids=["plain", "lenient", "paths", "connect"],
)
def test_decode_when_empty_objects_would_be_many_values_then_record_is_rejected(options: JsonOptions) -> None:
    objects = b",".join([b"{}"] * MANY)
    members = b",".join(b'"%d":{}' % number for number in range(MANY))
    records = [
        b'{"n":1,"a":[{"x1":5}],"m":{"k":{}}}',
        b'{"n":2,"a":[' + objects + b"]}",
        b'{"n":3,"s":{"A":[' + objects + b"]}}",
        b'{"n":4,"m":{' + members + b"}}",
        b'{"n":5,"ignored":[' + objects + b'],"t":"' + b"{" * MANY + b'"}',
        b'{"n":6,"a":[' + objects,
    ]
    if options.envelope == "connect":
        records = [b'{"schema":null,"payload":' + record + b"}" for record in records]
    columns = columns_of(n="int", a=f"array<{WIDE}>", s=f"struct<a:array<{WIDE}>>", m=f"map<string,{WIDE}>")

    decoded = options.decoder(columns).decode(records)

    assert reasons(decoded)[:3] == [(1, "a", TOO_MANY_VALUES), (2, "s", TOO_MANY_VALUES), (3, "m", TOO_MANY_VALUES)]
    assert [reject.row for reject in decoded.rejects] == [1, 2, 3, 5]
    assert [row["n"] for row in rows_of(decoded)] == [1, 5]
    assert rows_of(decoded)[0]["a"][0]["x1"] == 5


@pytest.mark.parametrize(
    ("kind", "before", "between", "after"), [("array", b"[", b",", b"]"), ("lines", b"", b"\n", b"")]
)
def test_decode_when_empty_objects_would_be_many_rows_then_record_is_rejected(
    kind: str, before: bytes, between: bytes, after: bytes
) -> None:
    columns = columns_of(**dict.fromkeys(NAMES, "bigint"))
    records = [before + between.join(objects) + after for objects in ([b'{"x1":5}', b"{}"], [b"{}"] * MANY, [b"{}"])]

    decoded = JsonOptions(records=kind).decoder(columns).decode(records)  # type: ignore[arg-type]

    assert reasons(decoded) == [(1, "", "the 10,000 objects of the record have too many values as rows")]
    assert decoded.records_of_rows(records).tolist() == [0, 0, 2]
    assert [row["x1"] for row in rows_of(decoded)] == [5, None, None]
