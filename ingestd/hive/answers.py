"""Decides what an error means that a metastore answers with: wait until it is over, stop after a few attempts, or stop.

Invariant: only an answer that says no can stop a mapping. The metastore reports most errors as a MetaException, whose
text alone tells an outage from a refusal. A text is checked against these lists, in this order:

    final      the request can never succeed                       MetastoreRefusal
    transient  the metastore, its database or its file system fails, and Hive's own client would try again
                                                                   MetastoreUnavailable
    denied     the user lacks a permission                         MetastoreDenied
    other      the metastore says no                               MetastoreDeclined

`retry.py` repeats a call after MetastoreDenied and MetastoreDeclined a few times only. To stop a mapping during an
outage is worse than to wait, so the list of transient texts is long, and a text that matches it by accident only waits.

Sources: RetryingMetaStoreClient.isRecoverableMetaException, SqlRetryHandler, RetryingHMSHandler, HMSHandler,
ObjectStore and HiveAlterHandler of Hive 4.0.1 and 4.2.0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hive_metastore import ttypes
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from ingestd.errors import IngestdError, InvalidTable, MetastoreUnavailable, TransactionAborted

# Characters of the metastore's message that an error contains; the message may quote very long SQL statements.
_TEXT_HEAD, _TEXT_TAIL = 350, 150
# A value of the request that the file system or the database of the metastore can never store.
_VALUE = (
    r"File name too long|PathComponentTooLong|path component name limit|Pathname too long|whitelist pattern"
    r"|value too long for type|truncation error was encountered|Data too long for column|ORA-12899"
    r"|invalid byte sequence for encoding|Incorrect string value"
    r"|but metastore is returning a partition with name"
)
_OF_VALUE = re.compile(_VALUE)
# The answer to get_partitions_by_names_req while a partition is being dropped. Afterwards, the call leaves it out.
_HALF_DROPPED = r"Invalid partition key & values; keys \[[^]]*\], values \[\]"
_FINAL = re.compile(
    f"{_VALUE}|(?!{_HALF_DROPPED})Invalid partition key|InvalidObjectException|StackOverflowError"
    r"|Cannot convert \S+ to transactional table|Unexpected data file name format"
)
_TRANSIENT = re.compile(
    # The database of the metastore, its connection pool, and the libraries in between
    r"\A\s*\Z|JDO\w*Exception|\bSQL\w*Exception|SQLSTATE|\bjava\.sql\b|\bjavax\.jdo\b|datanucleus|Nucleus|JDBC|Hikari"
    r"|org\.apache\.derby|org\.postgresql|com\.mysql|org\.mariadb|oracle\.(?:jdbc|net)|sqlserver|ORA-\d|springframework"
    r"|deadlock|lock wait|serializ(?:e access|ation failure)|constraint violation|violates unique constraint"
    r"|duplicate key|rollback|persistence manager|direct ?SQL|See previous errors|connection slots|connection pool"
    r"|transaction database|Failed to execute (?:function|update)|did not commit|Error locking|Unable to lock"
    r"|Unable to (?:select from|update) |notification (?:log )?lock|Check metastore logs|retr(?:y|ies)\b|try again"
    # Limits that end with the load, and a metastore that starts, stops or hands over
    r"|too many (?:connections|clients|open)|Maximum allowed number of open transactions|time[d ]?-?out"
    r"|\bleader\b|standby|safe ?mode|shut(?:ting)? ?down|not (?:yet )?(?:initialized|operational)|temporar|unavailable"
    r"|interrupted|OutOfMemory|GC overhead|native thread|heap space"
    # Its own connections
    r"|TProtocolException|TTransportException|connection (?:\w+ )?(?:refused|reset|closed|attempt|failed)"
    r"|Unable to connect|broken pipe|no route to host|UnknownHost|ConnectException|SocketException|\bGSS|Kerberos"
    r"|(?:ticket|token)\b.{0,40}expired"
    # A full or read-only file system
    r"|no space|quota|read-only file system|RemoteException.*(?:Replicat|LeaseExpired)"
    # A defect or a race inside of the metastore, which says nothing about the request
    rf"|{_HALF_DROPPED}"
    r"|NullPointerException|ConcurrentModification|IllegalStateException|IndexOutOfBounds",
    re.IGNORECASE | re.DOTALL,
)
_DENIED = re.compile(
    r"permission denied|AccessControlException|access denied|does not have .{0,80}privilege|no privilege"
    r"|not authorized|Authorization\w*Exception|not allowed for user|is not allowed to (?:perform|impersonate)",
    re.IGNORECASE | re.DOTALL,
)
# Hive's own client also repeats a call after any IOException of the file system, but one that denies access is final.
_TRANSIENT_IO = re.compile(r"IOException")
# The attributes of Thrift requests that name the object concerned.
_DATABASES = ("dbName", "dbname", "db_name", "databaseName")
_TABLES = ("tableName", "tblName", "tablename", "tbl_name")


class MetastoreRefusal(IngestdError):
    """The metastore rejected the call, or can never execute it; `what` contains the metastore's message."""

    is_refusal = True
    exit_code = 65


class UnknownCall(MetastoreRefusal):
    """The metastore is too old to know the method."""


class MetastoreDeclined(MetastoreUnavailable):
    """The metastore answered no, for a reason that is not known to be temporary; `what` contains its first sentence."""

    is_refusal = True
    exit_code = 65


class MetastoreDenied(MetastoreDeclined):
    """The metastore denied the user a permission."""

    exit_code = 77


# The errors for exceptions whose class says what they mean, and then those for the texts of the others.
_DECLARED = (
    ((ttypes.NoSuchTxnException, ttypes.TxnAbortedException, ttypes.NoSuchLockException), TransactionAborted),
    ((ttypes.NoSuchObjectException,), InvalidTable),
)
_OF_TEXTS: tuple[tuple[re.Pattern[str], type[IngestdError]], ...] = (
    (_FINAL, MetastoreRefusal),
    (_TRANSIENT, MetastoreUnavailable),
    (_DENIED, MetastoreDenied),
    (_TRANSIENT_IO, MetastoreUnavailable),
)
_HINTS: dict[type[IngestdError], str] = {
    MetastoreRefusal: "see the metastore's log; a retry cannot succeed",
    UnknownCall: "upgrade the metastore",
    MetastoreUnavailable: "see the metastore's log",
    MetastoreDeclined: "remove the cause that the metastore names; see the metastore's log",
    MetastoreDenied: "grant the user {user} what the metastore names, or let ingestd log in as another user",
}


def has_answered(error: IngestdError) -> bool:
    """Return whether an error of a call is the answer of a metastore, and not that of a connection."""
    cause = error.__cause__
    return isinstance(cause, TException) and not isinstance(cause, TTransportException)


def is_of_value(error: IngestdError) -> bool:
    """Return whether the metastore can never store a value of the request, such as the name of a partition."""
    return has_answered(error) and _OF_VALUE.search(_text(error.__cause__)) is not None


def is_internal(error: TException) -> bool:
    """Return whether the metastore failed to execute the call, for example because its database was busy."""
    internal = isinstance(error, TApplicationException) and error.type == TApplicationException.INTERNAL_ERROR
    text = _text(error)
    return (internal or re.search(_HALF_DROPPED, text) is not None) and not _FINAL.search(text)


def translated(method: str, arguments: Sequence[Any], error: TException, *, where: str, user: str) -> IngestdError:
    """Return the error to raise for an exception that a metastore has answered with.

    `where` names the metastore, and `user` is the user that it sees.
    """
    text = _text(error)
    kind = _kind(error, text)
    if issubclass(kind, MetastoreDeclined):
        text = text.strip().partition("\n")[0].strip()
        where = ", ".join(filter(None, [where, _subject(arguments)]))
    what = f"{method}: {shortened(text) or type(error).__name__}"
    return kind(what, where=where, hint=_HINTS.get(kind, "").format(user=user))


def _kind(error: TException, text: str) -> type[IngestdError]:
    declared = next((kind for some, kind in _DECLARED if isinstance(error, some)), None)
    if declared is not None:
        return declared
    kind = next((kind for pattern, kind in _OF_TEXTS if pattern.search(text)), MetastoreDeclined)
    if isinstance(error, ttypes.MetaException):
        return kind
    if isinstance(error, TApplicationException):  # its text names the call, but does not say what failed
        is_unknown = error.type == TApplicationException.UNKNOWN_METHOD
        return UnknownCall if is_unknown else kind if kind is MetastoreRefusal else MetastoreUnavailable
    # Hive also reports failures of its database while it alters an object as an operation that is not valid.
    is_failure = isinstance(error, ttypes.InvalidOperationException) and kind is MetastoreUnavailable
    return MetastoreUnavailable if is_failure else MetastoreRefusal


def shortened(text: str) -> str:
    """Shorten a text to its beginning, which says what happened, and its end, which contains the root cause."""
    if len(text) <= _TEXT_HEAD + _TEXT_TAIL:
        return text
    return f"{text[:_TEXT_HEAD]} … {text[-_TEXT_TAIL:]}"


def _text(error: BaseException | None) -> str:
    """Return the message of an exception; an exception of Thrift without one has none in its text either."""
    if isinstance(error, ttypes.MetaException):
        return error.message or ""
    return str(getattr(error, "message", None) or error)


def _subject(arguments: Sequence[Any]) -> str:
    """Return the database or table that a request is about, '' if it names none."""
    for request in arguments:
        names = [_first(request, some) for some in (_DATABASES, _TABLES)]
        if isinstance(request, ttypes.Database):
            names = [request.name, ""]
        if names[0]:
            return f"table {'.'.join(names)}" if names[1] else f"database {names[0]}"
    texts = [argument for argument in arguments if isinstance(argument, str)]
    return f"table {'.'.join(texts[:2])}" if len(texts) > 1 else ""


def _first(request: Any, attributes: Sequence[str]) -> str:
    return str(next(filter(None, (getattr(request, attribute, None) for attribute in attributes)), ""))
