"""Chooses loopback ports once, and checks that each is free before a service is started on it.

Invariant: a port that users connect to changes only on request. An internal port may change at every start.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from ingestd.errors import SandboxError
from ingestd.sandbox.options import SERVICES, SandboxOptions

HOST = "127.0.0.1"
CONTROLLER = "controller"  # Kafka's controller quorum
DERBY = "derby"  # the network server inside the metastore's process, for HiveServer2's JDBC
_INTERNAL = (CONTROLLER, DERBY)
_RANGE = (20_000, 32_000)  # below the ephemeral ports of outgoing connections


def is_free(port: int) -> bool:
    """Return whether a server can listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        # Servers set this option too, so connections in TIME_WAIT do not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def settle(
    options: SandboxOptions, remembered: dict[str, int], starting: Collection[str], running: frozenset[str]
) -> dict[str, int]:
    """Choose the missing ports and return all ports by name. The ports of `running` services do not change.

    Raises SandboxError when the port of a `starting` service is in use, or when another port is requested for a running
    service.
    """
    ports = dict(remembered)
    for service in SERVICES:
        asked = options.asked_port(service)
        if service in running:
            _reject_move(service, asked, ports[service])
        elif asked is not None:
            ports[service] = asked
        elif service not in ports:
            ports[service] = _choose(ports)
        if service in starting:
            _reject_taken(service, ports[service])
    for name, service in zip(_INTERNAL, SERVICES, strict=False):
        if service not in running and not (name in ports and is_free(ports[name])):
            ports[name] = _choose(ports)
    return ports


def _reject_move(service: str, asked: int | None, port: int) -> None:
    if asked not in (None, port):
        raise SandboxError(f"{service} is already running on port {port}", hint="run `ingestd sandbox down` first")


def _reject_taken(service: str, port: int) -> None:
    if not is_free(port):
        raise SandboxError(
            f"port {port} for {service} is in use by another program",
            where=f"{HOST}:{port}",
            hint=f"choose another port with --{service}-port",
        )


def _choose(taken: dict[str, int]) -> int:
    for _ in range(1000):
        port = random.randint(*_RANGE)
        if port not in taken.values() and is_free(port):
            return port
    raise SandboxError(f"no free port was found between {_RANGE[0]} and {_RANGE[1]}", where=HOST)
