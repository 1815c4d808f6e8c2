"""Sends each service a small request in its own protocol, because an open port does not show that it works.

Invariant: a probe returns within its timeout and never raises.
"""

from __future__ import annotations

import socket
import struct

from ingestd.hive.transport import GET_NAME
from ingestd.sandbox.ports import HOST

# A StreamRequest (type 6) of Spark's network protocol for a stream that does not exist, and the first bytes of the
# answer after its size: a StreamFailure (type 8) with the name of the stream.
_SPARK_STREAM = b"/files/-"
_SPARK_SIZE_BYTES = 8
_SPARK_REQUEST = struct.pack(">QBI8s", 21, 6, len(_SPARK_STREAM), _SPARK_STREAM)
_SPARK_FAILURE = struct.pack(">BI8s", 8, len(_SPARK_STREAM), _SPARK_STREAM)
_TIMEOUT_SECONDS = 5.0
_PIECE_BYTES = 4096
_METADATA, _VERSION_1 = 3, 1
_KAFKA_HEAD = struct.Struct(">iii")  # size, correlation id, number of brokers
# The first bytes of a reply of Thrift: version and type.
_REPLY = bytes.fromhex("80010002")
# TOpenSessionReq with client_protocol 9 (Hive 3 and 4). The session ends with its connection.
_OPEN_SESSION = struct.pack(">II11sI", 0x80010001, 11, b"OpenSession", 0) + bytes.fromhex("0c0001080001000000090000")
# The first bytes of the answer, up to status.statusCode = SUCCESS.
_SESSION_OPENED = struct.pack(">II11sI", 0x80010002, 11, b"OpenSession", 0) + bytes.fromhex(
    "0c00000c000108000100000000"
)

# As long as the header of Hadoop's protocol: the server reads no more, and a byte that it has not read when it closes
# the connection would turn the answer into a reset.
_HADOOP, _NOT_HADOOP = b"GET /\r\n", b"HTTP/1.1 404 Not Found"
_HTTP, _HTTP_ANSWER = b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 "


def kafka_answers(port: int) -> bool:
    """Return True when the answer to a Metadata request (version 1, no topics) lists at least one broker."""
    request = struct.pack(">hhihi", _METADATA, _VERSION_1, 1, -1, 0)
    answer = _ask(port, struct.pack(">i", len(request)) + request, _KAFKA_HEAD.size)
    return bool(answer) and _KAFKA_HEAD.unpack(answer)[2] > 0


def metastore_answers(port: int) -> bool:
    """Return True when the metastore answers the Thrift call `getName` (fb303)."""
    return _ask(port, GET_NAME, len(_REPLY)) == _REPLY


def hiveserver2_answers(port: int) -> bool:
    """Return True when the Thrift call `OpenSession` without SASL returns the status SUCCESS."""
    return _ask(port, _OPEN_SESSION, len(_SESSION_OPENED)) == _SESSION_OPENED


def hadoop_answers(port: int) -> bool:
    """Return True when Hadoop's RPC server says that a request of HTTP is not one of its own protocol."""
    return _ask(port, _HADOOP, len(_NOT_HADOOP)) == _NOT_HADOOP


def http_answers(port: int) -> bool:
    """Return True when an HTTP server answers a request."""
    return _ask(port, _HTTP, len(_HTTP_ANSWER)) == _HTTP_ANSWER


def spark_answers(port: int) -> bool:
    """Return True when a Spark process answers the request for a stream that does not exist."""
    answer = _ask(port, _SPARK_REQUEST, _SPARK_SIZE_BYTES + len(_SPARK_FAILURE))
    return answer[_SPARK_SIZE_BYTES:] == _SPARK_FAILURE


def _ask(port: int, request: bytes, size: int) -> bytes:
    """Send `request` and return the first `size` bytes of the answer, or no bytes when it is shorter or missing."""
    answer = b""
    try:
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(request)
            while len(answer) < size and (piece := connection.recv(_PIECE_BYTES)):
                answer += piece
            connection.shutdown(socket.SHUT_WR)  # a reset would put a stack trace into the service's log
            while connection.recv(_PIECE_BYTES):
                pass
    except OSError:
        return b""
    return answer[:size] if len(answer) >= size else b""
