"""Decodes and encodes the tail of an ORC file: its protobuf messages and the compressed chunks around them.

Invariant: fields that are not understood are preserved byte for byte.
Source: orc_proto.proto and the ORC specification, version 1.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

# PostScript.compression
NONE, ZLIB, SNAPPY, LZ4, ZSTD = 0, 1, 2, 4, 5
# Field numbers of PostScript.
_FOOTER_LENGTH, _COMPRESSION, _BLOCK_SIZE = 1, 2, 3
_DEFAULT_BLOCK_SIZE = 262_144
_MAX_CHUNK = (1 << 23) - 1
# The header of an LZ4 frame with independent blocks of up to 4 MiB and without checksums. Its last byte is the checksum
# of the two bytes before it.
_LZ4_FRAME = bytes.fromhex("04224d18607073")
_TAIL = 16 * 1024


def read_tail(file: BinaryIO) -> tuple[bytes, bytes, int]:
    """Return the PostScript, the decompressed footer and the footer's offset.

    Raises OSError, and ValueError if the file does not end with an ORC PostScript or its compression is not supported.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    tail = file.read()
    length = tail[-1] if tail else 0
    post_script = tail[-1 - length : -1]
    if not post_script.endswith(b"ORC"):
        raise ValueError(f"{file.name} is not a complete ORC file")
    values = dict(fields(post_script))
    footer_length = number(values, _FOOTER_LENGTH)
    start = size - 1 - length - footer_length
    file.seek(start)
    return post_script, decompress(file.read(footer_length), number(values, _COMPRESSION)), start


def encode_tail(footer: bytes, post_script: bytes) -> bytes:
    """Return the footer in uncompressed chunks, the PostScript with the footer's new length, and the length byte."""
    values = dict(fields(post_script))
    if number(values, _COMPRESSION) != NONE:
        block = min(number(values, _BLOCK_SIZE) or _DEFAULT_BLOCK_SIZE, _MAX_CHUNK)
        parts = [footer[at : at + block] for at in range(0, len(footer), block)]
        footer = b"".join((len(part) << 1 | 1).to_bytes(3, "little") + part for part in parts)
    rest = b"".join(raw for key, raw in _raw_fields(post_script) if key != _FOOTER_LENGTH)
    new = varint_field(_FOOTER_LENGTH, len(footer)) + rest
    return footer + new + bytes([len(new)])


def decompress(chunks: bytes, compression: int) -> bytes:
    """Decompress a sequence of ORC chunks.

    A chunk has a little-endian header of 3 bytes: bit 0 is set if the chunk is stored uncompressed, and the other bits
    contain its length. Raises ValueError for a compression other than those named in this module.
    """
    if compression == NONE:
        return chunks
    plain, position = b"", 0
    while position < len(chunks):
        header = int.from_bytes(chunks[position : position + 3], "little")
        body = chunks[position + 3 : position + 3 + (header >> 1)]
        plain += body if header & 1 else _decompress_chunk(body, compression)
        position += 3 + (header >> 1)
    return plain


def _decompress_chunk(body: bytes, compression: int) -> bytes:
    if compression == ZLIB:
        return zlib.decompress(body, wbits=-15)
    if compression == SNAPPY:
        size, _ = _varint(body, 0)
        return bytes(pa.Codec("snappy").decompress(body, size, asbytes=True))
    if compression == ZSTD:
        return bytes(pa.CompressedInputStream(pa.BufferReader(body), "zstd").read())
    if compression == LZ4:  # A raw block does not record its decompressed size, so it is wrapped in a frame.
        frame = _LZ4_FRAME + len(body).to_bytes(4, "little") + body + bytes(4)
        return bytes(pa.CompressedInputStream(pa.BufferReader(frame), "lz4").read())
    raise ValueError(f"ORC compression {compression} is not supported")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Iterate over the fields of a message as (field number, value). A varint is an int; any other value is bytes."""
    return ((key, value) for key, value, _, _ in _spans(message))


def number(values: dict[int, int | bytes], key: int) -> int:
    """Return the integer field `key`, or 0 if it is absent. Raises ValueError if it is not an integer."""
    value = values.get(key, 0)
    if isinstance(value, int):
        return value
    raise ValueError(f"field {key} of the ORC tail is not an integer")


def bytes_field(key: int, value: bytes) -> bytes:
    """Encode a field that contains bytes, text or a nested message."""
    return _encode(key << 3 | 2) + _encode(len(value)) + value


def varint_field(key: int, value: int) -> bytes:
    """Encode an integer field."""
    return _encode(key << 3) + _encode(value)


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
    """Yield each field as (number, value, start, end); start and end are offsets in the message."""
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


def _raw_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    return ((key, message[start:end]) for key, _, start, end in _spans(message))
