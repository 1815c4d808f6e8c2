"""Calls of the metastore, and fields of answers, that the bindings lack, because Hive added them later.

Invariant: a call behaves like those of the bindings. It raises the declared exceptions, and TApplicationException if
the metastore does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive_metastore import ttypes
from thrift.Thrift import TApplicationException, TMessageType, TType

_SCALARS = {TType.BOOL: "readBool", TType.I32: "readI32", TType.I64: "readI64", TType.STRING: "readString"}
_TXN_ID = 22  # of ShowCompactResponseElement


class NewerCalls:
    """Extends a client of the bindings, which has the protocols `_iprot` and `_oprot`."""

    _iprot: Any
    _oprot: Any
    _seqid: int

    def add_write_ids_to_min_history(self, txn_id: int, write_ids: Mapping[str, int]) -> None:
        """Let the cleaner wait for a transaction, in each table from a write id on. The keys are `database.table`.

        Source: hive_metastore.thrift of Hive 4, `add_write_ids_to_min_history(1: i64 txnId, 2: map<string, i64>)`.
        """
        out = self._oprot
        out.writeMessageBegin("add_write_ids_to_min_history", TMessageType.CALL, self._seqid)
        out.writeStructBegin("arguments")
        out.writeFieldBegin("txnId", TType.I64, 1)
        out.writeI64(txn_id)
        out.writeFieldEnd()
        out.writeFieldBegin("writeIds", TType.MAP, 2)
        out.writeMapBegin(TType.STRING, TType.I64, len(write_ids))
        for name, write_id in write_ids.items():
            out.writeString(name)
            out.writeI64(write_id)
        out.writeMapEnd()
        out.writeFieldEnd()
        out.writeFieldStop()
        out.writeStructEnd()
        out.writeMessageEnd()
        out.trans.flush()
        self._receive()

    def show_compact_of(
        self, database: str, table: str, state: str, order: str, limit: int
    ) -> list[ttypes.ShowCompactResponseElement]:
        """Return entries of one table in the queue of compactions and its history: `show_compact` of Hive 4.

        `state` is the letter that the metastore stores; '' means all states. `order` is the SQL of an ORDER BY, '' that
        of the metastore. Only the first `limit` entries are returned, if it is not 0. Each entry has the attribute
        `txnId`, the transaction of its worker: 0 until a worker has begun one.
        Source: hive_metastore.thrift of Hive 4, ShowCompactRequest, ShowCompactResponseElement; ShowCompactHandler.
        """
        out = self._oprot
        out.writeMessageBegin("show_compact", TMessageType.CALL, self._seqid)
        out.writeStructBegin("arguments")
        out.writeFieldBegin("rqst", TType.STRUCT, 1)
        out.writeStructBegin("ShowCompactRequest")
        texts = ((3, "dbName", database), (4, "tbName", table), (7, "state", state), (9, "order", order))
        for number, name, text in texts:
            if text:
                out.writeFieldBegin(name, TType.STRING, number)
                out.writeString(text)
                out.writeFieldEnd()
        out.writeFieldBegin("limit", TType.I64, 8)
        out.writeI64(limit)
        out.writeFieldEnd()
        out.writeFieldStop()
        out.writeStructEnd()
        out.writeFieldEnd()
        out.writeFieldStop()
        out.writeStructEnd()
        out.writeMessageEnd()
        out.trans.flush()
        return [_compact(fields) for fields in self._receive()[1]]

    def _receive(self) -> Any:
        """Read the answer of a call; return its result, or raise the exception in it."""
        answer, failure, result = self._iprot, None, None
        _name, kind, _number = answer.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            failure = TApplicationException()
            failure.read(answer)
            answer.readMessageEnd()
            raise failure
        answer.readStructBegin()
        while True:
            _field, field_type, number = answer.readFieldBegin()
            if field_type == TType.STOP:
                break
            if number == 1 and field_type == TType.STRUCT:
                failure = ttypes.MetaException.read(answer)
            else:
                result = _read(answer, field_type)
            answer.readFieldEnd()
        answer.readStructEnd()
        answer.readMessageEnd()
        if failure is not None:
            raise failure
        return result


def _compact(fields: Mapping[int, Any]) -> ttypes.ShowCompactResponseElement:
    """Return an element of the queue of compactions, with the attribute `txnId`."""
    names = {spec[0]: spec[2] for spec in ttypes.ShowCompactResponseElement.thrift_spec if spec}
    known = {names[number]: value for number, value in fields.items() if number in names}
    element = ttypes.ShowCompactResponseElement(**known)
    element.txnId = fields.get(_TXN_ID, 0)
    return element


def _read(answer: Any, kind: int) -> Any:
    """Read a value: a struct as a dictionary by the numbers of its fields; None for a kind that is not known here."""
    if kind == TType.LIST:
        of, size = answer.readListBegin()
        values = [_read(answer, of) for _ in range(size)]
        answer.readListEnd()
        return values
    if kind == TType.STRUCT:
        fields = {}
        answer.readStructBegin()
        while (field := answer.readFieldBegin())[1] != TType.STOP:
            fields[field[2]] = _read(answer, field[1])
            answer.readFieldEnd()
        answer.readStructEnd()
        return fields
    if kind in _SCALARS:
        return getattr(answer, _SCALARS[kind])()
    answer.skip(kind)
    return None
