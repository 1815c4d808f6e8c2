"""`python -m bench.decoding` measures the CPU time of decoding, without Kafka, Spark and files.

For each shape of `bench.records`, batches of 20,000 records or 16 MB are decoded in one process: the clean records, and
twins of them. In `misfit`, 1 % of the records have a text as their id that is not a number. In `cut`, 1 % of them end
early. In `others`, each also has a field that is not a column: an object with a name of its own. The flat and the
nested shape are also decoded from Protobuf messages. Each time is the best of several runs, so that other processes of
the machine matter little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from bench import protobuf
from bench.records import SHAPES, Shape, is_reject, misfit
from ingestd.formats.json.options import JsonOptions
from ingestd.schema import Column

_JSON = tuple(shape for shape in SHAPES if shape.format == "json" and not shape.has_rejects and not shape.sql)

_RECORDS, _BYTES = 20_000, 16_000_000


def main() -> None:
    """Run the benchmark and print a line for each shape."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoding", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="batches of each kind; the fastest is printed")
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in _JSON], help="default: all")
    arguments = parser.parse_args()
    for shape in _JSON:
        if not arguments.shape or shape.name in arguments.shape:
            print(_measure(shape, arguments.runs), flush=True)


def _measure(shape: Shape, runs: int) -> str:
    columns = shape.all_columns()
    clean = [shape.record(number) for number in range(min(_RECORDS, _BYTES // shape.size))]
    misfits = [misfit(value) if is_reject(number) else value for number, value in enumerate(clean)]
    cut = [value[:-1] if is_reject(number) else value for number, value in enumerate(clean)]
    others = [b'{"other":{"k%d":"\\u0431"},%s' % (number, value[1:]) for number, value in enumerate(clean)]
    times = [_microseconds(columns, values, runs) for values in (clean, misfits, cut, others)]
    names = ("misfit", "cut", "others")
    ratios = " ".join(f"{name} {one / times[0]:.1f}" for name, one in zip(names, times[1:], strict=True))
    line = f"{shape.name}: {times[0]:.2f} us per clean record; times as long: {ratios}"
    if shape.name in protobuf.SHAPES:
        line += f"\n{shape.name} in Protobuf: {protobuf.measure(columns, clean, runs)}"
    return line


def _microseconds(columns: Sequence[Column], values: Sequence[bytes], runs: int) -> float:
    decoder = JsonOptions().decoder(columns)
    decoder.decode(values)  # it learns how the fields are spelled
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        decoder.decode(values)
        best = min(best, time.process_time() - begin)
    return best / len(values) * 1e6


if __name__ == "__main__":
    main()
