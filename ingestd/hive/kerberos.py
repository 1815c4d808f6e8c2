"""The Kerberos login of one connection. Only this module imports gssapi, at the first Kerberos login.

Invariant: each login acquires its credentials again, so a long-running process can reconnect as long as its keytab or
ticket cache is valid. Kerberos errors are raised with their cause and a hint. An error that ends when the KDC answers
again is MetastoreUnavailable, also if the ticket has expired in the meantime.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ingestd.clock import monotonic
from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable
from ingestd.hive.security import Kerberos, Protection, short_name
from ingestd.kerberos import EXPIRED, KDC_HINT, NO_KDC, NO_SUCH_SERVER, check_keytab, login_hint, signed

# A login may rewrite the ticket cache of a keytab when its ticket has expired; no other login may read it meanwhile.
_ONE_LOGIN = threading.Lock()
_MAX_UNWRAPPED = 0xFFFFFF
_USER_KEY = "metastore.kerberos.user"


class KerberosExchange:
    """The client side of a SASL GSSAPI login (RFC 4752) to the metastore at `host`."""

    mechanism = b"GSSAPI"
    hint = "check metastore.kerberos.principal and the clocks, and see the metastore's log"

    def __init__(self, login: Kerberos, host: str) -> None:
        self._login = login
        self._server = login.principal_at(host)
        self._gss = _gssapi()
        self._context: Any = None
        self._protection: Protection | None = None
        self._max_wrapped = 0

    @property
    def complete(self) -> bool:
        """Whether both sides are authenticated and have agreed on a protection."""
        return self._protection is not None

    def answer(self, challenge: bytes) -> bytes:
        """Return the next token; after the last one, the protection chosen from those that the metastore offers."""
        if self._context is None:
            return self._first()
        try:
            if self._context.complete:
                return self._chosen(self._context.unwrap(challenge).message)
            return self._context.step(challenge) or b""
        except self._gss.exceptions.GSSError as error:
            if _code(error) == EXPIRED:
                raise _translated(error, self._login, self._server) from error
            raise LoginFailed(
                f"the metastore did not authenticate as {self._server}: {_message(error)}",
                where="metastore.kerberos.principal",
            ) from error

    def frames(self, data: bytes) -> Iterable[bytes]:
        """Protect `data` as agreed and return it in frames that fit the metastore's buffer. Raises OSError."""
        if self._protection is Protection.AUTH:
            return [data]
        chunks = (data[at : at + self._max_wrapped] for at in range(0, len(data), self._max_wrapped))
        try:
            return [self._context.wrap(chunk, self._is_secret).message for chunk in chunks]
        except self._gss.exceptions.GSSError as error:
            raise OSError(f"Kerberos failed to protect a frame: {_message(error)}") from error

    def unwrap(self, frame: bytes) -> bytes:
        """Return the content of a frame. Raises OSError if its integrity check fails."""
        if self._protection is Protection.AUTH:
            return frame
        try:
            return bytes(self._context.unwrap(frame).message)
        except self._gss.exceptions.GSSError as error:
            raise OSError(f"a frame failed the integrity check of Kerberos: {_message(error)}") from error

    @property
    def _is_secret(self) -> bool:
        return self._protection is Protection.CONFIDENTIALITY

    def _first(self) -> bytes:
        gss = self._gss
        flags = gss.RequirementFlag
        with _alone(gss, self._login, self._server):
            self._context = gss.SecurityContext(
                name=gss.Name(self._server, gss.NameType.kerberos_principal),
                creds=_credentials(gss, self._login),
                mech=gss.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity | flags.confidentiality,
                usage="initiate",
            )
            return self._context.step() or b""

    def _chosen(self, offer: bytes) -> bytes:
        """Return the reply to the metastore's offer.

        Each consists of four bytes: the bits of the protections, and the largest frame that the sender accepts.
        """
        offered = {protection for protection in Protection if len(offer) == 4 and protection.value & offer[0]}
        common = offered & self._login.protection
        if not common:
            ours, theirs = (_labels(some) for some in (self._login.protection, offered))
            raise ConfigError(
                f"no common protection: ingestd allows {ours}, but the metastore offers {theirs or 'none'}",
                where="metastore.kerberos.protection",
                hint="allow one that the metastore offers, or change hadoop.rpc.protection of the metastore",
            )
        best = max(common, key=lambda protection: protection.value)
        most = 0 if best is Protection.AUTH else _MAX_UNWRAPPED
        # No authorization id follows the four bytes: the metastore uses the principal of the ticket.
        reply = self._context.wrap(struct.pack(">I", best.value << 24 | most), False).message  # noqa: FBT003
        self._protection = best
        if most:
            theirs_most = int.from_bytes(offer[1:], "big")
            self._max_wrapped = self._context.get_wrap_size_limit(theirs_most, self._is_secret)
        return bytes(reply)


def check_login(login: Kerberos) -> None:
    """Raise LoginFailed with the exact fault of the keytab, if `login` uses one."""
    if login.keytab:
        check_keytab(login.keytab, login.user or "", file_key="metastore.kerberos.keytab", user_key=_USER_KEY)


def ticket_owner() -> str | None:
    """Return the short name of the owner of the caller's ticket cache; None if there is no valid ticket."""
    try:
        gss = _gssapi()
    except ConfigError:
        return None
    try:
        return short_name(str(gss.Credentials(usage="initiate", mechs=[gss.MechType.kerberos]).name))
    except gss.exceptions.GSSError:
        return None


def ticket_seconds(login: Kerberos) -> float | None:
    """Return the seconds until the ticket of `login` expires, 0 without a valid one; None while a login is in progress.

    Reads the ticket cache: that of the user or, with a keytab, the one in memory that the last login has filled. Sends
    nothing to the KDC. Raises ConfigError if gssapi is not installed.
    """
    gss = _gssapi()
    if not _ONE_LOGIN.acquire(blocking=False):
        return None
    try:
        store = {"ccache": _account(login).cache} if login.keytab else None
        credentials = gss.Credentials(
            name=_name(gss, login), usage="initiate", mechs=[gss.MechType.kerberos], store=store
        )
        return float(credentials.lifetime)
    except gss.exceptions.GSSError:
        return 0.0
    finally:
        _ONE_LOGIN.release()


@dataclass(frozen=True, slots=True)
class Ticket:
    """The ticket of a login: its owner, and the seconds until it expires."""

    owner: str
    seconds_left: int


def read_ticket(login: Kerberos) -> Ticket:
    """Return the ticket that a login would use. With a keytab, one is requested from the KDC unless one is cached.

    Raises LoginFailed, MetastoreUnavailable if no KDC answers, and ConfigError if gssapi is not installed.
    """
    gss = _gssapi()
    with _alone(gss, login, login.principal):
        credentials = _credentials(gss, login)
        return Ticket(str(credentials.name), int(credentials.lifetime or 0))


@dataclass(slots=True)
class _Account:
    """What the logins of one principal share; guarded by `_ONE_LOGIN`.

    `number` is that of its ticket cache in memory, and `failed` the time of `failure`, its last login without a KDC.
    """

    name: str
    number: int = 0
    failed: float = 0.0
    failure: MetastoreUnavailable | None = None

    @property
    def cache(self) -> str:
        """The name of the ticket cache in memory, which a login with a keytab uses."""
        return f"MEMORY:ingestd-{self.name}-{self.number}"


_accounts: dict[str, _Account] = {}


def _account(login: Kerberos) -> _Account:
    name = hashlib.sha256(f"{login.user}\n{login.keytab}".encode()).hexdigest()[:16]
    return _accounts.setdefault(name, _Account(name))


@contextmanager
def _alone(gss: Any, login: Kerberos, server: str) -> Iterator[None]:
    """Log in inside the `with` block while no other thread does, and translate the errors of Kerberos.

    A KDC that is frozen blocks a login for half a minute. Threads that have waited meanwhile fail with the same error.
    """
    began = monotonic()
    with _ONE_LOGIN:
        account = _account(login)
        if account.failure is not None and account.failed >= began:
            raise MetastoreUnavailable(account.failure.what, where=account.failure.where, hint=account.failure.hint)
        try:
            yield
        except gss.exceptions.GSSError as error:
            failure = _translated(error, login, server)
            if isinstance(failure, MetastoreUnavailable):
                account.failed, account.failure = monotonic(), failure
                # With an expired ticket in its cache, Kerberos does not say why it obtained no new one. The next login
                # uses an empty cache, and fails with the reason.
                account.number += _code(error) == EXPIRED
            raise failure from error


def _gssapi() -> Any:
    try:
        import gssapi  # noqa: PLC0415  # an optional dependency
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"metastore.kerberos requires the package gssapi: {error}",
            where="metastore.kerberos",
            hint="run pip install 'ingestd[kerberos]', which needs the Kerberos libraries (Debian: libkrb5-dev, gcc)",
        ) from error
    return gssapi


def _credentials(gss: Any, login: Kerberos) -> Any:
    """Return the credentials for one login. Kerberos requests a ticket from the KDC only if no valid one is cached."""
    store = None
    if login.keytab:
        check_login(login)
        store = {"client_keytab": str(login.keytab), "ccache": _account(login).cache}
    return gss.Credentials(name=_name(gss, login), usage="initiate", mechs=[gss.MechType.kerberos], store=store)


def _name(gss: Any, login: Kerberos) -> Any:
    return gss.Name(login.user, gss.NameType.kerberos_principal) if login.user else None


def _translated(error: Any, login: Kerberos, server: str) -> IngestdError:
    code = _code(error)
    message = _message(error)
    if code in NO_KDC:
        return MetastoreUnavailable(message, where="Kerberos", hint=KDC_HINT)
    if code == EXPIRED and login.keytab:
        what = f"the ticket of {login.user} has expired, and no new one could be obtained with {login.keytab}"
        return MetastoreUnavailable(what, where="Kerberos", hint=KDC_HINT)
    if code == NO_SUCH_SERVER:
        return LoginFailed(
            f"the KDC does not know {server}: {message}",
            where="metastore.kerberos.principal",
            hint="_HOST is replaced by the host in metastore.uri; the result must be the metastore's own principal",
        )
    if login.keytab:
        return LoginFailed(
            f"no ticket for {login.user}: {message}",
            where=f"metastore.kerberos.keytab {login.keytab}",
            hint=login_hint(code, _USER_KEY, f"run kinit -k -t {login.keytab} {login.user} to reproduce the error"),
        )
    return LoginFailed(
        f"no ticket for {login.user or 'the current user'}: {message}",
        where="Kerberos ticket cache",
        hint=login_hint(code, _USER_KEY, f"run kinit, or set metastore.kerberos.keytab and {_USER_KEY}"),
    )


def _code(error: Any) -> int:
    """Return the code in the error tables of Kerberos. If a ticket expires in the middle of a login, there is none."""
    kinds = _gssapi().exceptions
    is_expired = isinstance(error, (kinds.ExpiredCredentialsError, kinds.ExpiredContextError))
    return EXPIRED if is_expired else signed(error.min_code)


def _message(error: Any) -> str:
    """Return Kerberos' message without status numbers. The minor status is more specific than the major one."""
    minor = [text for text in error.get_all_statuses(error.min_code, False) if text.strip()]  # noqa: FBT003
    return " ".join(minor) or str(error)


def _labels(some: Iterable[Protection]) -> str:
    return ", ".join(protection.label for protection in sorted(some, key=lambda protection: protection.value))
