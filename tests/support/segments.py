"""Changes batches of records in the log of a broker, as a bad disk or a foreign producer would."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.stack import Stack

_HEADER = struct.Struct(">qi")  # the first offset of a batch, and its length without these two fields
_ATTRIBUTES = 22  # the position of the byte with the compression codec in its lowest three bits
_UNKNOWN_CODEC = 6
# The positions of the first byte behind the checksum, of the timestamp of the first record, and of the latest one.
_CHECKED, _BASE_TIMESTAMP, _MAX_TIMESTAMP = 21, 27, 35


def flip_last_bits(stack: Stack, topic: str, partition: int, offset: int) -> None:
    """Flip the bits of a byte of the last value of the batch that begins at `offset`."""
    log, _, end = _batch(stack, topic, partition, offset)
    _write(log, end - 3, log.read_bytes()[end - 3] ^ 0xFF)


def set_unknown_codec(stack: Stack, topic: str, partition: int, offset: int) -> None:
    """Make the batch that begins at `offset` one of an unknown compression codec. Its checksum is wrong then, too."""
    log, batch, _ = _batch(stack, topic, partition, offset)
    _write(log, batch + _ATTRIBUTES, log.read_bytes()[batch + _ATTRIBUTES] & ~7 | _UNKNOWN_CODEC)


def set_timestamp(stack: Stack, topic: str, partition: int, offset: int, milliseconds: int) -> None:
    """Set the timestamp of the only record of the batch at `offset`. -1 is none. The client cannot write 0 or none."""
    log, batch, end = _batch(stack, topic, partition, offset)
    checked = bytearray(log.read_bytes()[batch + _CHECKED : end])
    for position in (_BASE_TIMESTAMP, _MAX_TIMESTAMP):
        struct.pack_into(">q", checked, position - _CHECKED, milliseconds)
    with log.open("r+b") as file:
        file.seek(batch + _CHECKED - 4)
        file.write(struct.pack(">I", _crc32c(bytes(checked))) + checked)


def _crc32c(data: bytes) -> int:
    """Return the CRC-32C of RFC 3720, which a batch contains."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


def _batch(stack: Stack, topic: str, partition: int, offset: int) -> tuple[Path, int, int]:
    """Return the log of a partition, and the first and the last position, exclusive, of the batch."""
    [log] = Path(stack.addresses.state_dir).glob(f"data/kafka/**/{topic}-{partition}/{0:020d}.log")
    content, position = log.read_bytes(), 0
    while position < len(content):
        first, length = _HEADER.unpack_from(content, position)
        end = position + _HEADER.size + length
        if first == offset:
            return log, position, end
        position = end
    raise AssertionError(f"{log} has no batch at offset {offset}")


def _write(log: Path, position: int, value: int) -> None:
    with log.open("r+b") as file:
        file.seek(position)
        file.write(bytes([value]))
