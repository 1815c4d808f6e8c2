"""Login and encryption settings of a metastore connection.

Invariant: a value that contradicts itself raises ConfigError when it is created, so every existing value can be used to
connect. `repr` never contains a password.
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
from ingestd.keys import Doc, Reads

_log = logging.getLogger(__name__)
_HOST = "_HOST"
_PRINCIPAL = re.compile(r"[^/@\s]+/[^/@\s]+(@[^/@\s]+)?")
_JAVA_STORE_SUFFIXES = (".jks", ".p12", ".pfx", ".bcfks")


class Protection(Enum):
    """The SASL quality of protection after the login; the value is its bit in the handshake (RFC 4752, 3.3)."""

    AUTH = 1
    INTEGRITY = 2
    CONFIDENTIALITY = 4

    @property
    def label(self) -> str:
        """The name of the protection in SASL and in the configuration."""
        return {1: "auth", 2: "auth-int", 4: "auth-conf"}[self.value]


ALL_PROTECTIONS = frozenset(Protection)
_LABELS = {"enum": [protection.label for protection in Protection]}


def _protection(label: object) -> Protection:
    """Return the protection with this label. Raises ValueError."""
    for protection in Protection:
        if protection.label == label:
            return protection
    raise ValueError("must be 'auth', 'auth-int' or 'auth-conf'")


@dataclass(frozen=True, slots=True)
class Kerberos:
    """A Kerberos login (SASL GSSAPI).

    `principal` is that of the metastore, such as `hive/_HOST@REALM`. With `keytab`, each connect obtains a ticket for
    `user` from the keytab if the last ticket has expired. Without `keytab`, the caller's ticket cache is used, for
    `user` if given. The strongest of `protection` that the metastore offers is used.

    Raises ConfigError for an invalid principal, a keytab without `user`, or an empty `protection`.
    """

    principal: Annotated[str, Doc("The metastore's principal, such as hive/_HOST@REALM; _HOST means its host name.")]
    user: Annotated[str | None, Doc("The principal to log in as; required with `keytab`.")] = None
    keytab: Annotated[Path | None, Doc("Read for each connection; without it, the ticket cache is used.")] = None
    protection: Annotated[
        frozenset[Annotated[Protection, Reads(_protection, _LABELS)]],
        Doc("Allowed levels of protection; the strongest that the metastore offers is used."),
    ] = ALL_PROTECTIONS

    def __post_init__(self) -> None:
        _require(self.principal, str, "metastore.kerberos.principal")
        _require(self.user, (str, type(None)), "metastore.kerberos.user")
        _require(self.keytab, (str, Path, type(None)), "metastore.kerberos.keytab")
        _require(self.protection, (frozenset, set), "metastore.kerberos.protection")
        if not _PRINCIPAL.fullmatch(self.principal):
            raise ConfigError(
                f"{self.principal!r} is not a service principal",
                where="metastore.kerberos.principal",
                hint="write SERVICE/HOST@REALM, such as hive/_HOST@EXAMPLE.COM; _HOST means the host in metastore.uri",
            )
        if self.keytab is not None and not self.user:
            raise ConfigError(
                "a keytab is set, but not the principal to log in as",
                where="metastore.kerberos.user",
                hint="set it to a principal that `klist -k KEYTAB` lists",
            )
        if not self.protection:
            raise ConfigError(
                "the list of allowed protections is empty",
                where="metastore.kerberos.protection",
                hint="list at least one of auth, auth-int and auth-conf",
            )

    def principal_at(self, host: str) -> str:
        """Return the metastore's principal (SecurityUtil.getServerPrincipal).

        `_HOST` is replaced by `host` in lower case.
        """
        service, _, rest = self.principal.partition("/")
        name, at, realm = rest.partition("@")
        return f"{service}/{host.lower() if name == _HOST else name}{at}{realm}"


@dataclass(frozen=True, slots=True)
class Plain:
    """A login with user name and password (SASL PLAIN), which Hive 4 checks with LDAP or its own authenticator.

    Without TLS the password is sent in clear text. Raises ConfigError if the user name or the password is empty or
    contains a NUL character.
    """

    username: Annotated[str, Doc("The user name.")]
    password: Annotated[str, Doc("The password; write a reference such as ${FILE:/path}.")] = field(repr=False)

    def __post_init__(self) -> None:
        for key, value in (("username", self.username), ("password", self.password)):
            _require(value, str, f"metastore.plain.{key}")
            # RFC 4616: NUL separates the two, and neither may be empty.
            if not value or "\0" in value:
                raise ConfigError(f"the {key} is empty or contains a NUL character", where=f"metastore.plain.{key}")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings. `ca_file` contains the trusted CA certificates in PEM format; None means those of the system."""

    ca_file: Annotated[Path | None, Doc("Trusted CA certificates (PEM); by default those of the system.")] = None
    verify_hostname: Annotated[bool, Doc("Whether the certificate must contain the host name of the metastore.")] = True

    def __post_init__(self) -> None:
        _require(self.ca_file, (str, Path, type(None)), "metastore.tls.ca_file")
        _require(self.verify_hostname, bool, "metastore.tls.verify_hostname")


@dataclass(frozen=True, slots=True)
class Security:
    """Login and encryption of a metastore connection; by default neither, as in the metastore's own defaults.

    `unsecured_user` is the user name that is sent to a metastore without login (`set_ugi`), which does not verify it.
    The default is the user of the process. Raises ConfigError if both a login and `unsecured_user` are set.
    """

    login: Kerberos | Plain | None = None
    tls: Tls | None = None
    unsecured_user: str | None = None

    def __post_init__(self) -> None:
        _require(self.login, (Kerberos, Plain, type(None)), "login")
        _require(self.tls, (Tls, type(None)), "tls")
        _require(self.unsecured_user, (str, type(None)), "unsecured_user")
        if self.login is not None and self.unsecured_user is not None:
            raise ConfigError("cannot be combined with a login", where="unsecured_user", hint="remove it, or the login")

    @property
    def user(self) -> str | None:
        """The user name that the metastore sees; None when only a ticket cache or the process determines it."""
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
        """Create the settings that the properties of a hive-site.xml require, as Hive 4's HiveMetaStoreClient does.

        Hive stores a client's credentials elsewhere (ticket cache, credential store), so they are parameters. `user` is
        the principal or user name to log in as, or `unsecured_user` without login. `keytab` defaults to
        `metastore.kerberos.keytab.file`, but only if `user` is given and the file is readable, because on many machines
        it is the metastore's own keytab. Raises ConfigError for a principal without `sasl.enabled`, and for features
        that ingestd does not support: HTTP, JWT, framed or compact Thrift, and Java trust stores.
        """
        _require(conf, Mapping, "conf")
        _require(user, (str, type(None)), "user")
        hive = _HiveConf(conf)
        hive.refuse_other_protocols()
        login = hive.login(user, keytab, password)
        return cls(login, hive.tls(ca_file), user if login is None else None)


class _HiveConf:
    """The properties of a hive-site.xml, by their names since Hive 3 or their older names (MetastoreConf.ConfVars)."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = conf

    def refuse_other_protocols(self) -> None:
        if self._text("metastore.client.thrift.transport.mode").lower() == "http":
            raise _unusable("metastore.client.thrift.transport.mode", "the metastore's HTTP transport is not supported")
        for key in ("metastore.thrift.framed.transport.enabled", "metastore.thrift.compact.protocol.enabled"):
            if self._flag(key):
                raise _unusable(key, "Thrift's framed transport and compact protocol are not supported")

    def login(self, user: str | None, keytab: Path | None, password: str) -> Kerberos | Plain | None:
        # PLAIN overrides sasl.enabled (createAuthBinaryTransport). Unlike Hive, KERBEROS does not need sasl.enabled.
        mode = self._text("metastore.client.auth.mode").upper()
        if mode == "JWT":
            raise _unusable(
                "metastore.client.auth.mode", "JWT requires the metastore's HTTP transport, which is not supported"
            )
        if mode not in ("", "NOSASL", "PLAIN", "KERBEROS"):
            raise _unusable("metastore.client.auth.mode", f"{mode!r} is not one of NOSASL, PLAIN, KERBEROS")
        if mode == "PLAIN":
            return _plain(user or self._text("metastore.client.plain.username"), password)
        principal = self._text("metastore.kerberos.principal")
        if mode == "KERBEROS" or self._flag("metastore.sasl.enabled"):
            return Kerberos(principal, user, keytab or self._keytab(user), self._protections())
        if not (principal or keytab or password):
            return None
        if not self._text("metastore.sasl.enabled") and not mode:
            # HiveMetaStoreClient then does not log in, and only the metastore's answer may show it.
            raise ConfigError(
                "is not set, so there is no login, although a principal, keytab or password is given",
                where="hive.metastore.sasl.enabled",
                hint="set it to true to log in with Kerberos, or to false if no login is wanted",
            )
        _log.warning("metastore.sasl.enabled is false: principal, keytab and password are ignored")
        return None

    def _keytab(self, user: str | None) -> Path | None:
        file = self._text("metastore.kerberos.keytab.file")
        if not file:
            return None
        if user and os.access(file, os.R_OK):
            return Path(file)
        why = "the file is not readable" if user else "no user is given"
        _log.info("using the ticket cache instead of metastore.kerberos.keytab.file: %s", why)
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
            hint="convert it with keytool -exportcert -rfc -alias NAME -keystore STORE, and pass the PEM file:"
            " Security.from_hive_conf(…, ca_file=…)",
        )

    def _protections(self) -> frozenset[Protection]:
        given = self._text("hadoop.rpc.protection")
        names = [name.strip().lower() for name in given.split(",") if name.strip()]
        # With TLS, Hive reduces the protection to auth on both sides (getMetaStoreSaslProperties).
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
        values = (self._conf.get(name) for name in (key, f"hive.{key}"))
        return next((str(value).strip() for value in values if value is not None), "")

    def _flag(self, key: str) -> bool:
        return self._text(key).lower() == "true"


def _require(value: object, kinds: type | tuple[type, ...], where: str) -> None:
    """Raise ConfigError if the value has another type. The message does not contain the value, which may be secret."""
    if not isinstance(value, kinds):
        wanted = [kind for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if kind is not type(None)]
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ConfigError(f"must be {names}, not {type(value).__name__}", where=where)


def short_name(principal: str) -> str:
    """Return the short name of a principal by Hadoop's default rule, without auth_to_local.

    It is `hive` for `hive/host@REALM`.
    """
    return re.split("[/@]", principal)[0]


def _plain(username: str, password: str) -> Plain:
    if username and not password:
        raise ConfigError(
            "metastore.client.auth.mode is PLAIN, but there is no password",
            where="metastore.plain.password",
            hint="pass it: Security.from_hive_conf(…, password=…)",
        )
    return Plain(username, password)


def _unusable(key: str, what: str) -> ConfigError:
    return ConfigError(what, where=key)


def _is_pem(file: Path) -> bool:
    try:
        return b"-----BEGIN " in file.read_bytes()
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=str(file)) from None
