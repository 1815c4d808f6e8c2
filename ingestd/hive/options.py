"""The configuration section `metastore`.

Invariant: options that can be constructed can be used to connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ingestd.errors import ConfigError
from ingestd.hive.client import CONNECTIONS, Metastore, OnCall, addresses, ignore_call
from ingestd.hive.security import Kerberos, Plain, Security, Tls
from ingestd.keys import Count, Doc, Seconds


@dataclass(frozen=True, slots=True)
class MetastoreOptions:
    """The addresses of the metastore, and the login.

    `uri` is `thrift://host:port`; several addresses of one metastore are separated by commas. `timeout` is the time
    limit of one call, and `connections` the maximum number of connections, which all mappings share. At most one of
    `kerberos` and `plain` may be set. `tls` encrypts the connections.

    Raises ConfigError for an invalid address, or if both `kerberos` and `plain` are set.
    """

    uri: Annotated[str, Doc("Addresses of one metastore, thrift://host:port, separated by commas and tried in order.")]
    timeout: Annotated[Seconds, Doc("Time limit of one call.")] = 60.0
    connections: Annotated[Count, Doc("Maximum number of connections, shared by all mappings.")] = CONNECTIONS
    kerberos: Annotated[Kerberos | None, Doc("Kerberos login; requires the extra `kerberos`.")] = None
    plain: Annotated[Plain | None, Doc("Login with user name and password over SASL (LDAP).")] = None
    tls: Annotated[Tls | None, Doc("Encrypts the connection; {} uses the defaults.")] = None

    def __post_init__(self) -> None:
        addresses(self.uri)
        if self.kerberos and self.plain:
            raise ConfigError(
                "kerberos and plain are mutually exclusive", where="metastore", hint="remove one of the two sections"
            )

    @property
    def security(self) -> Security:
        """Login and encryption of each connection."""
        return Security(login=self.kerberos or self.plain, tls=self.tls)

    def connect(self, on_call: OnCall = ignore_call) -> Metastore:
        """Return a client that connects at its first call. `on_call` observes its calls."""
        return Metastore(
            self.uri,
            timeout_seconds=self.timeout,
            security=self.security,
            connections=self.connections,
            on_call=on_call,
        )
