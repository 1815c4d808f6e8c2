"""The section `http` of the configuration: where the daemon's HTTP server listens, and what it requires of clients.

Invariant: an existing value can be used as it is, except that its files may be missing and its port may be in use.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from ingestd.errors import ConfigError
from ingestd.keys import Doc, Reads

_MAX_PORT = 65_535
_TOKEN = re.compile(r"[!-~]{16,}")


class Address(NamedTuple):
    """A host name or IP address, and a TCP port. Port 0 means a free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect to the address."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# JSON Schema of the YAML values that `_listen` accepts.
_LISTEN = {"type": ["string", "boolean"]}
_DEFAULT_ADDRESS = Address("127.0.0.1", 8080)


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address (without brackets) is a loopback address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(value: object) -> Address | Literal["off"]:
    """Parse `host:port` or `off`, which YAML parses as false. Raises ValueError."""
    if value is False or value == "off":
        return "off"
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+)):(\d{1,5})", str(value))
    if match is None or int(match[3]) > _MAX_PORT:
        raise ValueError("must be host:port, such as 127.0.0.1:8080 or [::]:8080, or off")
    return Address(match[1] or match[2], int(match[3]))


def read_token(file: Path, where: str) -> str:
    """Return the token in a file, without white space around it. `where` names the setting with the name of the file.

    Raises ConfigError, which does not contain the token.
    """
    try:
        token = file.read_bytes().decode("latin-1").strip()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", where=where) from error
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{file} must contain a token: at least 16 ASCII characters, without white space between them",
            where=where,
            hint="create one with: openssl rand -hex 32",
        )
    return token


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: `certificate` with the whole chain of the server, and its private `key`."""

    certificate: Annotated[Path, Doc("PEM file with the certificate of the server and its chain.")]
    key: Annotated[Path, Doc("PEM file with the private key, without a password.")]


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where the HTTP server listens.

    Without `listen`, this is 127.0.0.1:8080 unless another process uses it, and then there is no server. Requests that
    change the daemon must present the token in `token_file`. Without a token they are accepted only from this machine.
    """

    listen: Annotated[
        Address | Literal["off"] | None,
        Reads(_listen, _LISTEN),
        Doc("host:port, or off; by default 127.0.0.1:8080, or off if that is in use."),
    ] = None
    token_file: Annotated[Path | None, Doc("File with the token that requests for changes must present.")] = None
    tls: Annotated[TlsFiles | None, Doc("Encrypts the connections.")] = None

    @property
    def address(self) -> Address | None:
        """The address to listen at; None if the server is off."""
        if self.listen is None:
            return _DEFAULT_ADDRESS
        return None if self.listen == "off" else self.listen
