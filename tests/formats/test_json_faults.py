"""Batches in which few records have faults have the same rows and reasons as records that are decoded one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.formats import JsonDecoder
from ingestd.formats.decoder import RejectError
from ingestd.formats.json.arrow_reader import ArrowReader
from ingestd.formats.row_batches import RowBatches
from tests.support.decoding import columns_of, in_order

MANY = settings(max_examples=125, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FAULTS = [
    '{"id":"x"}', '{"id":5.0}', '{"id":"7"}', '{"id":true}', '{"id":[1]}', '{"id":99999999999999999999}',
    '{"ts":5}', '{"ts":""}', '{"ts":"2026-02-30"}', '{"ts":"2026-01-02T03Z"}', '{"amount":1e2}', '{"amount":1.234}',
    '{"amount":"a"}', '{"amount":123456789.1}', '{"ratio":1e400}', '{"ratio":"NaN"}', '{"ratio":NaN}',
    '{"flag":"TRUE"}', '{"flag":1}', '{"note":17.50}', '{"note":{"a":[1]}}', '{"note":"\\ud800"}', '{"note":"\\x"}',
    '{"note":"\t"}',
    '{"note":"\x01"}', '{"short":"abcdef"}', '{"id":1', '{"id":1} x', '[{"id":1}]', "", "{", "}", "{}", "null{}",
    "\ufeff{}", '{"id":1}\r\n', ' {"id":1}', '{"id":\n1}', '{"note":"a\nb"}', '{"id":1}\n{"id":2}', '{"id":1}{"id":2}',
    '{"x":null{}}', '{"note":' + "[" * 250 + "]" * 250 + "}", '{"Id":3}', '{"id":1,"id":2}', '{"other":{"id":"x"}}',
    '{"id" : "x"}',
]  # fmt: skip
SOUND = '{"id":%d,"ts":"2026-11-21 10:00:00.%03d","amount":1.5,"ratio":0.25,"flag":true,"note":"n %d","short":"abc"}'


@MANY
@given(
    st.lists(st.sampled_from(FAULTS).map(str.encode) | st.just(b'{"note":"\xff"}'), min_size=1, max_size=9), st.data()
)
def test_decode_when_few_records_have_faults_then_rows_and_reasons_are_those_of_each_record(
    faults: list[bytes], data: st.DataObject
) -> None:
    columns = columns_of(
        id="bigint", ts="timestamp", amount="decimal(10,2)", ratio="double", flag="boolean", note="string",
        short="varchar(5)",
    )  # fmt: skip
    decoder = JsonDecoder(columns)
    for _ in range(2):  # the decoder has learned from the first batch
        values = [(SOUND % (number, number, number)).encode() for number in range(data.draw(st.integers(1, 200)))]
        for fault in faults:
            values.insert(data.draw(st.integers(0, len(values))), fault)
        rows: list[Any] = []
        rejects = []
        for index, value in enumerate(values):
            one = JsonDecoder(columns)
            try:
                row = one.decode_record(value)
            except RejectError as error:
                rejects.append((index, error.column, error.reason))
            else:
                rows.append(tuple(row))
        decoded = decoder.decode(values)
        assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == rejects
        expected = RowBatches(columns)
        for row in rows:
            expected.add_row(row)
        found = [row for batch in decoded.batches for row in batch.to_pylist()]
        assert repr(in_order(decoded, found)) == repr([row for batch in expected.close() for row in batch.to_pylist()])


def test_read_when_few_records_have_a_fault_then_only_these_are_undecided() -> None:
    columns = columns_of(
        id="bigint", ts="timestamp", amount="decimal(10,2)", ratio="double", flag="boolean", note="string",
        short="varchar(5)",
    )  # fmt: skip
    faults = [
        '{"id":"x"}', '{"id":5.5}', '{"ts":5}', '{"ts":"2026-02-30"}', '{"amount":1.234}', '{"amount":"a"}',
        '{"ratio":1e400}', '{"ratio":NaN}', '{"flag":1}', '{"note":17.50}', '{"note":{"a":[1]}}', '{"note":"\\ud800"}',
        '{"note":"\\x"}', '{"note":"\t"}', '{"short":"abcdef"}', '{"id":1', '{"id":1} x', "", "null{}", "\ufeff{}",
    ]  # fmt: skip
    for fault in faults:
        values = [(SOUND % (number, number, number)).encode() for number in range(200)]
        values[50] = values[150] = fault.encode()
        _, undecided = ArrowReader(columns).read(values)
        assert undecided.nonzero()[0].tolist() == [50, 150], fault
