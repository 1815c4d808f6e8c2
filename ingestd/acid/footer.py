"""A finished ORC file gets Hive's calendar and ACID metadata, which pyarrow and pyorc cannot write.

Invariant: only footer and PostScript change; rows, stripes and statistics stay where they are, and the file is on disk
(fsync) before the call returns.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

_PROLEPTIC_GREGORIAN = 2
# field numbers of orc_proto: PostScript, Footer, StripeInformation, UserMetadataItem
_PS_FOOTER_LENGTH, _PS_COMPRESSION, _PS_BLOCK_SIZE = 1, 2, 3
_FOOTER_STRIPES, _FOOTER_METADATA, _FOOTER_CALENDAR = 3, 5, 11
_STRIPE_ROWS = 5
_NONE, _ZLIB, _SNAPPY, _LZ4, _ZSTD = 0, 1, 2, 4, 5
# The header of an LZ4 frame of independent blocks up to 4 MiB without checksums, with the checksum of these two bytes.
_LZ4_FRAME = bytes.fromhex("04224d18607073")
_TAIL = 16 * 1024


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed file: rows in all stripes, bytes on disk."""

    rows: int
    bytes: int


def seal(path: Path, write_id: int, bucket: int) -> Sealed:
    """Patch the footer of a closed ORC file of one write id in place and fsync it; see `seal_shared`."""
    return _seal(path, bucket, lambda row: (write_id, row))


def seal_shared(path: Path, runs: Sequence[tuple[int, int]], bucket: int) -> Sealed:
    """Patch the footer of a closed ORC file in place and fsync it.

    `runs` has (write id, rows) of each transaction in file order; `bucket` is the bucket property of all rows.

    Adds `calendar` = PROLEPTIC_GREGORIAN (else Hive 4 shifts dates before 1582), `hive.acid.key.index` with the last
    key of each stripe, `hive.acid.stats`, `hive.acid.version` (OrcRecordUpdater). Raises OSError; ValueError if the
    file is no ORC file or its compression is not one of none, zlib, snappy, lz4, zstd.
    """
    ends = list(accumulate(rows for _, rows in runs))

    def key(row: int) -> tuple[int, int]:
        run = bisect_right(ends, row)
        return runs[run][0], row - (ends[run - 1] if run else 0)

    return _seal(path, bucket, key)


def _seal(path: Path, bucket: int, key: Callable[[int], tuple[int, int]]) -> Sealed:
    """`key` gives write id and rowId of a row by its place in the file."""
    with path.open("r+b") as file:
        post_script, footer, start = _read_tail(file)
        ends = _stripe_ends(footer)
        rows = ends[-1] if ends else 0
        last_keys = [key(end - 1) for end in ends]
        index = "".join(f"{write_id},{bucket},{row_id};" for write_id, row_id in last_keys)
        footer += _varint_field(_FOOTER_CALENDAR, _PROLEPTIC_GREGORIAN)
        footer += _item("hive.acid.key.index", index)
        footer += _item("hive.acid.stats", f"{rows},0,0")
        footer += _item("hive.acid.version", "2")
        tail = _pack(footer, post_script)
        file.seek(start)
        file.write(tail)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        return Sealed(rows, start + len(tail))


def _read_tail(file: BinaryIO) -> tuple[bytes, bytes, int]:
    """PostScript, plain footer and the footer's offset."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    tail = file.read()
    length = tail[-1] if tail else 0
    post_script = tail[-1 - length : -1]
    if not post_script.endswith(b"ORC"):
        raise ValueError(f"{file.name} is not a finished ORC file")
    fields = dict(_fields(post_script))
    footer_length = _number(fields, _PS_FOOTER_LENGTH)
    start = size - 1 - length - footer_length
    file.seek(start)
    return post_script, _unpack(file.read(footer_length), _number(fields, _PS_COMPRESSION)), start


def _number(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    if isinstance(value, int):
        return value
    raise ValueError(f"field {number} of the ORC tail is not a number")


def _unpack(chunks: bytes, compression: int) -> bytes:
    """Undo ORC's chunks: 3 bytes little endian, bit 0 = stored as it is, the rest = length."""
    if compression == _NONE:
        return chunks
    plain, position = b"", 0
    while position < len(chunks):
        header = int.from_bytes(chunks[position : position + 3], "little")
        body = chunks[position + 3 : position + 3 + (header >> 1)]
        plain += body if header & 1 else _inflate(body, compression)
        position += 3 + (header >> 1)
    return plain


def _inflate(body: bytes, compression: int) -> bytes:
    if compression == _ZLIB:
        return zlib.decompress(body, wbits=-15)
    if compression == _SNAPPY:
        size, _ = _varint(body, 0)
        return bytes(pa.Codec("snappy").decompress(body, size, asbytes=True))
    if compression == _ZSTD:
        return bytes(pa.CompressedInputStream(pa.BufferReader(body), "zstd").read())
    if compression == _LZ4:  # a bare block does not tell its plain size, a stream of framed ones does
        frame = _LZ4_FRAME + len(body).to_bytes(4, "little") + body + bytes(4)
        return bytes(pa.CompressedInputStream(pa.BufferReader(frame), "lz4").read())
    raise ValueError(f"ORC compression {compression} is not supported")


def _pack(footer: bytes, post_script: bytes) -> bytes:
    """Footer in chunks stored as they are, then the PostScript with the new length, then its own length."""
    fields = dict(_fields(post_script))
    if _number(fields, _PS_COMPRESSION) != _NONE:
        block = min(_number(fields, _PS_BLOCK_SIZE) or 262_144, (1 << 23) - 1)
        parts = [footer[at : at + block] for at in range(0, len(footer), block)]
        footer = b"".join((len(part) << 1 | 1).to_bytes(3, "little") + part for part in parts)
    rest = b"".join(raw for number, raw in _raw_fields(post_script) if number != _PS_FOOTER_LENGTH)
    new = _varint_field(_PS_FOOTER_LENGTH, len(footer)) + rest
    return footer + new + bytes([len(new)])


def _stripe_ends(footer: bytes) -> list[int]:
    """Rows up to the end of each stripe."""
    ends, rows = [], 0
    for number, value in _fields(footer):
        if number == _FOOTER_STRIPES and isinstance(value, bytes):
            rows += _number(dict(_fields(value)), _STRIPE_ROWS)
            ends.append(rows)
    return ends


def _item(name: str, value: str) -> bytes:
    body = _bytes_field(1, name.encode()) + _bytes_field(2, value.encode())
    return _bytes_field(_FOOTER_METADATA, body)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _encode(number << 3 | 2) + _encode(len(value)) + value


def _varint_field(number: int, value: int) -> bytes:
    return _encode(number << 3) + _encode(value)


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _spans(message: bytes) -> Iterator[tuple[int, int | bytes, int, int]]:
    """Each protobuf field: number, value, start and end in the message."""
    position = 0
    while position < len(message):
        start = position
        key, position = _varint(message, position)
        value: int | bytes
        if key & 7 == 0:
            value, position = _varint(message, position)
        else:
            size, position = _varint(message, position) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], position)
            value, position = message[position : position + size], position + size
        yield key >> 3, value, start, position


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    return ((number, value) for number, value, _, _ in _spans(message))


def _raw_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, message[start:end]) for number, _, start, end in _spans(message))
