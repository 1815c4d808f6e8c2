"""The source from which a command reads and changes mappings: the daemon, or Hive and Kafka if there is none.

Invariant: a command with `--url` never falls back, because the user named the daemon. Without `--url`, only a daemon
that runs mappings of the configuration is used, because any daemon may listen at the default address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import click

from ingestd.cli.client import Daemon, DaemonUnreachable, Endpoint, OtherDaemon
from ingestd.config.document import Document, Scope, load
from ingestd.daemon import failpoints, log
from ingestd.errors import ConfigError
from ingestd.hive.client import Metastore
from ingestd.ingest.control import Request
from ingestd.ingest.inspection.preview import AtOffset, AtTime, Preview, preview
from ingestd.ingest.inspection.stored import StoredMapping, find_options, read_mapping, read_mappings, read_retirable
from ingestd.ingest.letters.reader import Selection, read_letters
from ingestd.ingest.letters.table import Letter
from ingestd.ingest.offline.change import change_stored, retire
from ingestd.ingest.offline.replay import ReplayResult, replay, try_replay
from ingestd.ingest.options import MappingOptions
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.local import LocalEngine
from ingestd.storage.storages import Storages

T = TypeVar("T")
_endpoint_options: list[Any] = [
    click.option("--url", help="URL of the daemon, http://HOST:PORT.  [default: http.listen of the configuration]"),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the daemon's token.  [default: http.token_file of the configuration; with --url, none]",
    ),
    click.option(
        "--ca-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="PEM file with the CAs that may issue the daemon's certificate.  [default: only http.tls.certificate"
        " of the configuration; with --url, the CAs of the system]",
    ),
]


def with_endpoint(command: Any) -> Any:
    """Add --url, --token-file and --ca-file to a command."""
    for option in reversed(_endpoint_options):
        command = option(command)
    return command


@dataclass
class Source:
    """The configuration and the daemon that the options of a command name."""

    files: Sequence[Path]
    directory: Path | None
    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    _has_reported: bool = field(default=False, init=False)

    @cached_property
    def document(self) -> Document:
        """The configuration. Raises ConfigFaults."""
        return load(self.files, self.directory)

    @property
    def endpoint(self) -> Endpoint | None:
        """The address of the daemon; None if neither --url nor the configuration has one."""
        if self.url:
            return Endpoint(self.url, self.token_file, self.ca_file)
        http = self.document.http
        listen = http.address
        if listen is None:
            return None
        scheme, host = ("https" if http.tls else "http"), listen.host
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - an address to connect to
        address = listen._replace(host=reachable)
        certificate = http.tls.certificate if http.tls and not self.ca_file else None
        return Endpoint(f"{scheme}://{address}", self.token_file or http.token_file, self.ca_file, certificate)

    def try_daemon(self, call: Callable[[Daemon], T]) -> T | None:
        """Return the answer of the daemon, or None if no daemon of the configuration answers.

        With --url, raises DaemonUnreachable instead. Reports once if a daemon of another configuration answers.
        """
        endpoint = self.endpoint
        if endpoint is None:
            return None
        try:
            return self.call_daemon(endpoint, call)
        except DaemonUnreachable as error:
            if self.url:
                raise
            if isinstance(error, OtherDaemon) and not self._has_reported:
                self._has_reported = True
                click.echo(f"ingestd: {error}", err=True)
            return None

    def call_daemon(self, endpoint: Endpoint, call: Callable[[Daemon], T]) -> T:
        """Return the answer of the daemon at the endpoint.

        Raises OtherDaemon if --url was not given and the daemon runs no mapping of the configuration.
        """
        daemon = Daemon(endpoint)
        if not self.url:
            fault = _difference(daemon.status(), self.document)
            if fault:
                hint = "it is not used; set http.listen to the address of your daemon, or use --url"
                raise OtherDaemon(fault, where=f"daemon {endpoint.url}", hint=hint)
        return call(daemon)

    def mapping(self, name: str) -> MappingOptions:
        """Return the mapping with this name. Raises ConfigError."""
        for options in self.document.mappings:
            if options.name == name:
                return options
        known = ", ".join(options.name for options in self.document.mappings)
        raise ConfigError(f"no mapping is named {name}", where="mappings", hint=f"the mappings are {known}")

    def read_stored(self) -> list[StoredMapping]:
        """Read all mappings from Hive and Kafka."""
        with self._metastore() as metastore:
            return read_mappings(metastore, self.document.mappings)

    def read_one(self, name: str) -> StoredMapping:
        """Read the mapping with this name from Hive and Kafka. Raises the error that prevents it."""
        options = self.mapping(name)
        with self._metastore() as metastore:
            return read_mapping(metastore, options)

    def preview(self, name: str, limit: int, start: AtTime | AtOffset | None) -> Preview:
        """Decode records of the mapping with this name. Raises the errors of `mapping` and of `preview`."""
        options = self.mapping(name)
        with self._metastore() as metastore, LocalEngine() as engine:
            return preview(metastore, options, limit, start, engine)

    def letters(self, name: str) -> Iterator[Letter]:
        """Yield the dead letters of the mapping with this name. Raises the errors of `mapping` and `read_letters`."""
        options = self.mapping(name)
        with self._metastore() as metastore:
            yield from read_letters(self._warehouse(metastore), options)

    def replay(self, name: str, selection: Selection) -> ReplayResult:
        """Replay dead letters of the mapping with this name. Raises the errors of `mapping` and `replay`."""
        log.configure("auto", "warning")
        options = self.mapping(name)
        with self._metastore() as metastore, LocalEngine() as engine:
            observe = failpoints.from_environment()(name)
            return replay(self._warehouse(metastore), options, selection, engine, observe)

    def try_replay(self, name: str, selection: Selection) -> ReplayResult:
        """Return what `replay` would do. Raises the errors of `mapping` and `try_replay`."""
        log.configure("auto", "error")
        options = self.mapping(name)
        with self._metastore() as metastore, LocalEngine() as engine:
            return try_replay(self._warehouse(metastore), options, selection, engine)

    def read_retirable(self, name: str) -> StoredMapping:
        """Read a mapping that may no longer be in the configuration."""
        with self._metastore() as metastore:
            options = next((mapping for mapping in self.document.mappings if mapping.name == name), None)
            if options is None:
                options = find_options(metastore, name, self.document.control.database, self.document.kafka)
            return read_retirable(metastore, options or self.mapping(name))

    def change_stored(self, options: MappingOptions, request: Request) -> None:
        """Carry out a request without a daemon. Raises OwnerAlive if a daemon runs the mapping."""
        log.configure("auto", "warning")
        with self._metastore() as metastore:
            observe = failpoints.from_environment()(options.name)
            change_stored(self._warehouse(metastore), options, request, observe)

    def retire(self, stored: StoredMapping) -> None:
        """Remove the stored state of a mapping. Raises OwnerAlive if a daemon runs the mapping."""
        log.configure("auto", "warning")
        with self._metastore() as metastore:
            retire(self._warehouse(metastore), stored, failpoints.from_environment()(stored.options.name))

    @contextmanager
    def _metastore(self) -> Iterator[Metastore]:
        metastore = self.document.metastore.connect()
        try:
            yield metastore
        finally:
            metastore.close()

    def _warehouse(self, metastore: Metastore) -> Warehouse:
        return Warehouse(metastore, Storages(self.document.storage))


def _difference(status: dict[str, Any], document: Document) -> str:
    """Return why a daemon with this /status does not belong to the configuration; empty if it does."""
    try:
        scope = Scope(tuple(status["daemon"]["metastore"]), status["daemon"]["control_database"])
        names = {mapping["name"] for mapping in status["mappings"]}
    except (KeyError, TypeError):  # an older release, or another program
        return "the server there does not report which mappings it runs"
    if not scope.is_same(document.scope):
        return f"a daemon of another configuration answers there ({scope})"
    if document.mappings and names.isdisjoint(options.name for options in document.mappings):
        return "a daemon of another configuration answers there (it runs no mapping of this one)"
    return ""
