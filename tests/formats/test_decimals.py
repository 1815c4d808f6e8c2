"""Decimals of any size are decoded exactly or rejected."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats import JsonDecoder
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.json.framing import unsafe_lines
from ingestd.schema import Column, HiveType
from tests.support.avro import SCALED_DECIMAL, encode, schema_of

digits = st.text("0123456789", min_size=1, max_size=50).map(lambda text: text.lstrip("0") or "0")
numbers = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(st.just(""), digits.map(lambda text: f".{text}")),
    st.one_of(st.just(""), st.integers(0, 60).map(lambda power: f"e{power}"), st.just("E+7")),
)

# Integers of 16 bytes, most of which have few digits before their zeros.
unscaled = st.one_of(
    st.builds(lambda number, zeros: number * 10**zeros, st.integers(-(10**9), 10**9), st.integers(0, 29)),
    st.integers(-(2**127), 2**127 - 1),
)


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize(("precision", "scale"), [(38, 20), (38, 0), (38, 38), (30, 10), (10, 2)])
@settings(deadline=None)
@given(given_numbers=st.lists(numbers, min_size=1, max_size=5))
def test_decode_when_decimal_is_arbitrary_then_is_exact_or_rejected(
    precision: int, scale: int, quote: str, given_numbers: list[str]
) -> None:
    decoder = JsonDecoder([Column("c", HiveType.parse(f"decimal({precision},{scale})"))])

    decoded = decoder.decode([f'{{"c":{quote}{number}{quote}}}'.encode() for number in given_numbers])

    rejected = {reject.row for reject in decoded.rejects}
    stored = iter([value for batch in decoded.batches for value in batch.column(0).to_pylist()])
    with localcontext() as context:
        context.prec = 200
        for row, number in enumerate(given_numbers):
            exact = Decimal(number)
            fits = abs(exact) < Decimal(10) ** (precision - scale) and exact % Decimal((0, (1,), -scale)) == 0
            assert (row not in rejected) == fits, number
            if fits:
                assert next(stored) == exact


@pytest.mark.parametrize("kind", ["decimal(38,20)", "decimal(38,0)", "decimal(38,38)", "decimal(10,2)", "decimal(1,0)"])
@settings(deadline=None)
@given(decimals=st.lists(st.tuples(unscaled, st.integers(-76, 76)), min_size=1, max_size=9))
def test_decode_when_a_batch_of_decimals_has_some_that_do_not_fit_then_exactly_these_are_rejected(
    kind: str, decimals: list[tuple[int, int]]
) -> None:
    hive = HiveType.parse(kind)
    schema = schema_of({"c": SCALED_DECIMAL})
    decoder = AvroOptions(framing="none", schemas=(schema,)).decoder([Column("c", hive)])
    values = [
        encode(schema, {"c": {"scale": scale, "value": number.to_bytes(16, "big", signed=True)}})
        for number, scale in decimals
    ]

    decoded = decoder.decode(values)

    rejected = {reject.row for reject in decoded.rejects}
    stored = iter([value for batch in decoded.batches for value in batch.column(0).to_pylist()])
    with localcontext() as context:
        context.prec = 200
        for row, (number, scale) in enumerate(decimals):
            exact = Decimal(number).scaleb(-scale)
            shifted = exact.scaleb(hive.scale)
            fits = abs(shifted) < Decimal(10) ** hive.precision and shifted % 1 == 0
            assert (row not in rejected) == fits, (number, scale)
            if fits:
                assert next(stored) == exact


def test_decode_when_decimal_needs_more_than_38_digits_then_rejects() -> None:
    decoder = JsonDecoder([Column("c", HiveType.parse("decimal(38,20)"))])

    decoded = decoder.decode([b'{"c":1189421613997509613819766062}'])

    assert decoded.batches == [] or decoded.rows == 0
    assert [reject.column for reject in decoded.rejects] == ["c"]


@pytest.mark.parametrize(
    ("text", "scale", "large"),
    [
        (b'{"a":"3e5f1b7c-9e21","c":1.5}', 2, False),
        (b'{"c":15e3}', 2, False),
        (b'{"c":1.2345678E7}', 2, False),
        (b'{"c":1.5E+30}', 9, True),
        (b'{"c":1e-39}', 2, True),
        (b'{"c":0.' + b"0" * 40 + b"1}", 2, True),
        (b'{"c":' + b"1" * 36 + b"}", 2, False),
        (b'{"c":' + b"1" * 37 + b"}", 2, True),
        (b'{"c":"' + b"1" * 20 + b'"}', 19, True),
        (b'{"c":0.5}', 38, True),
    ],
)
def test_unsafe_lines_when_there_are_numbers_or_identifiers_then_are_those_with_large_numbers(
    text: bytes, scale: int, large: bool
) -> None:
    others = [b'{"c":null}'] * 3
    assert unsafe_lines(b"\n".join([*others, text, *others, text]), scale).tolist() == [3, 7] * large
