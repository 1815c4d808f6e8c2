"""The shape of the configuration: every key that exists, with its default and its check.

Invariant: an unknown key is refused with its path and the nearest known name; nothing is accepted and ignored. What may
be a secret is never repeated: no value of `kafka`, `spark.conf` or `metastore.plain`, whatever its type, no list or
section that stands where a single value belongs, and nothing that came out of a reference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    TypeAdapter,
    ValidationError,
)

from ingestd.config.files import Settings
from ingestd.config.units import seconds, size
from ingestd.errors import ConfigError, ConfigFaults
from ingestd.hive.client import Metastore, addresses
from ingestd.hive.security import Kerberos, Plain, Protection, Security, Tls
from ingestd.hive.tables import TableName
from ingestd.ingest.options import CommitOptions, MappingOptions, StartOptions
from ingestd.kafka.settings import setting_faults


def _count(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _single(value: object) -> object:
    if not isinstance(value, (str, int, float)):
        raise ValueError("must be text, a number, true or false")
    return value


Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(size), Field(gt=0)]
Count = Annotated[int, BeforeValidator(_count), Field(gt=0)]
Setting = Annotated[Any, BeforeValidator(_single)]
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\]|-cluster\[[\d, ]+\])?|yarn|(spark|k8s|mesos)://\S+")
_TOPIC = re.compile(r"(?!\.{1,2}$)[\w.-]{1,249}", re.ASCII)


def _mapping_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("must be 1 to 40 lower-case letters, digits or _: it becomes part of a Hive table's name")
    return name


def _table_name(text: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)?", text):
        raise ValueError("must be database.table")
    return text


def _topic_name(text: str) -> str:
    if not _TOPIC.fullmatch(text):
        raise ValueError("must be the name of one topic: 1 to 249 letters, digits, '.', '_' or '-'")
    return text


def _spark_master(text: str) -> str:
    if not _MASTER.fullmatch(text):
        raise ValueError("must be a master of Spark: local[*], local[4], spark://HOST:7077, yarn or k8s://HOST:PORT")
    return text


def _partition_text(value: object) -> object:
    """Hive's text of what YAML takes for a number, a flag or a date."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float, date)) else value


def _start(value: object) -> StartOptions:
    if value == "earliest":
        return StartOptions("earliest")
    if value == "latest":
        return StartOptions("latest")
    try:
        if isinstance(value, dict) and list(value) == ["timestamp"]:
            moment = TypeAdapter(datetime).validate_python(value["timestamp"])
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return StartOptions("timestamp", int(moment.timestamp() * 1000))
    except ValidationError:
        pass
    raise ValueError("must be earliest, latest or {timestamp: 2026-11-01T00:00:00Z}; without a zone it is UTC")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


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
    """`master` as Spark writes it; `stage_timeout` limits one job; `conf` is handed to Spark as it is."""

    master: Annotated[str, AfterValidator(_spark_master)] = "local[*]"
    stage_timeout: Seconds = 900.0
    conf: dict[str, Setting] = Field(default={}, repr=False)


class ControlSection(_Section):
    """Where ingestd keeps the state of its mappings."""

    database: Annotated[str, AfterValidator(_mapping_name)] = "ingestd"


class ShutdownSection(_Section):
    """How long a SIGTERM may take before what is open is aborted."""

    timeout: Seconds = 30.0


class CommitSection(_Section):
    """A transaction is closed by whichever comes first; `partitions` bounds how many it may write."""

    rows: Count | None = None
    bytes: Bytes | None = None
    interval: Seconds | None = None
    partitions: Count | None = None


class DefaultsSection(_Section):
    """What a mapping takes where it says nothing."""

    commit: CommitSection = CommitSection()


class FormatSection(_Section):
    """How records are read; `tombstones`: what to do with a record that has no value."""

    type: Literal["json"] = "json"
    tombstones: Literal["stop", "skip"] = "stop"


class MappingSection(_Section):
    """One mapping: topics into one table."""

    name: Annotated[str, AfterValidator(_mapping_name)]
    topics: Annotated[list[Annotated[str, AfterValidator(_topic_name)]], Field(min_length=1)]
    table: Annotated[str, AfterValidator(_table_name)]
    format: FormatSection = FormatSection()
    partition: dict[str, Annotated[str, BeforeValidator(_partition_text)]] = {}
    commit: CommitSection = CommitSection()
    start: Annotated[StartOptions, PlainValidator(_start)] = StartOptions()
    on_offset_loss: Literal["stop", "earliest", "latest"] = "stop"
    group: Annotated[str, Field(min_length=1)] | None = None
    kafka: dict[str, Setting] = Field(default={}, repr=False)


class Document(_Section):
    """The whole configuration."""

    metastore: MetastoreSection
    kafka: dict[str, Setting] = Field(repr=False)
    spark: SparkSection = SparkSection()
    control: ControlSection = ControlSection()
    shutdown: ShutdownSection = ShutdownSection()
    defaults: DefaultsSection = DefaultsSection()
    mappings: Annotated[list[MappingSection], Field(min_length=1)]

    def options(self) -> list[MappingOptions]:
        """The mappings with the defaults filled in."""
        return [self._options(m) for m in self.mappings]

    def faults(self) -> Iterator[ConfigError]:
        """What is wrong beyond the shape: addresses, logins, names used twice, Kafka keys refused or unknown."""
        yield from _raised(lambda: addresses(self.metastore.uri))
        yield from _raised(self.metastore.security)
        names = [m.name for m in self.mappings]
        for index, mapping in enumerate(self.mappings):
            if mapping.name in names[:index]:
                what = f"another mapping has the name {mapping.name} too"
                yield ConfigError(what, where=f"mappings[{index}].name", hint="rename one")
        for index, mapping in enumerate(self.mappings):
            section = partial(_kafka_section, own=mapping.kafka, path=f"mappings[{index}].kafka")
            yield from setting_faults({**self.kafka, **mapping.kafka}, section)

    def _options(self, section: MappingSection) -> MappingOptions:
        return MappingOptions(
            name=section.name,
            topics=tuple(dict.fromkeys(section.topics)),
            table=TableName.parse(section.table),
            control_database=self.control.database,
            group=section.group or f"ingestd-{section.name}",
            tombstones=section.format.tombstones,
            partition=section.partition,
            commit=_commit_options(self.defaults.commit, section.commit),
            start=section.start,
            on_offset_loss=section.on_offset_loss,
            kafka={**self.kafka, **section.kafka},
        )


def _raised(check: Callable[[], object]) -> Iterator[ConfigError]:
    try:
        check()
    except ConfigError as error:
        yield error


def _kafka_section(key: str, *, own: Mapping[str, object], path: str) -> str:
    """Where a Kafka key is set: in the mapping's own section, at `path`, or in the common one."""
    return path if key in own else "kafka"


def validated(settings: Settings) -> Document:
    """Check a document. Raises ConfigFaults with every fault, its file, line and path."""
    found: list[ConfigError] = []
    try:
        document = Document.model_validate(settings.values)
        found.extend(document.faults())
    except ValidationError as error:
        found.extend(_fault(fault, settings) for fault in error.errors())
    if not found:
        return document
    faults = {str(fault): fault for fault in map(settings.located, found)}
    raise ConfigFaults(sorted(faults.values(), key=settings.line_order))


def _commit_options(defaults: CommitSection, own: CommitSection) -> CommitOptions:
    given = {**defaults.model_dump(exclude_none=True), **own.model_dump(exclude_none=True)}
    if "interval" in given:
        given["interval_seconds"] = given.pop("interval")
    return CommitOptions(**given)


# No value of these is repeated, nor what stands in their place.
_SECRET = re.compile(r"(mappings\[\d+\]\.)?kafka\b|spark\.conf\b|metastore\.plain\b")
_SENTENCES = {
    "missing": "is missing",
    "model_type": "must be keys and values",
    "dict_type": "must be keys and values",
    "list_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "path_type": "must be the path of a file",
    "too_short": "must have at least one entry",
    "string_too_short": "must not be empty",
    "greater_than": "must be greater than 0",
}


def _fault(fault: Any, settings: Settings) -> ConfigError:
    path = _path(fault["loc"], settings.values)
    if fault["type"] == "extra_forbidden":
        return ConfigError(_unknown(fault["loc"]), where=path)
    given = fault["input"]
    if given is None:
        return ConfigError("has no value", where=path, hint="give it one, or remove the key")
    what = _SENTENCES.get(fault["type"], "")
    if fault["type"] == "literal_error":
        what = f"must be {fault['ctx']['expected']}"
    elif fault["type"] == "value_error":
        what = str(fault["ctx"]["error"])
    elif not what:
        what = "is not valid here"
    single = isinstance(given, (str, int, float, date))
    if fault["type"] != "missing" and single and not _SECRET.match(path) and path not in settings.references:
        what = f"{what}, not {given if isinstance(given, date) else repr(given)}"
    return ConfigError(what, where=path)


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


def _unknown(location: tuple[str | int, ...]) -> str:
    """The sentence for a key that does not exist here: the known key that it resembles most, or all."""
    parents = [part for part in location[:-1] if part in _SECTIONS]
    known = list((_SECTIONS[str(parents[-1])] if parents else Document).model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return "unknown key, " + (f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}")
