"""Creates clients of boto3, and translates their errors; the only module that imports boto3.

Invariant: a request and its repetitions end within a limited time, even if the server sends its answer byte by byte. So
does the creation of a client, for which botocore asks the machine or a program for credentials.
Every request that this package sends may be repeated, because it stores the same bytes under the same key, or removes
something. One that is overdue goes on in its thread; the server may also execute any other late (`s3.py`).
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
    TokenRetrievalError,
)

from ingestd.errors import ConfigError, StorageUnavailable
from ingestd.storage.contract import (
    AlreadyExists,
    CredentialsRefused,
    NoAnswer,
    NoSpace,
    NotFound,
    PermissionDenied,
)
from ingestd.storage.s3_answers import is_from_s3, is_page
from ingestd.storage.s3_settings import Keys, S3Settings
from ingestd.storage.time_limit import TimeLimit

_ATTEMPTS = 4
# botocore limits only how long a server may be silent. Everything else, such as a slow transfer of a part of 16 MiB,
# may last as many times longer than `storage.timeout`.
_SLOWNESS = 10
# While so many requests are overdue, further ones fail at once.
_MOST_OVERDUE = 64
_FIRST_ERROR = 300
_MAX_CONNECT_SECONDS = 10.0
_lock = threading.Lock()
_limit = TimeLimit(_MOST_OVERDUE)

_LOGIN_HINT = "check the keys or the role in `storage.s3`, the fs.s3a properties or the environment"
_NO_LOGIN_HINT = (
    "check the metadata service of the machine, or credential_process of the AWS profile, or set keys in `storage.s3`"
)
_EXPIRED_HINT = "provide new temporary keys; roles and web identities renew theirs"
_SERVER_HINT = "check the server; the request is repeated"
_SLOW_HINT = (
    "the server limits the rate of requests; reduce storage.s3.connections or commit fewer partitions at a time"
)
_SLOW_ANSWER_HINT = "check the endpoint and the network, or raise storage.timeout"
_TLS_HINT = "set storage.s3.ca_file to the CA certificates of the endpoint, or correct its certificate"
_PLAIN_HINT = "the endpoint does not use TLS on this port: write http:// in storage.s3.endpoint, or another port"
_PAGE_HINT = "a proxy or another server answers: check storage.s3.endpoint, HTTPS_PROXY and NO_PROXY"
_REGION_HINT = "set storage.s3.region to the region of the bucket"
_ERRORS: Mapping[str, tuple[type[StorageUnavailable], str]] = {
    **dict.fromkeys(("NoSuchKey", "404"), (NotFound, "check whether another process removed the object")),
    "NoSuchBucket": (NotFound, "create the bucket, or check the endpoint and the region"),
    **dict.fromkeys(("AccessDenied", "403", "AllAccessDisabled"), (PermissionDenied, "grant access to the objects")),
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound", "AuthorizationHeaderMalformed"),
        (CredentialsRefused, f"{_LOGIN_HINT}, and the region"),
    ),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
        (StorageUnavailable, _EXPIRED_HINT),
    ),
    **dict.fromkeys(
        ("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"),
        (NoSpace, "free space, or raise the quota"),
    ),
    **dict.fromkeys(("PreconditionFailed", "412"), (AlreadyExists, "check which process created the object")),
    **dict.fromkeys(("SlowDown", "503", "ServiceUnavailable", "429"), (StorageUnavailable, _SLOW_HINT)),
    "RequestTimeTooSkewed": (StorageUnavailable, "synchronize the clock of this machine"),
    # Not NotFound: the bucket exists, and its content is unknown.
    **dict.fromkeys(
        ("PermanentRedirect", "301", "IllegalLocationConstraintException"), (StorageUnavailable, _REGION_HINT)
    ),
    "NoSuchUpload": (StorageUnavailable, "another process aborted the upload; the transaction is repeated"),
}
# The answer to HEAD has no body, so its code is only the status.
_NAMES = {"404": "it does not exist", "403": "access is denied"}


@lru_cache(maxsize=32)
def _client(settings: S3Settings) -> Any:
    session = botocore.session.Session()
    attempt = max(1.0, settings.timeout_seconds / _ATTEMPTS)
    addressing = "path" if settings.is_path_style else "auto"
    common = Config(
        connect_timeout=min(_MAX_CONNECT_SECONDS, attempt),
        read_timeout=attempt,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        tcp_keepalive=True,
    )
    session.set_default_client_config(common)  # also for the requests that obtain credentials
    session.register("creating-client-class.s3", partial(_limit_requests, _SLOWNESS * settings.timeout_seconds))
    special = Config(
        s3={"addressing_style": addressing},
        # A thread of a copy may use several connections.
        max_pool_connections=2 * settings.connections,
        # Servers that are compatible with S3 may not know checksums; the signature covers the content.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    if settings.credentials == "anonymous":
        special = special.merge(Config(signature_version=UNSIGNED))
    keys = settings.credentials if isinstance(settings.credentials, Keys) else None
    client = boto3.Session(botocore_session=session).client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        verify=str(settings.ca_file) if settings.ca_file else None,
        aws_access_key_id=keys.access_key if keys else None,
        aws_secret_access_key=keys.secret_key if keys else None,
        aws_session_token=keys.session_token if keys else None,
        config=special,
    )
    if "@" in client.meta.endpoint_url:  # every error of botocore contains the URL
        raise ValueError(client.meta.endpoint_url)
    client.meta.events.register("after-call.s3", _check_answer)
    return client


def _limit_requests(seconds: float, base_classes: list[type], **_: Any) -> None:
    """Limit each request of a client, with its repetitions, and each read of an answer."""

    class Limited:
        """Precedes botocore's class of clients."""

        def _make_api_call(self, operation_name: str, api_params: Mapping[str, Any]) -> dict[str, Any]:
            send = super()._make_api_call  # type: ignore[misc]  # of the other base class
            answer: dict[str, Any] = _limit.run(partial(send, operation_name, api_params), seconds, _close_body)
            if operation_name == "GetObject":
                answer["Body"] = _LimitedBody(answer["Body"], seconds)
            return answer

    base_classes.insert(0, Limited)


def _close_body(answer: Mapping[str, Any]) -> None:
    if "Body" in answer:
        answer["Body"].close()


class _LimitedBody:
    """The content of an answer. Each read raises TimeoutError after `seconds`."""

    def __init__(self, body: Any, seconds: float) -> None:
        self._body = body
        self._seconds = seconds
        self._is_overdue = False

    def read(self, count: int | None = None) -> bytes:
        """Return the next bytes, by default all."""
        read: Callable[[], bytes] = partial(self._body.read, count)
        try:
            return _limit.run(read, self._seconds, lambda _: self._body.close())
        except TimeoutError:
            self._is_overdue = True
            raise

    def close(self) -> None:
        """Close the connection, unless a thread is still reading: it would hold the lock of the stream."""
        if not self._is_overdue:
            self._body.close()


class _ForeignAnswer(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """A successful answer does not come from an S3 server."""

    fmt = "the answer to {operation} does not come from an S3 server"


def _check_answer(http_response: Any, parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
    """Raise _ForeignAnswer for an answer that botocore would accept."""
    is_success = http_response.status_code < _FIRST_ERROR
    if is_success and not is_from_s3(model.name, parsed, lambda: http_response.content):
        http_response.raw.close()  # the content of an object has not been read
        raise _ForeignAnswer(operation=model.name)


def connect(settings: S3Settings) -> Any:
    """Return a client of boto3, which is thread-safe; clients of equal settings are shared.

    Nothing is sent to S3 yet. Raises StorageUnavailable for settings that botocore rejects, if no credentials are
    obtained in time, and for an unusable CA file, and ConfigError for an endpoint with a password.
    """
    if settings.ca_file:
        _check_ca_file(settings.ca_file)  # a request would not name the file
    where = settings.endpoint or "S3"
    with errors(where):
        try:
            return _shared_client(settings, _SLOWNESS * settings.timeout_seconds)
        except TimeoutError as error:
            what = "no credentials were obtained within the time limit"
            raise NoAnswer(what, where=where, hint=_NO_LOGIN_HINT) from error
        except ValueError as error:  # an invalid URL
            if "@" in str(error):  # it may contain a password; the other sources of endpoints have been checked
                raise ConfigError(
                    "must be a URL without user and password",
                    where="AWS_ENDPOINT_URL, or endpoint_url of the profile",
                    hint="remove user and password; they are not used for requests to S3",
                ) from None
            raise StorageUnavailable(str(error), where="storage.s3", hint="correct the configuration") from error


def _shared_client(settings: S3Settings, seconds: float) -> Any:
    """Return the client of the settings; only one is created at a time. Raises TimeoutError."""
    if not _lock.acquire(timeout=seconds):
        raise TimeoutError
    try:
        return _limit.run(partial(_client, settings), seconds)
    finally:
        _lock.release()


def _check_ca_file(file: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:  # SSLError is one
        what = "contains no certificate in PEM format" if isinstance(error, ssl.SSLError) else error.strerror
        raise StorageUnavailable(
            f"the file with CA certificates cannot be used: {what}",
            where=f"storage.s3.ca_file {file}",
            hint="it must exist on every machine that runs ingestd or its tasks, and be readable there",
        ) from error


def multipart(part_bytes: int, threads: int) -> TransferConfig:
    """Return how boto3 transfers an object that is larger than `part_bytes`: in parts, in `threads` threads.

    At most one part per thread is in memory.
    """
    config = TransferConfig(
        multipart_threshold=part_bytes,
        multipart_chunksize=part_bytes,
        max_concurrency=threads,
        preferred_transfer_client="classic",
    )
    config.max_in_memory_upload_chunks = threads
    return config


def code_of(error: StorageUnavailable) -> str:
    """Return the code of the server's error, such as `NoSuchUpload`; "" if the server did not answer."""
    cause = error.__cause__
    return str(cause.response.get("Error", {}).get("Code", "")) if isinstance(cause, ClientError) else ""


@contextmanager
def errors(where: str) -> Iterator[None]:
    """Translate errors of boto3 into StorageUnavailable and its subclasses."""
    try:
        yield
    except ClientError as error:
        if is_page(error.operation_name, error.response):
            what = f"the answer to {error.operation_name} is a page in HTML"
            raise StorageUnavailable(what, where=where, hint=_PAGE_HINT) from error
        answer = error.response.get("Error", {})
        raise refusal(str(answer.get("Code", "")), str(answer.get("Message", "")), where) from error
    except TimeoutError as error:
        what = "S3 has not completed its answer within the time limit"
        raise NoAnswer(what, where=where, hint=_SLOW_ANSWER_HINT) from error
    except RecursionError:  # botocore asks for the region of a bucket when it is redirected, and is redirected again
        raise StorageUnavailable("the server redirects each request", where=where, hint=_PAGE_HINT) from None
    except (BotoCoreError, Boto3Error) as error:
        if _is_invalid_header(error):  # its message contains the session token or the signature
            raise CredentialsRefused(
                "a key or the session token contains a line break, or another character that HTTP does not permit",
                where=where,
                hint=_LOGIN_HINT,
            ) from None
        raise _failure(error, where) from error


def _is_invalid_header(error: Exception) -> bool:
    return isinstance(error, HTTPClientError) and isinstance(error.kwargs.get("error"), ValueError)


def refusal(code: str, message: str, where: str) -> StorageUnavailable:
    """Return the error for a code and a message of the server."""
    kind, hint = _ERRORS.get(code, (StorageUnavailable, _SERVER_HINT))
    text = _NAMES.get(code) or f"S3 refused the request: {code}: {message}".rstrip(": ")
    return kind(text, where=where, hint=hint)


def _failure(error: Exception, where: str) -> StorageUnavailable:
    """Return the error for a request that got no answer, or was not sent."""
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return CredentialsRefused(
            "no credentials were found",
            where=where,
            hint=f"{_LOGIN_HINT}; Hadoop's credential providers cannot be read",
        )
    if isinstance(error, (CredentialRetrievalError, TokenRetrievalError)):
        return StorageUnavailable(f"no credentials could be obtained: {error}", where=where, hint=_LOGIN_HINT)
    if isinstance(error, _ForeignAnswer):
        return StorageUnavailable(str(error), where=where, hint=_PAGE_HINT)
    if isinstance(error, SSLError):
        hint = _PLAIN_HINT if "WRONG_VERSION_NUMBER" in str(error) else _TLS_HINT
        return StorageUnavailable(f"TLS failed: {error}", where=where, hint=hint)
    if isinstance(error, (ReadTimeoutError, ConnectTimeoutError, EndpointConnectionError)):
        return NoAnswer(f"S3 does not answer: {error}", where=where, hint="check the endpoint and the network")
    return StorageUnavailable(f"the request to S3 failed: {error}", where=where, hint=_SERVER_HINT)
