"""`python -m bench.sharing` measures what mappings that divide a topic by `where` would gain by reading it once.

One process does what a task does: it reads records from Kafka; reads and decodes them; and also writes them to ORC
files. The CPU time of each includes the threads of the Kafka client, but not the broker. Mappings that share the read,
or also the decoded rows, save this part of all but one of them. The cost of `where` is left out, so that the printed
savings are upper bounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.records import SHAPES, Shape
from ingestd.acid import routing
from ingestd.acid.encoding import Encoding
from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.formats.json.options import JsonOptions
from ingestd.kafka.producer import create_topic, produce
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import Batch, read
from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.schema import Column, HiveType
from ingestd.storage.local import LocalStorage

_MAPPINGS = (2, 4)


def main() -> None:
    """Run the benchmark and print the CPU time per record of each part, and the savings."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000, help="records in each topic")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind; the fastest is printed")
    parser.add_argument("--shape", action="append", choices=["flat", "wide", "nested"], help="default: all of these")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        box = Sandbox(SandboxOptions(state_dir=Path(home) / "sandbox"))
        try:
            servers = box.up().kafka
            for shape in SHAPES:
                if shape.name in (arguments.shape or ["flat", "wide", "nested"]):
                    print(_measure(shape, servers, Path(home), arguments.records, arguments.runs), flush=True)
        finally:
            box.down()


def _measure(shape: Shape, servers: str, folder: Path, count: int, runs: int) -> str:
    create_topic(servers, shape.name, 1)
    produce(servers, shape.name, map(shape.record, range(count)), lambda _more: None)
    record = HiveType.parse(f"struct<{_fields(shape.columns)}>")
    columns = tuple(Column(name, kind) for name, kind in zip(record.names, record.children, strict=True))
    decoder = JsonOptions().decoder(columns)

    def batches() -> Iterable[Batch]:
        return read({"bootstrap.servers": servers}, [OffsetRange(shape.name, 0, 0, count)])

    def decoded() -> Iterable[pa.RecordBatch]:
        for batch in batches():
            yield from decoder.decode(batch.values).batches

    reading = _microseconds(count, runs, lambda: _consume(batches()))
    decoding = _microseconds(count, runs, lambda: _consume(decoded())) - reading
    writing = [
        _microseconds(count, runs, lambda parts=parts: _write(decoded(), columns, folder, parts))  # type: ignore[misc]
        - reading
        - decoding
        for parts in (1, *_MAPPINGS)
    ]
    line = f"{shape.name}: reading {reading:.2f} us per record, decoding {decoding:.2f} us, writing {writing[0]:.2f} us"
    for mappings, part in zip(_MAPPINGS, writing[1:], strict=True):
        whole = mappings * (reading + decoding + part)
        saved = [(mappings - 1) * part / whole for part in (reading, reading + decoding)]
        line += (
            f"; {mappings} mappings with 1/{mappings} of the rows each save at most {saved[0]:.0%} by one read,"
            f" {saved[1]:.0%} if they also share the decoded rows"
        )
    return line


def _fields(columns: str) -> str:
    """Return the fields of a struct for columns in DDL, whose types may contain commas."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return ",".join(part.strip().replace(" ", ":", 1) for part in parts)


def _microseconds(count: int, runs: int, function: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        function()
        best = min(best, time.process_time() - begin)
    return best / count * 1e6


def _consume(items: Iterable[object]) -> None:
    for _ in items:
        pass


def _write(batches: Iterable[pa.RecordBatch], columns: tuple[Column, ...], folder: Path, parts: int) -> None:
    """Write each `parts`-th row to ORC files, and remove them."""
    shape = routing.Shape(columns, (), None, Encoding())
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        files = StagingFiles(LocalStorage().outbox(directory, "rows"), columns, write_id=1, encoding=shape.encoding)
        pool = WriterPool(files)
        for batch in batches:
            chosen = pc.equal(pc.bit_wise_and(batch.column("id"), parts - 1), 0)
            for part in routing.route(batch.filter(chosen), shape, ()):
                pool.add(part.partition, part.bucket, part.rows)
        pool.close()


if __name__ == "__main__":
    main()
