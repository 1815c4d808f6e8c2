"""Chooses loopback ports once, and checks that each is free before a service is started on it.

Invariant: a port that users connect to changes only on request. An internal port may change at every start.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from ingestd.errors import SandboxError
from ingestd.sandbox.options import (
    BROKERS,
    DATANODES,
    METASTORE,
    NAMENODE,
    S3_SERVER,
    SPARK_MASTER,
    SPARK_WORKERS,
    TARGET,
    TARGET_HIVESERVER2,
    TARGET_METASTORE,
    SandboxOptions,
)

HOST = "127.0.0.1"
CONTROLLER = "controller"  # the first member of Kafka's controller quorum
CONTROLLERS = (CONTROLLER, "controller-2", "controller-3")  # of each broker, in the order of `BROKERS`
DERBY = "derby"  # the network server inside the metastore's process, for HiveServer2's JDBC
TARGET_DERBY = f"{TARGET}{DERBY}"
NAMENODE_HTTP = "namenode-http"
SPARK_MASTER_HTTP = "spark-master-http"


def datanode_ports(service: str) -> tuple[str, str]:
    """Return the names of the ports on which a DataNode serves HTTP and transfers data."""
    return f"{service}-http", f"{service}-data"


# Ports that no other service knows before it starts, and the service that listens on each.
_INTERNAL = {
    DERBY: METASTORE,
    TARGET_DERBY: TARGET_METASTORE,
    NAMENODE_HTTP: NAMENODE,
    **{name: service for service in DATANODES for name in datanode_ports(service)},
    SPARK_MASTER_HTTP: SPARK_MASTER,
}
_WITHOUT_OPTION = (
    *(NAMENODE, *DATANODES, S3_SERVER, *BROKERS[1:], SPARK_MASTER, *SPARK_WORKERS),
    *(TARGET_METASTORE, TARGET_HIVESERVER2),
)
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
    options: SandboxOptions,
    storage: str,
    remembered: dict[str, int],
    starting: Collection[str],
    running: frozenset[str],
) -> dict[str, int]:
    """Choose the missing ports and return all ports by name. The ports of `running` services do not change.

    Raises SandboxError when the port of a `starting` service is in use, when another port is requested for a running
    service, or when another number of brokers or of clusters is requested than the sandbox has.
    """
    _reject_other_brokers(options, sum(name in remembered for name in BROKERS))
    _reject_other_clusters(options, remembered)
    ports = dict(remembered)
    services = options.possible_services(storage)
    for service in services:
        asked = options.asked_port(service)
        if service in running:
            _reject_move(service, asked, ports[service])
        elif asked is not None:
            ports[service] = asked
        elif service not in ports:
            ports[service] = _choose(ports)
        if service in starting:
            _reject_taken(service, ports[service])
    _settle_controllers(options, ports, starting, running)
    for name, service in _INTERNAL.items():
        if service in services and service not in running and not (name in ports and is_free(ports[name])):
            ports[name] = _choose(ports)
    return ports


def _settle_controllers(
    options: SandboxOptions, ports: dict[str, int], starting: Collection[str], running: frozenset[str]
) -> None:
    """Choose the ports between brokers. Brokers that run know the port of each controller, which must not change."""
    for name, service in zip(CONTROLLERS[: options.brokers], BROKERS, strict=False):
        is_fixed = name in ports and not running.isdisjoint(BROKERS)
        if is_fixed and service in starting:
            _reject_taken(service, ports[name])
        elif not is_fixed and not (name in ports and is_free(ports[name])):
            ports[name] = _choose(ports)


def _reject_other_brokers(options: SandboxOptions, present: int) -> None:
    """A quorum of controllers cannot get other members, because every member must agree."""
    if present not in (0, options.brokers):
        raise SandboxError(
            f"the number of brokers of a sandbox cannot change from {present} to {options.brokers}",
            where=str(options.folder),
            hint=f"use --brokers {present}, or another --state-dir",
        )


def _reject_other_clusters(options: SandboxOptions, remembered: Collection[str]) -> None:
    """A database that a metastore with an event log has used cannot be used by the other release."""
    if METASTORE in remembered and options.replica != (TARGET_METASTORE in remembered):
        hint = "use another --state-dir" if options.replica else "add --replica, or use another --state-dir"
        was = "one Hive" if options.replica else "a source and a target"
        raise SandboxError(f"this sandbox has {was}, which cannot change", where=str(options.folder), hint=hint)


def on_target(ports: dict[str, int]) -> dict[str, int]:
    """Return the ports as the services of the target know them, which have the names of the source's services."""
    own = {name.removeprefix(TARGET): port for name, port in ports.items() if name.startswith(TARGET)}
    return {**ports, **own}


def _reject_move(service: str, asked: int | None, port: int) -> None:
    if asked not in (None, port):
        raise SandboxError(f"{service} is already running on port {port}", hint="run `ingestd sandbox down` first")


def _reject_taken(service: str, port: int) -> None:
    if not is_free(port):
        raise SandboxError(
            f"port {port} for {service} is in use by another program",
            where=f"{HOST}:{port}",
            hint="end that program" if service in _WITHOUT_OPTION else f"choose another port with --{service}-port",
        )


def _choose(taken: dict[str, int]) -> int:
    for _ in range(1000):
        port = random.randint(*_RANGE)
        if port not in taken.values() and is_free(port):
            return port
    raise SandboxError(f"no free port was found between {_RANGE[0]} and {_RANGE[1]}", where=HOST)
