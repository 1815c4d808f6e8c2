"""Records of several JSON objects: each record becomes the rows of all its objects, or one reject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.decoder import Decoder, DecodeResult
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.json.record import MAX_DEPTH, nested_too_deep
from ingestd.formats.json.several import Several, SeveralDecoder
from ingestd.formats.row_batches import Row
from ingestd.schema import Column
from tests.formats.test_complex_json import values as plain_values
from tests.formats.test_tape import MALFORMED, Generator, decoded_alone
from tests.support.decoding import columns_of

ROOTS = [b"", b"[", b"]", b"[]]", b"[] []", b"[],[]", b"{}", b"null", b"[,]", b"[{},]", b"[{}{}]", b"[{}],[{}]", b"x[]"]
INSIDE = [b"[\xff]", b'{"":[]}', b"[[", b"[}", b"[NaN]", b'["a":1]', b'[{"a":1]', b"[]x", b"[[]]", b"[1,{}]", b"[null]"]
MALFORMED_ARRAYS = [*ROOTS, *INSIDE, b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)]
ID = columns_of(id="int")


class SeveralGenerator(Generator):
    """Generates records of several objects."""

    def several(self, columns: Sequence[Column], several: Several) -> bytes:
        random = self._random
        usual = [b"{}", b'{"x":[1,{"y":2}]}', b' {"other":"\\n"}', b'{"a":null}']
        count = random.randint(0, 4)
        objects = [self.record(columns) if random.random() < 0.3 else random.choice(usual) for _ in range(count)]
        if several == "lines":
            objects = [object_.replace(b"\n", b" ") for object_ in objects]
            objects += [random.choice([b"", b" ", b"\r", b"\t \r"])] * (random.random() < 0.3)
            random.shuffle(objects)
            return random.choice([b"\n", b"\r\n"]).join(objects) + random.choice([b"", b"\n", b"\n\n", b"\r\n"])
        if random.random() < 0.1:
            return random.choice(MALFORMED_ARRAYS)
        blank = random.choice([b"", b" ", b"\n", b"\t"])
        return blank + b"[" + blank + (blank + b"," + blank).join(objects) + blank + b"]" + blank


def objects_of(value: bytes, several: Several) -> list[tuple[str, bytes]] | None:
    """Return the place and the text of each object in a record, or None if the record itself is a reject."""
    if several == "lines":
        lines = enumerate(value.split(b"\n"), 1)
        return [(f"line {number}", line.removesuffix(b"\r")) for number, line in lines if line.strip(b" \t\r")] or None
    try:
        array = json.loads(value.decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, RecursionError, ZeroDivisionError):
        return None
    if not isinstance(array, list) or nested_too_deep(value):
        return None
    text = value.decode().strip(" \t\r\n")
    found, place = [], 1
    for index in range(len(array)):
        place += len(text[place:]) - len(text[place:].lstrip(" \t\r\n,"))
        _, end = json.JSONDecoder().raw_decode(text, place)
        found.append((f"element [{index}]", text[place:end].encode("utf-8", "surrogatepass")))
        place = end
    return found


def expected(columns: Sequence[Column], value: bytes, several: Several) -> list[Row] | tuple[str, str]:
    """Return the rows of a record, or the column and the beginning of the reason of its reject."""
    objects = objects_of(value, several)
    if objects is None:
        return "", "record "
    for place, text in objects:
        if several == "array" and not text.startswith(b"{"):
            return "", f"{place} is not an object"
    rows: list[Row] = []
    for place, text in objects:
        row = decoded_alone(columns, text)
        if isinstance(row, tuple):
            column, reason = row
            return column, f"{place}: {reason}"
        rows.append(row)
    return rows


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 60), st.sampled_from([1, 3, 20]), st.sampled_from(["array", "lines"]))
def test_decode_when_records_have_several_objects_then_result_is_the_same_as_one_by_one(
    seed: int, count: int, several: Several
) -> None:
    generator = SeveralGenerator(Random(seed))
    columns = generator.columns()
    values = [generator.several(columns, several) for _ in range(count)]
    decoded = SeveralDecoder(columns, several).decode(values)
    alone = [expected(columns, value, several) for value in values]
    rejects = {index: one for index, one in enumerate(alone) if isinstance(one, tuple)}
    rows = {index: one for index, one in enumerate(alone) if not isinstance(one, tuple)}
    assert {reject.row: reject.column for reject in decoded.rejects} == {row: one[0] for row, one in rejects.items()}
    for reject in decoded.rejects:
        deep = f"JSON is nested deeper than {MAX_DEPTH} levels"
        assert reject.reason.startswith(rejects[reject.row][1]) or reject.reason == deep
    found = [row for batch in decoded.batches for row in zip(*map(plain_values, batch.columns), strict=True)]
    owners = decoded.records_of_rows(values).tolist()
    of_records = [(record, repr(tuple(row))) for record, one in rows.items() for row in one]
    assert sorted((record, repr(row)) for record, row in zip(owners, found, strict=True)) == sorted(of_records)


def ids(decoded: DecodeResult) -> list[int | None]:
    return [number for batch in decoded.batches for number in batch.column("id").to_pylist()]


@pytest.mark.parametrize(
    ("several", "good", "bad", "place"),
    [
        ("array", b'[{"id":1}, {"id":2,"x":[{}]}]', b'[{"id":3},{"id":4},{"id":"x"},{"id":"y"}]', "element [2]"),
        ("lines", b'{"id":1}\r\n\n{"id":2}\n', b'{"id":3}\n\n{"id":4}\n{"id":"x"}\n{"id":"y"}', "line 4"),
    ],
)
def test_decode_when_an_object_does_not_fit_then_its_record_is_one_reject(
    several: Several, good: bytes, bad: bytes, place: str
) -> None:
    decoder = SeveralDecoder(ID, several)
    decoded = decoder.decode([good, bad, good])
    assert ids(decoded) == [1, 2, 1, 2]
    assert decoded.records_of_rows([good, bad, good]).tolist() == [0, 0, 2, 2]
    (reject,) = decoded.rejects
    assert (reject.row, reject.column, reject.record) == (1, "id", bad)
    assert reject.reason == f"{place}: 'x' is not a number, but the type is int"
    assert decoder.check(bad) == decoder.decode([bad]).rejects[0]
    assert decoder.check(good) is None


def test_decode_when_records_have_no_objects_then_only_an_empty_array_is_no_reject() -> None:
    decoded = SeveralDecoder(ID, "array").decode([b"[]", b" [ ] ", b"", b"[{}, null]", b"[] x"])
    assert [(reject.row, reject.reason) for reject in decoded.rejects] == [
        (2, "record is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (3, "element [1] is not an object"),
        (4, "record is not JSON: Extra data: line 1 column 4 (char 3)"),
    ]
    assert decoded.rows == 0
    decoded = SeveralDecoder(ID, "lines").decode([b"\n", b"", b" \r\n"])
    assert [reject.reason for reject in decoded.rejects] == ["record has no JSON object"] * 3
    assert decoded.rows == 0
    assert SeveralDecoder(ID, "array").decode([]).rows == 0


def test_decode_when_tombstones_are_among_records_then_indexes_are_those_of_all_values() -> None:
    values = [None, b'[{"id":1}]', None, b"x", b'[{"id":2},{"id":3}]']
    decoded = SeveralDecoder(ID, "array", tombstones="skip").decode(values)
    assert (ids(decoded), decoded.skipped) == ([1, 2, 3], 2)
    assert decoded.records_of_rows(values).tolist() == [1, 4, 4]
    assert [reject.row for reject in decoded.rejects] == [3]
    decoded = SeveralDecoder(ID, "array", tombstones="null_row").decode([None, *values])
    assert (ids(decoded), decoded.skipped) == ([1, 2, 3, None, None, None], 0)
    assert decoded.records_of_rows([None, *values]).tolist() == [2, 5, 5, 0, 1, 3]
    decoded = SeveralDecoder(ID, "array", tombstones="stop").decode(values)
    assert [reject.row for reject in decoded.rejects] == [0, 2, 3]
    decoded = SeveralDecoder(ID, "array", tombstones="skip").decode([None])
    assert (decoded.rows, decoded.skipped) == (0, 1)


@pytest.mark.parametrize("value", [*MALFORMED_ARRAYS, *(value for value in MALFORMED if value != b"[]")])
def test_decode_when_a_record_is_no_array_of_objects_then_it_is_a_reject_and_the_others_are_rows(value: bytes) -> None:
    decoded = SeveralDecoder(columns_of(a="string"), "array").decode([b'[{"a":1}]', value, b'[{"a":2},{}]'])
    assert [reject.row for reject in decoded.rejects] == [1]
    assert decoded.rows == 3


@pytest.mark.parametrize("records", ["array", "lines"])
def test_decoder_when_objects_are_in_envelopes_then_paths_refer_to_each_of_them(records: Several) -> None:
    events = [{"op": "c", "after": {"id": 1}, "n": 5}, {"payload": {"op": "r", "after": {"id": 2}, "n": 6}}]
    texts = [json.dumps(event) for event in events]
    value = ("\n".join(texts) if records == "lines" else f"[{','.join(texts)}]").encode()
    update = value.replace(b'"r"', b'"u"')
    decoder: Decoder = JsonOptions(records=records, envelope="debezium", fields={"n": "$.n"}).decoder(
        columns_of(id="int", n="int")
    )
    decoded = decoder.decode([value, update])
    assert [row for batch in decoded.batches for row in batch.to_pylist()] == [{"id": 1, "n": 5}, {"id": 2, "n": 6}]
    (reject,) = decoded.rejects
    assert (reject.row, reject.column) == (1, "")
    assert ": the record is an update (op 'u')" in reject.reason


def test_decode_when_arrays_exceed_a_piece_then_each_row_belongs_to_its_record() -> None:
    arrays = [[{"id": number, "x": "y" * (200 + number)} for number in range(40)] for _ in range(150)]
    values = [json.dumps(array).encode() for array in arrays]
    assert sum(map(len, values)) > 1 << 20
    values[50] = values[50][:-1]
    decoded = SeveralDecoder(ID, "array").decode(values)
    present = [index for index in range(150) if index != 50]
    assert ids(decoded) == [array["id"] for index in present for array in arrays[index]]
    assert decoded.records_of_rows(values).tolist() == [index for index in present for _ in range(40)]
    assert [reject.row for reject in decoded.rejects] == [50]
