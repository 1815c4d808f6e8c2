"""The bytes below Thrift: a TCP or TLS socket, and SASL's handshake and frames on top of it.

Invariant: `open` returns with the login done or raises, and then nothing stays open. What cannot be mended by waiting
is a ConfigError or LoginFailed; no message of ours holds a password.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from io import BytesIO
from typing import Protocol

from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportBase, TTransportException

from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable
from ingestd.hive.kerberos import KerberosExchange
from ingestd.hive.security import Plain, Security, Tls

# TSaslTransport of Thrift: a message is one byte of status, four of length, the body; later four of length, the frame.
_START, _OK, _BAD, _ERROR, _COMPLETE = 1, 2, 3, 4, 5
_HEADER = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_MOST_HANDSHAKE_BYTES = 1 << 20
_MOST_FRAME_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20

AWAY = "is it running, and is metastore.uri right?"
_PROBE_SECONDS = 5.0
# Thrift's strict binary protocol: a call of fb303's getName, which every metastore answers before any login.
_GET_NAME = struct.pack(">II7sIB", 0x80010001, 7, b"getName", 0, 0)
# The beginning of a SASL login by a mechanism that no server has.
_LOG_IN_SOMEHOW = _HEADER.pack(_START, 1) + b"?"
_THRIFT_REPLY, _TLS_ALERT = 0x80, 0x15


def wire(host: str, port: int, security: Security, timeout_seconds: float) -> TTransportBase:
    """The transport to one address, not yet open. Its `open` raises ConfigError, LoginFailed, MetastoreUnavailable."""
    plain = _Socket(host, port, security.tls)
    plain.setTimeout(timeout_seconds * 1000)
    if security.login is None:
        return TBufferedTransport(plain)
    login = security.login
    exchange = PlainExchange(login) if isinstance(login, Plain) else KerberosExchange(login, host)
    return SaslWire(plain, exchange, f"metastore {host}:{port}")


class Exchange(Protocol):
    """One SASL mechanism in one login, and what it does to the bytes afterwards."""

    @property
    def mechanism(self) -> bytes:
        """Its name in the handshake."""

    @property
    def hint(self) -> str:
        """What to look at when the metastore refuses."""

    @property
    def complete(self) -> bool:
        """True when our side has nothing left to say or to see proven."""

    def answer(self, challenge: bytes) -> bytes:
        """Our answer to the server's words; the first time there are none."""

    def frames(self, data: bytes) -> Iterable[bytes]:
        """What to send for `data`, in pieces that the server takes; raises OSError."""

    def unwrap(self, frame: bytes) -> bytes:
        """What the server said in one frame; raises OSError when it was changed on the way."""


class PlainExchange:
    """Name and password in the first message (RFC 4616); later bytes go as they are."""

    mechanism = b"PLAIN"
    complete = True

    def __init__(self, login: Plain) -> None:
        self._login = login

    @property
    def hint(self) -> str:
        """Hive's MetaStorePlainSaslServer makes a character of each byte of our UTF-8."""
        if not (self._login.username + self._login.password).isascii():
            return "Hive understands ASCII only in metastore.plain.username and metastore.plain.password"
        return "are metastore.plain.username and metastore.plain.password right?"

    def answer(self, challenge: bytes) -> bytes:
        """The credentials."""
        return f"\0{self._login.username}\0{self._login.password}".encode()

    def frames(self, data: bytes) -> Iterable[bytes]:
        """`data` as it is."""
        return [data]

    def unwrap(self, frame: bytes) -> bytes:
        """`frame` as it is."""
        return frame


class _Socket(TSocket):  # type: ignore[misc]
    """Thrift's socket, opened by us: its own TLS class checks host names differently from release to release."""

    def __init__(self, host: str, port: int, tls: Tls | None) -> None:
        super().__init__(host, port)
        self._tls = tls

    def open(self) -> None:
        self.setHandle(_connect(self.host, self.port, self._tls, self._timeout))


def _connect(host: str, port: int, tls: Tls | None, timeout_seconds: float) -> socket.socket:
    where = f"metastore {host}:{port}"
    # Read first: a CA file that is missing is no matter of the network.
    context = _context(tls) if tls else None
    try:
        connected = socket.create_connection((host, port), timeout_seconds)
    except (OSError, UnicodeError) as error:  # a host name that DNS cannot have is a UnicodeError
        raise MetastoreUnavailable(f"cannot connect: {error}", where=where, hint=AWAY) from error
    if context is None:
        return connected
    try:
        # Takes the socket's time-out over; on failure the socket is closed.
        return context.wrap_socket(connected, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise ConfigError(
            f"the metastore's certificate is not accepted: {error.verify_message}",
            where=where,
            hint="metastore.tls.ca_file must hold the CA that signed it, and the address the host name that is in it",
        ) from error
    except BaseException:
        connected.close()
        raise


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except ssl.SSLError:
        raise ConfigError("holds no certificate in PEM form", where=f"metastore.tls.ca_file {tls.ca_file}") from None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=f"metastore.tls.ca_file {tls.ca_file}") from None
    context.check_hostname = tls.verify_hostname
    return context


class SaslWire(TTransportBase):  # type: ignore[misc]
    """Thrift's SASL transport (TSaslTransport in Java) for any mechanism."""

    def __init__(self, below: TTransportBase, exchange: Exchange, where: str) -> None:
        self._below = below
        self._exchange = exchange
        self._where = where
        self._read = BytesIO()
        self._written = bytearray()

    def isOpen(self) -> bool:  # noqa: N802  # Thrift's name
        """True while the socket is."""
        return bool(self._below.isOpen())

    def open(self) -> None:
        """Connect and log in."""
        self._below.open()
        try:
            self._log_in()
        except BaseException:
            self._below.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._below.close()

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the current frame, or of the next one when that is used up."""
        while not (found := self._read.read(size)):
            (length,) = _LENGTH.unpack(self._below.readAll(_LENGTH.size))
            _refuse_longer(length, _MOST_FRAME_BYTES)
            self._read = BytesIO(self._exchange.unwrap(self._below.readAll(length)))
        return found

    def write(self, data: bytes) -> None:
        """Keep `data` for `flush`."""
        self._written += data

    def flush(self) -> None:
        """Send what was written."""
        data, self._written = bytes(self._written), bytearray()
        for start in range(0, len(data), _PIECE_BYTES):
            for frame in self._exchange.frames(data[start : start + _PIECE_BYTES]):
                self._below.write(_LENGTH.pack(len(frame)) + frame)
        self._below.flush()

    def _log_in(self) -> None:
        # Before the first byte goes out, since it fails when we have nothing to log in with.
        first = self._exchange.answer(b"")
        self._send(_START, self._exchange.mechanism)
        self._send(_OK, first)
        while (challenge := self._receive()) is not None:
            self._send(_OK, self._exchange.answer(challenge))
        if not self._exchange.complete:
            raise LoginFailed("the metastore ended the login before it proved who it is", where=self._where)

    def _receive(self) -> bytes | None:
        """The server's next challenge; None when it accepts us."""
        status, length = _HEADER.unpack(self._below.readAll(_HEADER.size))
        if status not in (_OK, _BAD, _ERROR, _COMPLETE):
            raise TTransportException(message="the answer to the login is not SASL's")
        _refuse_longer(length, _MOST_HANDSHAKE_BYTES)
        body: bytes = self._below.readAll(length)
        if status in (_BAD, _ERROR):
            raise _refused(body.decode(errors="replace"), self._exchange, self._where)
        return body if status == _OK else None

    def _send(self, status: int, body: bytes) -> None:
        self._below.write(_HEADER.pack(status, len(body)) + body)
        self._below.flush()


def _refused(words: str, exchange: Exchange, where: str) -> IngestdError:
    if "unsupported mechanism" in words.lower():
        return ConfigError(
            f"the metastore takes no {exchange.mechanism.decode()} login: {words}",
            where=where,
            hint="metastore.kerberos for one with hive.metastore.sasl.enabled, metastore.plain for LDAP and the like",
        )
    what = f"the metastore refused the login: {words or 'no reason given'}"
    return LoginFailed(what, where=where, hint=exchange.hint)


def _refuse_longer(length: int, most: int) -> None:
    if length > most:
        raise TTransportException(TTransportException.SIZE_LIMIT, f"{length} bytes announced, {most} are the most")


def mismatch(host: str, port: int, security: Security, timeout_seconds: float) -> ConfigError | None:
    """What an address speaks instead of what we do; None when it does not say.

    For after a failure: the two sides misread each other's first bytes, so both merely wait or hang up. What a
    metastore is set to shows when it is asked in each language by turns (seen with Hive 4.0.1 on Java 17).
    """
    heard = _heard(host, port, None, timeout_seconds)
    where = f"metastore {host}:{port}"
    if heard == _TLS_ALERT and security.tls is None:
        return ConfigError("the metastore speaks TLS only", where=where, hint="set metastore.tls")
    if heard == _TLS_ALERT:
        heard = _heard(host, port, security.tls, timeout_seconds)
    elif heard is not None and security.tls is not None:
        return ConfigError("the metastore does not speak TLS", where=where, hint="remove metastore.tls")
    if heard == _THRIFT_REPLY and security.login is not None:
        kind = "plain" if isinstance(security.login, Plain) else "kerberos"
        return ConfigError("the metastore takes no login (no SASL)", where=where, hint=f"remove metastore.{kind}")
    if heard in (_BAD, _ERROR) and security.login is None:
        return ConfigError(
            "the metastore wants a login (SASL)", where=where, hint="set metastore.kerberos or metastore.plain"
        )
    return None


def _heard(host: str, port: int, tls: Tls | None, timeout_seconds: float) -> int | None:
    """The first byte of the answer to a Thrift call, or to a SASL login when the server hung up on the call."""
    for request in (_GET_NAME, _LOG_IN_SOMEHOW):
        try:
            with _connect(host, port, tls, min(timeout_seconds, _PROBE_SECONDS)) as connected:
                connected.sendall(request)
                answer = connected.recv(1)
        except (OSError, IngestdError):
            return None
        if answer:
            return answer[0]
    return None
