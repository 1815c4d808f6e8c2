"""Calls that the bindings lack: what is sent, and what is read from an answer."""

from __future__ import annotations

import pytest
from hive_metastore import ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from ingestd.hive.newer_calls import NewerCalls

_DATABASE, _STATE, _ID, _ERROR, _TXN_ID = 1, 5, 13, 14, 22


class _Client(NewerCalls):
    """A client that has been answered already; `sent` is its request."""

    def __init__(self, answer: TMemoryBuffer) -> None:
        self.sent = TMemoryBuffer()
        self._iprot, self._oprot = TBinaryProtocol(TMemoryBuffer(answer.getvalue())), TBinaryProtocol(self.sent)
        self._seqid = 7


def _answer(*elements: dict[int, int | str]) -> TMemoryBuffer:
    """Return the answer of a metastore 4 to `show_compact`: the fields of each element by their numbers."""
    buffer = TMemoryBuffer()
    out = TBinaryProtocol(buffer)
    out.writeMessageBegin("show_compact", TMessageType.REPLY, 7)
    out.writeFieldBegin("success", TType.STRUCT, 0)
    out.writeFieldBegin("compacts", TType.LIST, 1)
    out.writeListBegin(TType.STRUCT, len(elements))
    for element in elements:
        for number, value in element.items():
            if isinstance(value, str):
                out.writeFieldBegin("", TType.STRING, number)
                out.writeString(value)
            else:
                out.writeFieldBegin("", TType.I64, number)
                out.writeI64(value)
        out.writeFieldBegin("unknown", TType.MAP, 99)
        out.writeMapBegin(TType.STRING, TType.DOUBLE, 1)
        out.writeString("key")
        out.writeDouble(1.5)
        out.writeFieldStop()
    out.writeFieldStop()
    out.writeFieldStop()
    return buffer


def test_compactions_when_a_metastore_4_answers_then_have_their_transactions() -> None:
    client = _Client(_answer({_DATABASE: "d", _STATE: "working", _ID: 3, _TXN_ID: 12}, {_ERROR: "failed"}))
    first, second = client.show_compact_of("d", "t", "", '"CC_ID"', 7)
    assert (first.dbname, first.state, first.id, first.txnId) == ("d", "working", 3, 12)
    assert (second.errorMessage, second.txnId) == ("failed", 0)
    request = TBinaryProtocol(TMemoryBuffer(client.sent.getvalue()))
    assert request.readMessageBegin() == ("show_compact", TMessageType.CALL, 7)
    assert request.readFieldBegin()[1:] == (TType.STRUCT, 1)
    for number, name in ((3, "d"), (4, "t")):
        assert request.readFieldBegin()[1:] == (TType.STRING, number)
        assert request.readString() == name
    assert request.readFieldBegin()[1:] == (TType.STRING, 9)
    assert request.readString() == '"CC_ID"'
    assert request.readFieldBegin()[1:] == (TType.I64, 8)
    assert request.readI64() == 7


def test_call_when_answered_with_an_exception_then_it_is_raised() -> None:
    buffer = TMemoryBuffer()
    out = TBinaryProtocol(buffer)
    out.writeMessageBegin("show_compact", TMessageType.REPLY, 7)
    out.writeFieldBegin("o1", TType.STRUCT, 1)
    ttypes.MetaException(message="no").write(out)
    out.writeFieldStop()
    with pytest.raises(ttypes.MetaException, match="no"):
        _Client(buffer).show_compact_of("d", "t", "w", '"CC_ID"', 7)
