"""Calls of the metastore that the bindings lack, because Hive added them later.

Invariant: a call behaves like those of the bindings. It raises the declared exceptions, and TApplicationException if
the metastore does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive_metastore import ttypes
from thrift.Thrift import TApplicationException, TMessageType, TType


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
        self._receive_nothing()

    def _receive_nothing(self) -> None:
        """Read the answer of a call that returns nothing; raise the exception in it."""
        answer, failure = self._iprot, None
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
                answer.skip(field_type)
            answer.readFieldEnd()
        answer.readStructEnd()
        answer.readMessageEnd()
        if failure is not None:
            raise failure
