"""The shape of the configuration: every key that exists, with its default and its check.

Invariant: an unknown key is refused with its path and the nearest known name; nothing is accepted and ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from ingestd.config.units import seconds, size
from ingestd.errors import ConfigError
from ingestd.hive.client import Metastore, addresses
from ingestd.hive.security import Kerberos, Plain, Protection, Security, Tls
from ingestd.hive.tables import TableName
from ingestd.ingest.options import CommitOptions, MappingOptions, StartOptions
from ingestd.kafka.client import check_settings

Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(size), Field(gt=0)]
_NAME = re.compile(r"[a-z0-9_]{1,40}")


def _mapping_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("must be 1 to 40 lower-case letters, digits or _: it becomes part of a Hive table's name")
    return name


def _table_name(text: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)?", text):
        raise ValueError(f"{text!r} is not database.table")
    return text


def _partition_text(value: object) -> object:
    """Hive's text of what YAML takes for a number, a flag or a date."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float, date)) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KerberosSection(_Section):
    """`principal` is the metastore's; without `keytab` the caller's ticket counts."""

    principal: str
    user: str | None = None
    keytab: Path | None = None
    protection: list[Literal["auth", "auth-int", "auth-conf"]] = ["auth", "auth-int", "auth-conf"]

    def login(self) -> Kerberos:
        """As the connection takes it. Raises ConfigError."""
        allowed = frozenset(one for one in Protection if one.label in self.protection)
        return Kerberos(self.principal, self.user, self.keytab, allowed)


class PlainSection(_Section):
    """User and password over SASL; `password: ${FILE:/path}` keeps it out of the configuration."""

    username: str
    password: SecretStr

    def login(self) -> Plain:
        """As the connection takes it. Raises ConfigError."""
        return Plain(self.username, self.password.get_secret_value())


class TlsSection(_Section):
    """`ca_file` (PEM) holds whom we trust, by default the system's list."""

    ca_file: Path | None = None
    verify_hostname: bool = True


class MetastoreSection(_Section):
    """`uri`: thrift://host:port, several separated by commas; at most one of `kerberos` and `plain`."""

    uri: str
    timeout: Seconds = 60.0
    kerberos: KerberosSection | None = None
    plain: PlainSection | None = None
    tls: TlsSection | None = None

    def security(self) -> Security:
        """Login and wire. Raises ConfigError."""
        if self.kerberos and self.plain:
            raise ConfigError("there are two ways to log in", where="metastore", hint="leave kerberos or plain out")
        login = self.kerberos or self.plain
        return Security(
            login=login.login() if login else None,
            tls=Tls(self.tls.ca_file, self.tls.verify_hostname) if self.tls else None,
        )

    def connect(self) -> Metastore:
        """A metastore that dials at its first call. Raises ConfigError."""
        return Metastore(self.uri, timeout_seconds=self.timeout, security=self.security())


class SparkSection(_Section):
    """`master` as Spark writes it; `conf` is handed to Spark as it is."""

    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = {}


class ControlSection(_Section):
    """Where ingestd keeps the state of its mappings."""

    database: Annotated[str, AfterValidator(_mapping_name)] = "ingestd"


class ShutdownSection(_Section):
    """How long a SIGTERM may take before what is open is aborted."""

    timeout: Seconds = 30.0


class CommitSection(_Section):
    """A transaction is closed by whichever comes first."""

    rows: Annotated[int, Field(gt=0)] | None = None
    bytes: Bytes | None = None
    interval: Seconds | None = None


class DefaultsSection(_Section):
    """What a mapping takes where it says nothing."""

    commit: CommitSection = CommitSection()


class FormatSection(_Section):
    """How records are read; `tombstones`: what to do with a record that has no value."""

    type: Literal["json"] = "json"
    tombstones: Literal["stop", "skip"] = "stop"


class TimestampStart(_Section):
    """`start: {timestamp: 2026-11-01T00:00:00Z}`; without a zone it is UTC."""

    timestamp: datetime


class MappingSection(_Section):
    """One mapping: topics into one table."""

    name: Annotated[str, AfterValidator(_mapping_name)]
    topics: Annotated[list[str], Field(min_length=1)]
    table: Annotated[str, AfterValidator(_table_name)]
    format: FormatSection = FormatSection()
    partition: dict[str, Annotated[str, BeforeValidator(_partition_text)]] = {}
    commit: CommitSection = CommitSection()
    start: Literal["earliest", "latest"] | TimestampStart = "earliest"
    on_offset_loss: Literal["stop", "earliest", "latest"] = "stop"
    group: str | None = None
    kafka: dict[str, str | int | float | bool] = {}


class Document(_Section):
    """The whole configuration."""

    metastore: MetastoreSection
    kafka: dict[str, str | int | float | bool]
    spark: SparkSection = SparkSection()
    control: ControlSection = ControlSection()
    shutdown: ShutdownSection = ShutdownSection()
    defaults: DefaultsSection = DefaultsSection()
    mappings: Annotated[list[MappingSection], Field(min_length=1)]

    def options(self) -> list[MappingOptions]:
        """The mappings with the defaults filled in.

        Raises ConfigError for a wrong address, a name used twice, or a Kafka key that is refused or unknown.
        """
        addresses(self.metastore.uri)
        self.metastore.security()
        names = [m.name for m in self.mappings]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError("two mappings have this name", where=f"mappings: {name}", hint="rename one")
        return [self._options(index, m) for index, m in enumerate(self.mappings)]

    def _options(self, index: int, section: MappingSection) -> MappingOptions:
        kafka = {**self.kafka, **section.kafka}
        check_settings(kafka, f"mappings[{index}].kafka" if section.kafka else "kafka")
        return MappingOptions(
            name=section.name,
            topics=tuple(dict.fromkeys(section.topics)),
            table=TableName.parse(section.table),
            control_database=self.control.database,
            group=section.group or f"ingestd-{section.name}",
            tombstones=section.format.tombstones,
            partition=section.partition,
            commit=_commit_options(self.defaults.commit, section.commit),
            start=_start_options(section.start),
            on_offset_loss=section.on_offset_loss,
            kafka=kafka,
        )


def validated(document: Mapping[str, Any]) -> Document:
    """Check a document. Raises ConfigError that lists every fault with its path, one a line."""
    try:
        return Document.model_validate(document)
    except ValidationError as error:
        faults = [_sentence(fault, document) for fault in error.errors()]
        raise ConfigError("; ".join(dict.fromkeys(faults))) from error


def _commit_options(defaults: CommitSection, own: CommitSection) -> CommitOptions:
    given = {**defaults.model_dump(exclude_none=True), **own.model_dump(exclude_none=True)}
    if "interval" in given:
        given["interval_seconds"] = given.pop("interval")
    return CommitOptions(**given)


def _start_options(start: str | TimestampStart) -> StartOptions:
    if isinstance(start, TimestampStart):
        moment = start.timestamp if start.timestamp.tzinfo else start.timestamp.replace(tzinfo=timezone.utc)
        return StartOptions("timestamp", int(moment.timestamp() * 1000))
    return StartOptions("latest" if start == "latest" else "earliest")


# Where a value may be a password, it is not repeated.
_SECRET = ("metastore.plain", "kafka")


def _sentence(fault: Any, document: Mapping[str, Any]) -> str:
    path = _path(fault["loc"], document)
    if fault["type"] == "extra_forbidden":
        return f"{path}: unknown key{_nearest(fault['loc'])}"
    if fault["type"] == "missing":
        return f"{path}: is missing"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if "not " in message or path.startswith(_SECRET):
        return f"{path}: {message}"
    return f"{path}: {message}, not {fault['input']!r}"


def _path(location: tuple[str | int, ...], document: Mapping[str, Any]) -> str:
    """`mappings[0].commit.rows`; parts that pydantic adds to tell union members apart are left out."""
    path, at = "", document
    for number, part in enumerate(location):
        last = number == len(location) - 1
        if isinstance(part, int):
            path, at = f"{path}[{part}]", at[part] if isinstance(at, list) and part < len(at) else {}
        elif isinstance(at, Mapping) and (part in at or last):
            path, at = f"{path}.{part}" if path else part, at.get(part, {})
    return path


_SECTIONS: dict[str, type[BaseModel]] = {
    "metastore": MetastoreSection,
    "kerberos": KerberosSection,
    "plain": PlainSection,
    "tls": TlsSection,
    "spark": SparkSection,
    "control": ControlSection,
    "shutdown": ShutdownSection,
    "defaults": DefaultsSection,
    "format": FormatSection,
    "commit": CommitSection,
    "mappings": MappingSection,
}


def _nearest(location: tuple[str | int, ...]) -> str:
    """The known key that the misspelt one resembles most."""
    parents = [part for part in location[:-1] if part in _SECTIONS]
    known = list((_SECTIONS[str(parents[-1])] if parents else Document).model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f", did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"
