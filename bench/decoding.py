"""`python -m bench.decoding` measures the CPU time of decoding, without Kafka, Spark and files.

For each shape of `bench.records`, batches of 20,000 records or 16 MB are decoded in one process: the clean records, and
twins of them. In `misfit`, 1 % of the records have a text as their id that is not a number. In `cut`, 1 % of them end
early. In `spelled`, 1 % of them have the id twice, in two spellings. In `scattered`, every fifth record has one of
several faults. In `surrogates`, all records have an unpaired surrogate in a field that is a column. In `others`, each
also has a field that is not a column: an object with a name of its own. In `capitals`, each has a field that is not a
column, and all names begin with a capital. In `inside` of the nested shape, all records have a number in an array that
does not fit. In `all_misfit`, `all_large` and `all_cut`, no record can be stored: all have a text as their id, an id of
20 digits, or end early. In `all_late` of the flat shape, all have a time that does not exist, and in `far`, 99 % of
them are in the year 3000 and the others are no times. The flat and the nested shape are also decoded from Protobuf
messages. The flat shape is also decoded from delimited text and CSV, with twins that contain line ends, and from change
events with their schema, with a twin whose amount is a decimal in Base64. In the twin of `json_text`, the objects
contain escape sequences. Each time is the best of several runs, so that other processes of the machine matter little.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench import protobuf
from bench.records import FLAT, SHAPES, Shape, is_reject, misfit
from ingestd.formats.csv import CsvOptions
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.record_decoder import RecordDecoder
from ingestd.schema import Column, HiveType

_JSON = tuple(shape for shape in SHAPES if shape.format == "json" and not shape.has_rejects and not shape.sql)

_RECORDS, _BYTES = 20_000, 16_000_000
_NAME = re.compile(rb'"[a-z](?=\w*":)')  # its quote and first letter
_TEXT = re.compile(rb'("(?:note|name|t0|payload|trace|created|body)":[^"]*")')  # behind its opening quote


def main() -> None:
    """Run the benchmark and print a line for each shape."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoding", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="batches of each kind; the fastest is printed")
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in _JSON], help="default: all")
    arguments = parser.parse_args()
    for shape in _JSON:
        if not arguments.shape or shape.name in arguments.shape:
            print(_measure(shape, arguments.runs), flush=True)
    if not arguments.shape or FLAT.name in arguments.shape:
        print(_measure_texts(arguments.runs), flush=True)
        print(_measure_events(arguments.runs), flush=True)


def _measure(shape: Shape, runs: int) -> str:
    columns = shape.all_columns()
    clean = [shape.record(number) for number in range(min(_RECORDS, _BYTES // shape.size))]
    misfits = [misfit(value) if is_reject(number) else value for number, value in enumerate(clean)]
    cut = [value[:-1] if is_reject(number) else value for number, value in enumerate(clean)]
    others = [b'{"other":{"k%d":"\\u0431"},%s' % (number, value[1:]) for number, value in enumerate(clean)]
    spelled = [b'{"ID":5,' + value[1:] if is_reject(number) else value for number, value in enumerate(clean)]
    scattered = [_faulty(number, value) if number % 5 == 2 else value for number, value in enumerate(clean)]
    surrogates = [_TEXT.sub(rb"\1\\ud800", value, count=1) for value in clean]
    twins = {"misfit": misfits, "cut": cut, "spelled": spelled, "scattered": scattered, "surrogates": surrogates}
    twins["others"] = others
    twins["all_misfit"] = [misfit(value) for value in clean]
    twins["all_large"] = [misfit(value).replace(b'"x"', b"9" * 20, 1) for value in clean]
    twins["all_cut"] = [value[:-1] for value in clean]
    if shape is FLAT:
        twins["all_late"] = [re.sub(rb" [0-9]{2}:", b" 25:", value, count=1) for value in clean]
        twins["far"] = [_far(number, value) for number, value in enumerate(clean)]
    twins["capitals"] = [_NAME.sub(lambda name: name[0].upper(), b'{"other":1,' + value[1:]) for value in clean]
    if shape.name == "nested":
        twins["inside"] = [value.replace(b'"count":', b'"count":0.1', 1) for value in clean]
    if shape.name == "json_text":
        twins["escaped"] = [value.replace(b'"home"', b'"h\\u00f6me"') for value in clean]
    line = _compare(shape.name, JsonOptions().decoder(columns), clean, twins, runs)
    if shape.name in protobuf.SHAPES:
        line += f"\n{shape.name} in Protobuf: {protobuf.measure(columns, clean, runs)}"
    return line


def _far(number: int, value: bytes) -> bytes:
    """Return the record with a time in the year 3000, or with a text that is no time."""
    return re.sub(rb'"[0-9]{4}(-[0-9-]+ [0-9:.]+")', rb'"x\1' if is_reject(number) else rb'"3000\1', value, count=1)


def _faulty(number: int, value: bytes) -> bytes:
    """Return the record with one of several faults."""
    faulty = (misfit(value), value[:-1], value + b" x", value + value, b"null", b'{"other":1}')
    return faulty[number // 5 % len(faulty)]


def _measure_texts(runs: int) -> str:
    columns = FLAT.all_columns()
    names = tuple(column.name for column in columns)
    rows = [list(json.loads(FLAT.record(number)).values()) for number in range(_RECORDS)]
    texts = [[str(value).lower() if isinstance(value, bool) else str(value) for value in row] for row in rows]
    delimited, csv = ([delimiter.join(fields).encode() for fields in texts] for delimiter in "\1,")
    inside = {"line ends": [value.replace(b" fox ", b"\nfox\n") for value in delimited]}
    behind = {"line ends": [value + b"\r\n" for value in csv]}
    first = _compare("delimited", DelimitedOptions(fields=names).decoder(columns), delimited, inside, runs)
    return f"{first}\n{_compare('csv', CsvOptions(fields=names).decoder(columns), csv, behind, runs)}"


def _measure_events(runs: int) -> str:
    columns = [column for column in FLAT.all_columns() if column.name != "amount"]
    columns.append(Column("amount", HiveType.parse("decimal(10,2)")))
    rows = [json.loads(FLAT.record(number)) for number in range(_RECORDS)]
    decimals = [{**row, "amount": _unscaled(round(row["amount"] * 100))} for row in rows]
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    events = [_event({"type": "double"}, row) for row in rows]
    twin = {"decimals": [_event(kind, row) for row in decimals]}
    return _compare("events", JsonOptions(envelope="debezium").decoder(columns), events, twin, runs)


def _event(amount: dict[str, Any], row: dict[str, Any]) -> bytes:
    kinds = {name: {"type": "string", "optional": True} for name in row} | {"amount": amount}
    struct = {"type": "struct", "fields": [{"field": name, **kind} for name, kind in kinds.items()]}
    fields = [{"field": "before", **struct}, {"field": "after", **struct}, {"field": "op", "type": "string"}]
    schema = {"type": "struct", "name": "shop.orders.Envelope", "fields": fields}
    return json.dumps({"schema": schema, "payload": {"before": None, "after": row, "op": "c"}}).encode()


def _unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def _compare(
    name: str, decoder: RecordDecoder, clean: Sequence[bytes], twins: Mapping[str, Sequence[bytes]], runs: int
) -> str:
    base = _microseconds(decoder, clean, runs)
    ratios = " ".join(f"{twin} {_microseconds(decoder, values, runs) / base:.1f}" for twin, values in twins.items())
    return f"{name}: {base:.2f} us per clean record; times as long: {ratios}"


def _microseconds(decoder: RecordDecoder, values: Sequence[bytes], runs: int) -> float:
    decoder.decode(values)  # it learns how the fields are spelled
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        decoder.decode(values)
        best = min(best, time.process_time() - begin)
    return best / len(values) * 1e6


if __name__ == "__main__":
    main()
