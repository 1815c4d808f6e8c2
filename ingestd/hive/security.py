"""How a metastore connection proves who we are and whom we talk to, as plain values.

Invariant: a value that can be made can be dialled with; what contradicts itself raises ConfigError when it is made. A
password is never in `repr`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from ingestd.errors import ConfigError
from ingestd.keys import Reads

_log = logging.getLogger(__name__)
_HOST = "_HOST"
_PRINCIPAL = re.compile(r"[^/@\s]+/[^/@\s]+(@[^/@\s]+)?")
_JAVA_STORE_SUFFIXES = (".jks", ".p12", ".pfx", ".bcfks")


class Protection(Enum):
    """What SASL does to the bytes after the login; the value is its bit in the handshake (RFC 4752, 3.3)."""

    AUTH = 1
    INTEGRITY = 2
    CONFIDENTIALITY = 4

    @property
    def label(self) -> str:
        """SASL's name of it."""
        return {1: "auth", 2: "auth-int", 4: "auth-conf"}[self.value]


ALL_PROTECTIONS = frozenset(Protection)


def _protection(label: object) -> Protection:
    """The protection that SASL calls `label`."""
    for protection in Protection:
        if protection.label == label:
            return protection
    raise ValueError("must be 'auth', 'auth-int' or 'auth-conf'")


@dataclass(frozen=True, slots=True)
class Kerberos:
    """SASL GSSAPI.

    `principal` is the metastore's, `hive/_HOST@REALM`. With `keytab` we log in as `user` by ourselves, anew at each
    connect; without it the caller's ticket cache counts (of `user` when given). The strongest of `protection` that
    the metastore offers is taken. Raises ConfigError.
    """

    principal: str
    user: str | None = None
    keytab: Path | None = None
    protection: frozenset[Annotated[Protection, Reads(_protection)]] = ALL_PROTECTIONS

    def __post_init__(self) -> None:
        _require(self.principal, str, "metastore.kerberos.principal")
        _require(self.user, (str, type(None)), "metastore.kerberos.user")
        _require(self.keytab, (str, Path, type(None)), "metastore.kerberos.keytab")
        _require(self.protection, (frozenset, set), "metastore.kerberos.protection")
        if not _PRINCIPAL.fullmatch(self.principal):
            raise ConfigError(
                f"{self.principal!r} is not the principal of a service",
                where="metastore.kerberos.principal",
                hint="hive/_HOST@EXAMPLE.COM; _HOST stands for the host of the address",
            )
        if self.keytab is not None and not self.user:
            raise ConfigError(
                "a keytab needs the name to log in with",
                where="metastore.kerberos.user",
                hint="one of those that `klist -k KEYTAB` lists",
            )
        if not self.protection:
            raise ConfigError("no protection is allowed", where="metastore.kerberos.protection")

    def principal_at(self, host: str) -> str:
        """The metastore's principal at `host`, in lower case as Hadoop writes it (SecurityUtil.getServerPrincipal)."""
        service, _, rest = self.principal.partition("/")
        name, at, realm = rest.partition("@")
        return f"{service}/{host.lower() if name == _HOST else name}{at}{realm}"


@dataclass(frozen=True, slots=True)
class Plain:
    """SASL PLAIN, name and password, which the metastore gives to LDAP or to its own check (Hive 4).

    Without TLS the password goes over the wire as it is. Raises ConfigError.
    """

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for key, value in (("username", self.username), ("password", self.password)):
            _require(value, str, f"metastore.plain.{key}")
            # RFC 4616: NUL separates the two, and neither may be empty.
            if not value or "\0" in value:
                raise ConfigError(f"the {key} is empty or has a NUL in it", where=f"metastore.plain.{key}")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS under everything else; `ca_file` (PEM) holds whom we trust, the system's own list when None."""

    ca_file: Path | None = None
    verify_hostname: bool = True

    def __post_init__(self) -> None:
        _require(self.ca_file, (str, Path, type(None)), "metastore.tls.ca_file")
        _require(self.verify_hostname, bool, "metastore.tls.verify_hostname")


@dataclass(frozen=True, slots=True)
class Security:
    """Login and wire of a metastore connection; the default is neither, as the metastore's own default is.

    `unsecured_user` is the name that a metastore without login is told and believes (`set_ugi`), by default the
    process's. Raises ConfigError.
    """

    login: Kerberos | Plain | None = None
    tls: Tls | None = None
    unsecured_user: str | None = None

    def __post_init__(self) -> None:
        _require(self.login, (Kerberos, Plain, type(None)), "login")
        _require(self.tls, (Tls, type(None)), "tls")
        _require(self.unsecured_user, (str, type(None)), "unsecured_user")
        if self.login is not None and self.unsecured_user is not None:
            raise ConfigError("a login says who we are, no other name can be told", where="unsecured_user")

    @property
    def user(self) -> str | None:
        """Who we are to the metastore, where that can be told from here: the short name of a principal."""
        if isinstance(self.login, Plain):
            return self.login.username
        if isinstance(self.login, Kerberos):
            return short_name(self.login.user) if self.login.user else None
        return self.unsecured_user

    @classmethod
    def from_hive_conf(
        cls,
        conf: Mapping[str, str],
        *,
        user: str | None = None,
        keytab: Path | None = None,
        password: str = "",
        ca_file: Path | None = None,
    ) -> Security:
        """What the properties of a hive-site.xml ask of a client, by the rules of Hive 4's HiveMetaStoreClient.

        Hive keeps the client's credentials elsewhere (ticket cache, credential store), so they are arguments: `user` is
        who we are, by Kerberos, by password or, where no login is asked for, by mere word; `keytab` is by default
        `metastore.kerberos.keytab.file` when a `user` is given and the file can be read, since on many machines that
        is the metastore's own. Raises ConfigError for what only a JVM can do: HTTP, JWT, framed or compact Thrift, a
        Java trust store.
        """
        _require(conf, Mapping, "conf")
        _require(user, (str, type(None)), "user")
        hive = _HiveConf(conf)
        hive.refuse_other_protocols()
        login = hive.login(user, keytab, password)
        return cls(login, hive.tls(ca_file), user if login is None else None)


class _HiveConf:
    """Properties by their names since Hive 3 (metastore.x), else by their older ones (MetastoreConf.ConfVars)."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = conf

    def refuse_other_protocols(self) -> None:
        if self._text("metastore.client.thrift.transport.mode").lower() == "http":
            raise _unusable("metastore.client.thrift.transport.mode", "the metastore's HTTP transport is not spoken")
        for key in ("metastore.thrift.framed.transport.enabled", "metastore.thrift.compact.protocol.enabled"):
            if self._flag(key):
                raise _unusable(key, "this form of Thrift is not spoken")

    def login(self, user: str | None, keytab: Path | None, password: str) -> Kerberos | Plain | None:
        # PLAIN goes before sasl.enabled (createAuthBinaryTransport); KERBEROS alone is ignored there, and meant here.
        mode = self._text("metastore.client.auth.mode").upper()
        if mode == "JWT":
            raise _unusable("metastore.client.auth.mode", "JWT goes with the metastore's HTTP transport only")
        if mode not in ("", "NOSASL", "PLAIN", "KERBEROS"):
            raise _unusable("metastore.client.auth.mode", f"{mode!r} is not known")
        if mode == "PLAIN":
            return _plain(user or self._text("metastore.client.plain.username"), password)
        principal = self._text("metastore.kerberos.principal")
        if mode == "KERBEROS" or self._flag("metastore.sasl.enabled"):
            return Kerberos(principal, user, keytab or self._keytab(user), self._protections())
        if principal or keytab or password:
            # So does HiveMetaStoreClient, whose users wonder about it too.
            _log.warning("metastore.sasl.enabled is not true, so there is no login: principal, keytab, password unused")
        return None

    def _keytab(self, user: str | None) -> Path | None:
        file = self._text("metastore.kerberos.keytab.file")
        if not file:
            return None
        if user and os.access(file, os.R_OK):
            return Path(file)
        why = f"{user} cannot read it" if user else "nobody said whose key to take (user)"
        _log.info("metastore.kerberos.keytab.file is not used, the ticket cache is: %s", why)
        return None

    def tls(self, ca_file: Path | None) -> Tls | None:
        if not self._flag("metastore.use.SSL"):
            return None
        store = self._text("metastore.truststore.path")
        if ca_file or not store:
            return Tls(ca_file)
        kind = self._text("metastore.truststore.type").upper()
        if kind in ("", "PEM") and not store.lower().endswith(_JAVA_STORE_SUFFIXES) and _is_pem(Path(store)):
            return Tls(Path(store))
        raise ConfigError(
            f"the Java trust store {store} cannot be read without a JVM",
            where="metastore.truststore.path",
            hint="keytool -exportcert -rfc -alias NAME -keystore STORE makes PEM of its certificates; give that file:"
            " Security.from_hive_conf(…, ca_file=…)",
        )

    def _protections(self) -> frozenset[Protection]:
        given = self._text("hadoop.rpc.protection")
        names = [name.strip().lower() for name in given.split(",") if name.strip()]
        # With TLS below, both sides of Hive fall back to mere authentication (getMetaStoreSaslProperties).
        if not names or self._flag("metastore.use.SSL"):
            return ALL_PROTECTIONS
        known = {
            "authentication": Protection.AUTH,
            "integrity": Protection.INTEGRITY,
            "privacy": Protection.CONFIDENTIALITY,
        }
        unknown = [name for name in names if name not in known]
        if unknown:
            raise _unusable("hadoop.rpc.protection", f"{unknown[0]!r} is not one of {', '.join(known)}")
        return frozenset(known[name] for name in names)

    def _text(self, key: str) -> str:
        found = (self._conf.get(name) for name in (key, f"hive.{key}"))
        return next((str(value).strip() for value in found if value is not None), "")

    def _flag(self, key: str) -> bool:
        return self._text(key).lower() == "true"


def _require(value: object, kinds: type | tuple[type, ...], where: str) -> None:
    """Raise ConfigError for a value of another type; the value may be a secret, so only its type is told."""
    if not isinstance(value, kinds):
        wanted = [kind for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if kind is not type(None)]
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ConfigError(f"must be {names}, not {type(value).__name__}", where=where)


def short_name(principal: str) -> str:
    """`hive` of `hive/host@REALM`: Hadoop's default rule, without the cluster's own auth_to_local."""
    return re.split("[/@]", principal)[0]


def _plain(username: str, password: str) -> Plain:
    if username and not password:
        raise ConfigError(
            "the configuration asks for a password and has none",
            where="metastore.plain.password",
            hint="give it: Security.from_hive_conf(…, password=…)",
        )
    return Plain(username, password)


def _unusable(key: str, what: str) -> ConfigError:
    return ConfigError(what, where=key)


def _is_pem(file: Path) -> bool:
    try:
        return b"-----BEGIN " in file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=str(file)) from None
