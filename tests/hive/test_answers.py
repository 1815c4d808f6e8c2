"""What the errors mean that metastores answer with. The texts are those of Hive 4 and its databases."""

from __future__ import annotations

import pytest
from hive_metastore import ttypes
from thrift.Thrift import TApplicationException, TException

from ingestd.errors import IngestdError, InvalidTable, MetastoreUnavailable, TransactionAborted
from ingestd.hive.answers import (
    MetastoreDeclined,
    MetastoreDenied,
    MetastoreRefusal,
    UnknownCall,
    is_of_value,
    translated,
)

_TRANSIENT = (
    None,
    "javax.jdo.JDOException: Exception thrown when executing query\nRoot cause: java.net.SocketTimeoutException",
    "javax.jdo.JDODataStoreException: Iteration request failed : SELECT ...",
    "java.sql.SQLTransientConnectionException: HikariPool-1 - Connection is not available, request timed out after 30s",
    "Unable to select from transaction database: A lock could not be obtained within the time requested",
    "Failed to execute function: OpenTxnsFunction, details:ERROR: deadlock detected",
    "ERROR: could not serialize access due to concurrent update",
    "Lock wait timeout exceeded; try restarting transaction",
    "Data source rejected establishment of connection,  message from server: \"Too many connections\"",
    "FATAL: sorry, too many clients already",
    "FATAL: remaining connection slots are reserved for non-replication superuser connections",
    "ORA-00018: maximum number of sessions exceeded",
    "Maximum allowed number of open transactions has been reached. See hive.max.open.txns.",
    "See previous errors; Error executing SQL query",
    "Timeout when executing method: get_partitions; 600010ms exceeds 600000ms",
    "Couldn't acquire the DB log notification lock because we reached the maximum # of retries: 5 retries.",
    "Error locking the table: t in 5 retries, time spent: 1000 ms",
    "The transaction for alter partition did not commit successfully.",
    "Unable to create persistence manager. Check log for details",
    "java.sql.SQLIntegrityConstraintViolationException: Duplicate entry 'a' for key 'UNIQUE_DATABASE'",
    "This metastore is not the leader",
    "The metastore is shutting down",
    "Got exception: java.net.ConnectException Call From a to b:8020 failed on connection exception",
    "Got exception: org.apache.hadoop.ipc.RemoteException Operation category READ is not supported in state standby",
    "Got exception: org.apache.hadoop.hdfs.server.namenode.SafeModeException Name node is in safe mode.",
    "Got exception: org.apache.hadoop.hdfs.protocol.DSQuotaExceededException The DiskSpace quota of /w is exceeded",
    "Got exception: java.io.IOException No space left on device",
    "Got exception: java.io.IOException Filesystem closed",
    "org.apache.thrift.transport.TTransportException: java.net.SocketException: Broken pipe",
    "java.lang.NullPointerException",
    "java.lang.OutOfMemoryError: unable to create native thread",
    "Invalid partition key & values; keys [day, ], values []",
    # It says that access was denied, but to the metastore, by its database.
    "java.sql.SQLException: Access denied for user 'hive'@'10.0.0.1' (using password: YES)",
)  # fmt: skip


def _error(text: str | None, kind: type[TException] = ttypes.MetaException) -> IngestdError:
    request = ttypes.AlterPartitionsRequest(dbName="web", tableName="clicks")
    answer = kind(message=text)
    try:
        raise translated("alter_partitions_req", [request], answer, where="metastore hms:9083", user="etl") from answer
    except IngestdError as error:
        return error


@pytest.mark.parametrize("text", _TRANSIENT)
def test_answer_when_the_metastore_or_its_services_fail_then_a_mapping_waits(text: str | None) -> None:
    error = _error(text)
    assert type(error) is MetastoreUnavailable
    assert not error.is_refusal


@pytest.mark.parametrize(
    "text",
    [
        "Permission denied: user [etl] does not have [ALTER] privilege on [web/clicks]",
        "Got exception: org.apache.hadoop.security.AccessControlException Permission denied: user=etl, access=WRITE",
        "org.apache.hadoop.hive.ql.security.authorization.AuthorizationException: No privilege 'Alter' found",
        "User etl is not allowed to perform this API call",
        "Operation type ALTERTABLE_PROPERTIES not allowed for user:etl",
    ],
)
def test_answer_when_a_permission_is_missing_then_it_names_the_table_and_the_user(text: str) -> None:
    error = _error(f"{text}\n\tat org.apache.hadoop.Stack.trace")
    assert type(error) is MetastoreDenied
    assert (error.is_refusal, error.exit_code) == (True, 77)
    assert error.what == f"alter_partitions_req: {text}"
    assert error.where == "metastore hms:9083, table web.clicks"
    assert "grant the user etl" in error.hint


@pytest.mark.parametrize(
    "text",
    [
        "Processor has no capabilities, cannot create an ACID table.",
        "Unable to create database path file:/warehouse/ingestd.db, failed to create database ingestd",
        "Cannot change stats state for a transactional table default.t without providing the transactional write state",
    ],
)
def test_answer_when_it_says_no_for_another_reason_then_it_is_a_refusal(text: str) -> None:
    error = _error(text)
    assert type(error) is MetastoreDeclined
    assert (error.is_retriable, error.is_refusal, error.exit_code) == (True, True, 65)


def test_answer_when_the_request_can_never_succeed_then_it_is_not_repeated() -> None:
    value = "Partition value 'Zürich' contains a character not matched by whitelist pattern '[\\x20-\\x7E]*'."
    for text in (
        value,
        "Data truncation: Data too long for column 'PART_NAME'",
        "Invalid partition key & values; keys [day, ], values [a, b, ]",
        "java.lang.IllegalStateException: Unexpected data file name format.  Cannot convert a.t to transactional table",
    ):
        error = _error(text)
        assert type(error) is MetastoreRefusal
        assert not error.is_retriable
        assert is_of_value(error) == ("Partition value" in text or "Data too long" in text)


def test_answer_when_declared_by_thrift_then_its_class_decides() -> None:
    assert type(_error("txn 1", ttypes.NoSuchTxnException)) is TransactionAborted
    assert type(_error("web.clicks", ttypes.NoSuchObjectException)) is InvalidTable
    assert type(_error("exists", ttypes.AlreadyExistsException)) is MetastoreRefusal
    assert type(_error("new table is invalid", ttypes.InvalidOperationException)) is MetastoreRefusal
    failed = "Unable to change partition or table. Check metastore logs for detailed stack. deadlock"
    assert type(_error(failed, ttypes.InvalidOperationException)) is MetastoreUnavailable

    def internal(kind: int) -> IngestdError:
        answer = TApplicationException(kind, "Internal error processing open_txns")
        return translated("open_txns", [], answer, where="metastore hms:9083", user="etl")

    assert type(internal(TApplicationException.INTERNAL_ERROR)) is MetastoreUnavailable
    assert type(internal(TApplicationException.UNKNOWN_METHOD)) is UnknownCall
