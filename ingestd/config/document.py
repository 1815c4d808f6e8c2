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
from ingestd.errors import ConfigError, ConfigFaults
from ingestd.formats.options import uses_registry
from ingestd.formats.registry import RegistryOptions
from ingestd.hive.client import addresses
from ingestd.hive.options import MetastoreOptions
from ingestd.hive.tables import TableName
from ingestd.ingest.options import CommitOptions, ControlOptions, DeadLetterOptions, MappingOptions
from ingestd.kafka.settings import client_faults, setting_faults
from ingestd.keys import NOT_EMPTY, Doc, Seconds, Setting
from ingestd.replication.policies.options import ReplicationOptions
from ingestd.spark.options import SparkOptions
from ingestd.storage.hadoop import read_properties
from ingestd.storage.options import StorageOptions

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
    ] = field(default_factory=dict, repr=False)
    mappings: Annotated[tuple[MappingOptions, ...], NOT_EMPTY, Doc("Each mapping moves topics into one table.")] = ()
    replication: Annotated[
        ReplicationOptions | None, Doc("Runs the replication policies of this metastore; without it, none run.")
    ] = None
    spark: Annotated[SparkOptions, Doc("The Spark session.")] = field(default_factory=SparkOptions)
    storage: Annotated[StorageOptions, Doc("Access to storages other than the local file system.")] = field(
        default_factory=StorageOptions
    )
    registry: Annotated[
        RegistryOptions | None, Doc("The schema registry; required if records refer to its schemas.")
    ] = None
    control: Annotated[ControlOptions, Doc("Where the state is stored.")] = field(default_factory=ControlOptions)
    http: Annotated[HttpOptions, Doc("Status page, status, health, metrics and control.")] = field(
        default_factory=HttpOptions
    )
    shutdown: Annotated[ShutdownOptions, Doc("How the daemon stops.")] = field(default_factory=ShutdownOptions)
    defaults: Annotated[DefaultOptions, Doc("Values for mappings that do not set them.")] = field(
        default_factory=DefaultOptions
    )

    @property
    def kafka_clusters(self) -> tuple[str, ...]:
        """The `bootstrap.servers` of all mappings, each once."""
        return tuple(dict.fromkeys(str(mapping.kafka["bootstrap.servers"]) for mapping in self.mappings))

    @property
    def registries(self) -> tuple[str, ...]:
        """The address of the schema registry, if the records of a mapping refer to schemas there."""
        is_used = any(uses_registry(mapping.format) for mapping in self.mappings)
        return (self.registry.address,) if self.registry is not None and is_used else ()

    @property
    def scope(self) -> Scope:
        """Where the state of the mappings is stored. It contains no secret."""
        hosts = (
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses(self.metastore.uri)
        )
        return Scope(tuple(hosts), self.control.database)


def load(files: Sequence[Path], directory: Path | None = None) -> Document:
    """Read and validate the files as `complete` does.

    Raises ConfigFaults with the file, line and path of every fault.
    """
    return complete(read_document(files, directory))


def complete(settings: Settings) -> Document:
    """Validate the content of the files and of `storage.hadoop_conf_dir`, and test the Kafka settings with librdkafka.

    Raises ConfigFaults.
    """
    document = validate(settings)
    _raise_any(_storage_faults(document.storage), settings)
    # Only a client detects contradictory settings and unreadable certificates. It opens no connection.
    _raise_any(_kafka_faults(document, settings, client_faults), settings)
    return document


def validate(settings: Settings) -> Document:
    """Validate the content of the files without creating a client. Raises ConfigFaults."""
    missing = list(_missing_sections(settings.values))
    try:
        document = validation.validate(Document, settings)
    except ConfigFaults as error:
        raise ConfigFaults([*error.faults, *(settings.located(fault) for fault in missing)]) from None
    _raise_any(missing, settings)
    given: Sequence[Mapping[str, Any]] = settings.values.get("mappings", ())
    mappings = (_with_common_values(document, own, keys) for own, keys in zip(document.mappings, given, strict=True))
    document = replace(document, mappings=tuple(mappings))
    faults = (
        *_repeated_names(document),
        *_reject_faults(document),
        *_missing_registry(document),
        *_kafka_faults(document, settings, setting_faults),
    )
    _raise_any(faults, settings)
    return document


def _raise_any(faults: Iterable[ConfigError], settings: Settings) -> None:
    all_faults = list(faults)
    if all_faults:
        raise validation.config_faults(all_faults, settings)


def _missing_sections(given: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield the faults of a configuration with neither mappings nor replication, or of mappings without Kafka."""
    only_replicates = "replication" in given and "mappings" not in given
    for section in () if only_replicates else ("kafka", "mappings"):
        if section not in given:
            yield ConfigError("is missing", where=section)


def _repeated_names(document: Document) -> Iterator[ConfigError]:
    policies = document.replication.policies if document.replication else ()
    for kind, key, named in (("mapping", "mappings", document.mappings), ("policy", "replication.policies", policies)):
        names = [item.name for item in named]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield ConfigError(f"another {kind} is named {name}", where=f"{key}[{index}].name", hint="rename it")


def _reject_faults(document: Document) -> Iterator[ConfigError]:
    """Yield the faults of the keys that say what happens to rejects."""
    for index, mapping in enumerate(document.mappings):
        path, letters = f"mappings[{index}]", mapping.dead_letter
        if mapping.max_rejects is not None and mapping.on_error == "stop":
            what = "has no effect: the first reject stops the mapping"
            hint = "remove it, or set on_error: skip or dead_letter"
            yield ConfigError(what, where=f"{path}.max_rejects", hint=hint)
        if mapping.on_unreadable == "reject" and mapping.on_error == "stop":
            what = "reject has no effect: on_error is stop"
            yield ConfigError(what, where=f"{path}.on_unreadable", hint="set on_error: skip or dead_letter")
        if letters is not None and mapping.on_error != "dead_letter":
            hint = "remove it, or set on_error: dead_letter"
            yield ConfigError("has no effect", where=f"{path}.dead_letter", hint=hint)
        if mapping.format.tombstones == "dead_letter" and mapping.on_error != "dead_letter":
            what = "dead_letter needs on_error: dead_letter"
            yield ConfigError(what, where=f"{path}.format.tombstones", hint="set on_error, or another value")
        if letters is not None:
            yield from _letter_faults(document, mapping, letters, f"{path}.dead_letter")


def _letter_faults(
    document: Document, mapping: MappingOptions, letters: DeadLetterOptions, path: str
) -> Iterator[ConfigError]:
    if not letters.topic and letters.table is None:
        yield ConfigError("must name a topic or a table", where=path, hint="set topic, table, or both")
    if letters.topic in mapping.topics:
        what = "must not be a topic of the mapping, which would read its own dead letters"
        yield ConfigError(what, where=f"{path}.topic", hint="choose another topic")
    elif loop := _letter_loop(document, mapping):
        what = f"closes a loop: a dead letter that is rejected again returns through the mappings {', '.join(loop)}"
        yield ConfigError(what, where=f"{path}.topic", hint="choose a topic that none of these mappings reads")
    for other in document.mappings:
        if letters.table == other.table:
            what = f"must not be the table of the mapping {other.name}"
            yield ConfigError(what, where=f"{path}.table", hint=f"set {path}.table to another table")


def _letter_loop(document: Document, mapping: MappingOptions) -> list[str]:
    """Return the names of the mappings through which dead letters of a mapping return to it, [] if they do not."""
    paths = [[mapping]]
    seen = {mapping.name}
    for path in paths:
        last = path[-1]
        if last.dead_letter is None or not last.dead_letter.topic:
            continue
        for reader in document.mappings:
            is_same_cluster = reader.kafka["bootstrap.servers"] == last.kafka["bootstrap.servers"]
            if last.dead_letter.topic not in reader.topics or not is_same_cluster:
                continue
            if reader is mapping:
                return [each.name for each in path]
            if reader.name not in seen:
                seen.add(reader.name)
                paths.append([*path, reader])
    return []


def _missing_registry(document: Document) -> Iterator[ConfigError]:
    users = [mapping.name for mapping in document.mappings if uses_registry(mapping.format)]
    if users and document.registry is None:
        yield ConfigError(
            f"is missing, but the records of the mapping {users[0]} refer to its schemas",
            where="registry",
            hint="set registry.url, or another format.framing",
        )


def _storage_faults(options: StorageOptions) -> Iterator[ConfigError]:
    """Yield the fault of the Hadoop configuration that the configuration names, if any."""
    if options.hadoop_conf_dir is not None:
        try:
            read_properties(options.hadoop_conf_dir)
        except ConfigError as error:
            yield ConfigError(f"{error.where}: {error.what}", where="storage.hadoop_conf_dir", hint=error.hint)


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

    letters = own.dead_letter
    if letters is None and own.on_error == "dead_letter":
        letters = DeadLetterOptions(table=TableName(own.table.database, f"{own.table.table}_rejects"))
    return replace(
        own,
        **{option.name: merged(option.name) for option in fields(DefaultOptions)},
        dead_letter=letters,
        kafka={**document.kafka, **own.kafka},
        control_database=document.control.database,
        # A reload that changes the registry must not restart other mappings.
        registry=document.registry if uses_registry(own.format) else None,
    )
