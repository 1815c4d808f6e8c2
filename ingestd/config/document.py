"""The whole configuration: its sections, and the rules that involve several sections.

Invariant: a `Document` is complete. Every mapping contains the defaults and the common Kafka settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from ingestd.compaction.options import CompactionOptions, PacingOptions
from ingestd.config import validation
from ingestd.config.files import Settings, read_document
from ingestd.config.http import HttpOptions
from ingestd.errors import ConfigError
from ingestd.hive.client import addresses
from ingestd.hive.options import MetastoreOptions
from ingestd.ingest.options import CommitOptions, ControlOptions, MappingOptions
from ingestd.kafka.settings import client_faults, setting_faults
from ingestd.keys import NOT_EMPTY, Doc, Seconds, Setting
from ingestd.spark.options import SparkOptions

# Yields the faults of Kafka settings. The second argument returns the configuration section of a key.
FaultFinder = Callable[[Mapping[str, object], Callable[[str], str]], Iterator[ConfigError]]


@dataclass(frozen=True, slots=True)
class ShutdownOptions:
    """`timeout` is how long open transactions may take to finish after a SIGTERM, before they are aborted."""

    timeout: Annotated[Seconds, Doc("Time from the first SIGTERM to the abort of open transactions.")] = 30.0


@dataclass(frozen=True, slots=True)
class DefaultOptions:
    """Default values for keys that a mapping does not set."""

    commit: Annotated[CommitOptions, Doc("A transaction ends at the first of these limits.")] = field(
        default_factory=CommitOptions
    )
    compaction: Annotated[CompactionOptions, Doc("When compactions of the tables are requested.")] = field(
        default_factory=CompactionOptions
    )
    pacing: Annotated[PacingOptions, Doc("When commits become less frequent than commit.interval.")] = field(
        default_factory=PacingOptions
    )


@dataclass(frozen=True, slots=True)
class Scope:
    """Where the state of mappings is stored: `metastore` contains addresses of one metastore, `host:port`.

    A mapping is identified by its name and its scope.
    """

    metastore: tuple[str, ...]
    control_database: str

    def is_same(self, other: Scope) -> bool:
        """Return whether both store their state in one database. One common address of the metastore is enough."""
        return self.control_database == other.control_database and not set(self.metastore).isdisjoint(other.metastore)

    def __str__(self) -> str:
        return f"metastore {', '.join(self.metastore)}, control database {self.control_database}"


@dataclass(frozen=True, slots=True)
class Document:
    """A complete configuration. `kafka` contains the librdkafka properties that apply to all mappings."""

    metastore: Annotated[MetastoreOptions, Doc("The Hive Metastore and the login.")]
    kafka: Annotated[
        Mapping[str, Setting], Doc("librdkafka properties of all mappings; bootstrap.servers is required.")
    ] = field(repr=False)
    mappings: Annotated[tuple[MappingOptions, ...], NOT_EMPTY, Doc("Each mapping moves topics into one table.")]
    spark: Annotated[SparkOptions, Doc("The Spark session.")] = field(default_factory=SparkOptions)
    control: Annotated[ControlOptions, Doc("Where the state is stored.")] = field(default_factory=ControlOptions)
    http: Annotated[HttpOptions, Doc("Status page, status, health, metrics and control.")] = field(
        default_factory=HttpOptions
    )
    shutdown: Annotated[ShutdownOptions, Doc("How the daemon stops.")] = field(default_factory=ShutdownOptions)
    defaults: Annotated[DefaultOptions, Doc("Values for mappings that do not set them.")] = field(
        default_factory=DefaultOptions
    )

    @property
    def scope(self) -> Scope:
        """Where the state of the mappings is stored. It contains no secret."""
        found = (
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses(self.metastore.uri)
        )
        return Scope(tuple(found), self.control.database)


def load(files: Sequence[Path], directory: Path | None = None) -> Document:
    """Read and validate the files, and test the Kafka settings with librdkafka.

    Raises ConfigFaults with the file, line and path of every fault.
    """
    return complete(read_document(files, directory))


def complete(settings: Settings) -> Document:
    """Validate the content of the files, and test the Kafka settings with librdkafka. Raises ConfigFaults."""
    document = validate(settings)
    # Only a client detects contradictory settings and unreadable certificates. It opens no connection.
    _raise_any(_kafka_faults(document, settings, client_faults), settings)
    return document


def validate(settings: Settings) -> Document:
    """Validate the content of the files without creating a client. Raises ConfigFaults."""
    document = validation.validate(Document, settings)
    given: Sequence[Mapping[str, Any]] = settings.values["mappings"]
    mappings = (_with_common_values(document, own, keys) for own, keys in zip(document.mappings, given, strict=True))
    document = replace(document, mappings=tuple(mappings))
    _raise_any((*_repeated_names(document.mappings), *_kafka_faults(document, settings, setting_faults)), settings)
    return document


def _raise_any(faults: Iterable[ConfigError], settings: Settings) -> None:
    found = list(faults)
    if found:
        raise validation.config_faults(found, settings)


def _repeated_names(mappings: Sequence[MappingOptions]) -> Iterator[ConfigError]:
    names = [mapping.name for mapping in mappings]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ConfigError(f"another mapping is named {name}", where=f"mappings[{index}].name", hint="rename it")


def _kafka_faults(document: Document, settings: Settings, find: FaultFinder) -> Iterator[ConfigError]:
    for index, mapping in enumerate(document.mappings):
        own = settings.values["mappings"][index].get("kafka", {})

        def section(key: str, own: Mapping[str, Any] = own, path: str = f"mappings[{index}].kafka") -> str:
            return path if key in own else "kafka"

        yield from find(mapping.kafka, section)


def _with_common_values(document: Document, own: MappingOptions, given: Mapping[str, Any]) -> MappingOptions:
    """Return the mapping with the common values filled in. `given` contains the keys that the mapping itself sets."""

    def merged(section: str) -> Any:
        values = {key: getattr(getattr(own, section), key) for key in given.get(section, {})}
        return replace(getattr(document.defaults, section), **values)

    return replace(
        own,
        **{one.name: merged(one.name) for one in fields(DefaultOptions)},
        kafka={**document.kafka, **own.kafka},
        control_database=document.control.database,
    )
