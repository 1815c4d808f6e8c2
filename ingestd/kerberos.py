"""What the Kerberos logins to the metastore and to HDFS share: the meaning of error codes, and the check of a keytab.

Invariant: no error message contains a key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ingestd.errors import LoginFailed

_TABLE = -1765328384  # MIT's krb5 error table; GSSAPI's minor status is one of its codes
# No KDC was found or answered, or it cannot access its database: KRB5_REALM_UNKNOWN, KRB5_KDC_UNREACH,
# KRB5_REALM_CANT_RESOLVE, KDC_ERR_SVC_UNAVAILABLE, KRB_ERR_GENERIC.
NO_KDC = (_TABLE + 154, _TABLE + 156, _TABLE + 220, _TABLE + 29, _TABLE + 60)
NO_SUCH_SERVER = _TABLE + 7  # KDC_ERR_S_PRINCIPAL_UNKNOWN
EXPIRED = _TABLE + 32  # KRB_AP_ERR_TKT_EXPIRED
KDC_HINT = "check that the KDCs in krb5.conf are running and reachable"
_KEY = "export the keytab again: its key differs from that of the KDC"
_CLOCKS = "synchronize the clocks of this machine, of the KDC and of the server"
# {user} is the configuration key of the principal that logs in.
_HINTS = {
    _TABLE + 1: "extend the principal in the KDC",  # KDC_ERR_NAME_EXP
    _TABLE + 6: "correct {user}: the KDC does not know it",  # KDC_ERR_C_PRINCIPAL_UNKNOWN
    _TABLE + 18: "unlock {user} in the KDC",  # KDC_ERR_CLIENT_REVOKED
    _TABLE + 24: _KEY,  # PREAUTH_FAILED
    _TABLE + 31: _KEY,  # BAD_INTEGRITY
    _TABLE + 37: _CLOCKS,  # KRB_AP_ERR_SKEW
    _TABLE + 148: _CLOCKS,  # KRB5_KDCREP_SKEW
}


def signed(minor: int) -> int:
    """Return a minor status of GSSAPI as in the error tables of Kerberos, which are signed."""
    return minor - (1 << 32 if minor >= 1 << 31 else 0)


def login_hint(code: int, user_key: str, otherwise: str) -> str:
    """Return how to fix a failed login, or `otherwise`. `user_key` is the configuration key of its principal."""
    return _HINTS.get(code, otherwise).format(user=user_key)


def check_keytab(file: Path, user: str, *, file_key: str, user_key: str) -> None:
    """Raise LoginFailed with the exact fault of a keytab. Kerberos reports every such fault as missing credentials.

    `file_key` and `user_key` are the configuration keys of the keytab and of the principal `user`.
    """
    where = f"{file_key} {file}"
    try:
        names = list(_principals(file.read_bytes()))
    except OSError as error:
        raise LoginFailed(
            f"the keytab cannot be read: {error.strerror}",
            where=where,
            hint="the keytab must exist on every machine that runs ingestd or its tasks, and be readable there",
        ) from error
    except (struct.error, UnicodeDecodeError):
        raise LoginFailed("the file is not a keytab", where=where, hint="export it again with kadmin ktadd") from None
    known = names if "@" in user else [name.partition("@")[0] for name in names]
    if user not in known:
        raise LoginFailed(
            f"the keytab has no key for {user}",
            where=where,
            hint=f"set {user_key} to a principal in it: {', '.join(sorted(set(names))) or 'none'}",
        )


def _principals(data: bytes) -> Iterator[str]:
    """Yield the principals in a keytab of MIT's format 2. An entry with a negative length is a hole."""
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
