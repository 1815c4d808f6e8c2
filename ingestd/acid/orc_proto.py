"""Decodes and encodes the metadata of an ORC file: its protobuf messages and the compressed chunks around them.

Invariant: fields that are not understood are preserved byte for byte.
Source: orc_proto.proto and the ORC specification, version 1.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import pyarrow as pa

# PostScript.compression
NONE, ZLIB, SNAPPY, LZ4, ZSTD = 0, 1, 2, 4, 5
_CODECS = {SNAPPY: "snappy", LZ4: "lz4_raw", ZSTD: "zstd"}
# Field numbers of PostScript.
_FOOTER_LENGTH, _COMPRESSION, _BLOCK_SIZE, _METADATA_LENGTH = 1, 2, 3, 5
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


def read_metadata(file: BinaryIO, post_script: bytes, footer_start: int) -> bytes:
    """Return the decompressed metadata, the section before the footer. Raises the same errors as `read_tail`."""
    values = dict(fields(post_script))
    length = number(values, _METADATA_LENGTH)
    file.seek(footer_start - length)
    return decompress(file.read(length), number(values, _COMPRESSION))


def encode_tail(footer: bytes, post_script: bytes, metadata: bytes | None = None) -> bytes:
    """Return the footer, the PostScript with the footer's new length, and the length byte.

    `metadata` is the section before the footer; None if the file keeps it.
    """
    footer = encode_chunks(footer, post_script)
    numbers, before = {_FOOTER_LENGTH: len(footer)}, b""
    if metadata is not None:
        before = encode_chunks(metadata, post_script)
        numbers[_METADATA_LENGTH] = len(before)
    new = with_numbers(post_script, numbers)
    return before + footer + new + bytes([len(new)])


def encode_chunks(message: bytes, post_script: bytes) -> bytes:
    """Return a message in chunks, as a file with this PostScript stores it. Raises ValueError as `decompress`."""
    values = dict(fields(post_script))
    compression = number(values, _COMPRESSION)
    if compression == NONE:
        return message
    block = min(number(values, _BLOCK_SIZE) or _DEFAULT_BLOCK_SIZE, _MAX_CHUNK)
    return b"".join(_chunk(message[at : at + block], compression) for at in range(0, len(message), block))


def decode_chunks(chunks: bytes, post_script: bytes) -> bytes:
    """Decompress a section of a file with this PostScript. Raises ValueError as `decompress`."""
    return decompress(chunks, number(dict(fields(post_script)), _COMPRESSION))


def decompress(chunks: bytes, compression: int) -> bytes:
    """Decompress a sequence of ORC chunks.

    A chunk has a little-endian header of 3 bytes: bit 0 is set if the chunk is stored uncompressed, and the other bits
    contain its length. Raises ValueError for a compression other than those named in this module.
    """
    if compression == NONE:
        return chunks
    plain, position = io.BytesIO(), 0
    while position < len(chunks):
        header = int.from_bytes(chunks[position : position + 3], "little")
        body = chunks[position + 3 : position + 3 + (header >> 1)]
        plain.write(body if header & 1 else _decompress_chunk(body, compression))
        position += 3 + (header >> 1)
    return plain.getvalue()


def _chunk(plain: bytes, compression: int) -> bytes:
    """Return a chunk, which is compressed if that makes it smaller."""
    body = _compress(plain, compression)
    header = len(body) << 1 if len(body) < len(plain) else len(plain) << 1 | 1
    return header.to_bytes(3, "little") + (plain if header & 1 else body)


def _compress(plain: bytes, compression: int) -> bytes:
    if compression == ZLIB:
        deflate = zlib.compressobj(wbits=-15)
        return deflate.compress(plain) + deflate.flush()
    if compression not in _CODECS:
        raise ValueError(f"ORC compression {compression} is not supported")
    return bytes(pa.Codec(_CODECS[compression]).compress(plain, asbytes=True))


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


def map_field(message: bytes, key: int, change: Callable[[bytes], bytes]) -> bytes:
    """Return a message with each field `key`, which contains bytes, text or a message, replaced by its change."""
    return b"".join(
        bytes_field(key, change(value)) if field_key == key and isinstance(value, bytes) else message[start:end]
        for field_key, value, start, end in _spans(message)
    )


def with_numbers(message: bytes, numbers: Mapping[int, int]) -> bytes:
    """Return a message with these values of its integer fields."""
    new = b"".join(varint_field(key, value) for key, value in sorted(numbers.items()))
    return new + b"".join(raw for key, raw in raw_fields(message) if key not in numbers)


def raw_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Iterate over the fields of a message as (field number, encoded field)."""
    return ((key, message[start:end]) for key, _, start, end in _spans(message))


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
