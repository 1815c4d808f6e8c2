"""The configuration section `metastore`.

Invariant: options that can be constructed can be used to connect.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.errors import ConfigError
from ingestd.hive.client import CONNECTIONS, Metastore, addresses
from ingestd.hive.security import Kerberos, Plain, Security, Tls
from ingestd.keys import Count, Seconds


@dataclass(frozen=True, slots=True)
class MetastoreOptions:
    """The addresses of the metastore, and the login.

    `uri` is `thrift://host:port`; several addresses of one metastore are separated by commas. `timeout` is the time
    limit of one call, and `connections` the maximum number of connections, which all mappings share. At most one of
    `kerberos` and `plain` may be set. `tls` encrypts the connections.

    Raises ConfigError for an invalid address, or if both `kerberos` and `plain` are set.
    """

    uri: str
    timeout: Seconds = 60.0
    connections: Count = CONNECTIONS
    kerberos: Kerberos | None = None
    plain: Plain | None = None
    tls: Tls | None = None

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

    def connect(self) -> Metastore:
        """Return a client that connects at its first call."""
        return Metastore(self.uri, timeout_seconds=self.timeout, security=self.security, connections=self.connections)
