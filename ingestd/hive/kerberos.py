"""The Kerberos login of one connection; the only door to gssapi, which is loaded at the first such login.

Invariant: credentials are made anew for each login, so a connection can be dialled as long as the keytab or the ticket
cache is good, however old the process is. Kerberos' own texts are completed with what we see ourselves.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable
from ingestd.hive.security import Kerberos, Protection, short_name

# A ticket cache of ours is rewritten when its ticket grows old; no other login may read it meanwhile.
_ONE_LOGIN = threading.Lock()
_MOST_UNWRAPPED = 0xFFFFFF
_TABLE = -1765328384  # MIT's krb5 error table; a minor status of GSSAPI is one of its codes
_NO_KDC = (_TABLE + 154, _TABLE + 156)  # KRB5_REALM_CANT_RESOLVE, KRB5_KDC_UNREACH
_NO_SUCH_SERVER = _TABLE + 7  # KDC_ERR_S_PRINCIPAL_UNKNOWN
_HINTS = {
    _TABLE + 6: "the KDC does not know metastore.kerberos.user",  # KDC_ERR_C_PRINCIPAL_UNKNOWN
    _TABLE + 18: "the KDC has locked metastore.kerberos.user",  # KDC_ERR_CLIENT_REVOKED
    _TABLE + 24: "the keytab's key is not (or no longer) the one in the KDC: export it again",  # PREAUTH_FAILED
    _TABLE + 31: "the keytab's key is not (or no longer) the one in the KDC: export it again",  # BAD_INTEGRITY
    _TABLE + 37: "the clock of this machine and the KDC's differ",  # KRB_AP_ERR_SKEW
}


class KerberosExchange:
    """SASL GSSAPI (RFC 4752) with the metastore at `host`."""

    mechanism = b"GSSAPI"
    hint = "is metastore.kerberos.principal the one it runs as, and do the clocks agree? see its log"

    def __init__(self, login: Kerberos, host: str) -> None:
        self._login = login
        self._server = login.principal_at(host)
        self._gss = _gssapi()
        self._context: Any = None
        self._protection: Protection | None = None
        self._most_wrapped = 0

    @property
    def complete(self) -> bool:
        """True when both sides are proven and the protection is agreed on."""
        return self._protection is not None

    def answer(self, challenge: bytes) -> bytes:
        """Our next token; after the last one, the choice among the protections that the metastore offers."""
        if self._context is None:
            return self._first()
        try:
            if self._context.complete:
                return self._chosen(self._context.unwrap(challenge).message)
            return self._context.step(challenge) or b""
        except self._gss.exceptions.GSSError as error:
            raise LoginFailed(
                f"the metastore did not prove to be {self._server}: {_words(error)}",
                where="metastore.kerberos.principal",
            ) from error

    def frames(self, data: bytes) -> Iterable[bytes]:
        """`data` under the agreed protection, in pieces that fit the metastore's buffer; raises OSError."""
        if self._protection is Protection.AUTH:
            return [data]
        pieces = (data[at : at + self._most_wrapped] for at in range(0, len(data), self._most_wrapped))
        try:
            return [self._context.wrap(piece, self._is_secret).message for piece in pieces]
        except self._gss.exceptions.GSSError as error:
            raise OSError(f"Kerberos could not protect a frame: {_words(error)}") from error

    def unwrap(self, frame: bytes) -> bytes:
        """What the metastore said; raises OSError when it was changed on the way."""
        if self._protection is Protection.AUTH:
            return frame
        try:
            return bytes(self._context.unwrap(frame).message)
        except self._gss.exceptions.GSSError as error:
            raise OSError(f"a frame failed Kerberos' check: {_words(error)}") from error

    @property
    def _is_secret(self) -> bool:
        return self._protection is Protection.CONFIDENTIALITY

    def _first(self) -> bytes:
        gss = self._gss
        flags = gss.RequirementFlag
        try:
            with _ONE_LOGIN:
                self._context = gss.SecurityContext(
                    name=gss.Name(self._server, gss.NameType.kerberos_principal),
                    creds=_credentials(gss, self._login),
                    mech=gss.MechType.kerberos,
                    flags=flags.mutual_authentication | flags.integrity | flags.confidentiality,
                    usage="initiate",
                )
                return self._context.step() or b""
        except gss.exceptions.GSSError as error:
            raise _translated(error, self._login, self._server) from error

    def _chosen(self, offer: bytes) -> bytes:
        """Four bytes each way: the bits of the protections, and the largest frame that the sender takes."""
        offered = {one for one in Protection if len(offer) == 4 and one.value & offer[0]}
        common = offered & self._login.protection
        if not common:
            ours, theirs = (_labels(some) for some in (self._login.protection, offered))
            raise ConfigError(
                f"no common protection: we take {ours}, the metastore offers {theirs or 'none'}",
                where="metastore.kerberos.protection",
                hint="hadoop.rpc.protection of the metastore must allow one of ours",
            )
        best = max(common, key=lambda one: one.value)
        most = 0 if best is Protection.AUTH else _MOST_UNWRAPPED
        # No name behind the four bytes: who we are is what the ticket says.
        reply = self._context.wrap(struct.pack(">I", best.value << 24 | most), False).message  # noqa: FBT003
        self._protection = best
        if most:
            theirs_most = int.from_bytes(offer[1:], "big")
            self._most_wrapped = self._context.get_wrap_size_limit(theirs_most, self._is_secret)
        return bytes(reply)


def ticket_owner() -> str | None:
    """Short name of whom the caller's ticket cache belongs to; None when there is no good ticket."""
    try:
        gss = _gssapi()
    except ConfigError:
        return None
    try:
        return short_name(str(gss.Credentials(usage="initiate", mechs=[gss.MechType.kerberos]).name))
    except gss.exceptions.GSSError:
        return None


def _gssapi() -> Any:
    try:
        import gssapi  # noqa: PLC0415  # an optional dependency
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"metastore.kerberos needs the package gssapi ({error})",
            where="metastore.kerberos",
            hint="pip install 'ingestd[kerberos]', and the system's Kerberos libraries (Debian: libkrb5-dev, gcc)",
        ) from error
    return gssapi


def _credentials(gss: Any, login: Kerberos) -> Any:
    """Fresh credentials; Kerberos itself asks the KDC for a ticket only when the cached one is old or absent."""
    name = gss.Name(login.user, gss.NameType.kerberos_principal) if login.user else None
    store = None
    if login.keytab:
        _check_keytab(login.keytab, login.user or "")
        ours = hashlib.sha256(f"{login.user}\n{login.keytab}".encode()).hexdigest()[:16]
        store = {"client_keytab": str(login.keytab), "ccache": f"MEMORY:ingestd-{ours}"}
    return gss.Credentials(name=name, usage="initiate", mechs=[gss.MechType.kerberos], store=store)


def _translated(error: Any, login: Kerberos, server: str) -> IngestdError:
    code = _code(error)
    words = _words(error)
    if code in _NO_KDC:
        return MetastoreUnavailable(words, where="Kerberos", hint="do the KDCs of krb5.conf answer?")
    if code == _NO_SUCH_SERVER:
        return LoginFailed(
            f"the KDC knows no {server}: {words}",
            where="metastore.kerberos.principal",
            hint="_HOST becomes the host of metastore.uri; both must be as in the metastore's own principal",
        )
    if login.keytab:
        return LoginFailed(
            f"no ticket for {login.user}: {words}",
            where=f"metastore.kerberos.keytab {login.keytab}",
            hint=_HINTS.get(code, f"try: kinit -k -t {login.keytab} {login.user}"),
        )
    return LoginFailed(
        f"no ticket for {login.user or 'the caller'}: {words}",
        where="Kerberos ticket cache",
        hint=_HINTS.get(code, "run kinit (see klist), or set metastore.kerberos.keytab and metastore.kerberos.user"),
    )


def _code(error: Any) -> int:
    """The minor status as Kerberos' tables have it: signed."""
    return int(error.min_code) - (1 << 32 if error.min_code >= 1 << 31 else 0)


def _words(error: Any) -> str:
    """Kerberos' own words without the numbers around them; the minor status says more than the major one."""
    minor = [text for text in error.get_all_statuses(error.min_code, False) if text.strip()]  # noqa: FBT003
    return " ".join(minor) or str(error)


def _labels(some: Iterable[Protection]) -> str:
    return ", ".join(one.label for one in sorted(some, key=lambda one: one.value))


def _check_keytab(file: Path, user: str) -> None:
    """Raise LoginFailed naming what is wrong with the file; to Kerberos all of it is "no credentials"."""
    where = f"metastore.kerberos.keytab {file}"
    try:
        names = list(_keytab_principals(file.read_bytes()))
    except OSError as error:
        raise LoginFailed(f"the keytab cannot be read ({error.strerror})", where=where) from error
    except (struct.error, UnicodeDecodeError):
        raise LoginFailed("the file is no keytab", where=where) from None
    known = names if "@" in user else [name.partition("@")[0] for name in names]
    if user not in known:
        raise LoginFailed(
            f"the keytab holds no key of {user}",
            where=where,
            hint=f"it holds {', '.join(sorted(set(names))) or 'none'}; set metastore.kerberos.user",
        )


def _keytab_principals(data: bytes) -> Iterator[str]:
    """The names in a keytab, MIT's format 2: entries of a signed length, a negative one being a hole."""
    if data[:2] != b"\x05\x02":
        raise struct.error
    at = 2
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if length > 0:
            count, *_ = struct.unpack_from(">H", data, at)
            realm, *parts = _texts(data, at + 2, count + 1)
            yield f"{'/'.join(parts)}@{realm}"
        at += abs(length)


def _texts(data: bytes, at: int, count: int) -> Iterator[str]:
    for _ in range(count):
        (length,) = struct.unpack_from(">H", data, at)
        (text,) = struct.unpack_from(f">{length}s", data, at + 2)
        yield text.decode()
        at += 2 + length
