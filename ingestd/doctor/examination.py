"""Decides what to examine, and in what order.

Invariant: findings are in the same order in every run: machine, login, metastore, Kafka, Spark, compaction, then the
mappings and the replication. A service that does not answer is reported once, and the checks that need it are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingestd.config.document import Document
from ingestd.doctor import compaction, login, machine, mapping, replication, spark, table
from ingestd.doctor import metastore as service
from ingestd.doctor.finding import Finding, skipped
from ingestd.doctor.jobs import Job, job, run, skip
from ingestd.doctor.mapping import Examined
from ingestd.doctor.metastore import Service
from ingestd.errors import Unavailable
from ingestd.hive.client import Metastore
from ingestd.hive.options import MetastoreOptions
from ingestd.hive.schedules import Schedules
from ingestd.publish.warehouse import Warehouse
from ingestd.replication.cluster import Cluster
from ingestd.replication.policies.store import Policies
from ingestd.storage.storages import Storages

# The properties that determine the connections to Kafka (Examined.cluster).
_Cluster = tuple[tuple[str, str], ...]
# The checks whose verdict says whether a service can be examined further.
_ANSWERS = (service.VERSION.name, mapping.CLUSTER.name)
_NO_METASTORE, _NO_KAFKA = (f"not examined, because of the fault that {name} found" for name in _ANSWERS)
# The time limit of one metastore call, as a part of that of a check.
_CALL_PART = 0.4


def examine_machine(mappings: int, *, limit_seconds: float = 20.0) -> Iterator[Finding]:
    """Yield the findings about this machine. `mappings` is the number of mappings in the configuration."""
    return run((job(check, mappings, "this machine") for check in machine.CHECKS), limit_seconds)


def examine(document: Document, *, limit_seconds: float = 20.0) -> Iterator[Finding]:
    """Run all checks and yield each finding as soon as it and those before it are complete.

    `limit_seconds` is the time limit of each check.
    """
    yield from examine_machine(len(document.mappings), limit_seconds=limit_seconds)
    yield from _examine_services(document, limit_seconds)


def _examine_services(document: Document, limit_seconds: float) -> Iterator[Finding]:
    """Examine first whether the services answer, then everything that needs those that do."""
    options = replace(document.metastore, timeout=min(document.metastore.timeout, limit_seconds * _CALL_PART))
    metastore = options.connect()
    members = {f"metastore {host}:{port}": _member(options, host, port) for host, port in metastore.addresses}
    warehouse = Warehouse(metastore, Storages(document.storage))
    mappings = [Examined(mapping_options, warehouse) for mapping_options in document.mappings]
    clusters = _clusters(mappings)
    first = [job(check, options, "metastore login") for check in login.CHECKS]
    first += [job(service.VERSION, member, subject) for subject, member in members.items()]
    first += [
        job(mapping.CLUSTER, probed, clusters[probed.cluster])
        for probed in {probed.cluster: probed for probed in mappings}.values()
    ]
    cluster = spark.Cluster(document.spark, document.kafka_clusters, document.registries, limit_seconds)
    first += [job(check, cluster, f"spark {document.spark.master}") for check in spark.CHECKS]
    findings = _tolerant(list(run(first, limit_seconds)), set(members))
    yield from findings
    down = {finding.subject for finding in findings if finding.check in _ANSWERS and finding.verdict.status != "ok"}
    answering = [member for subject, member in members.items() if subject not in down]
    examined = Service(metastore, answering, lambda most: replace(options, connections=most).connect())
    jobs = [*_jobs(examined, mappings, clusters, down), *_replication_jobs(document, warehouse, is_up=bool(answering))]
    yield from _without_repetition(run(jobs, limit_seconds))
    for client in (metastore, *members.values()):
        client.close()


def _replication_jobs(document: Document, warehouse: Warehouse, *, is_up: bool) -> Iterator[Job]:
    """Yield the checks of policies, if the configuration has the section `replication`."""
    options, metastore = document.replication, warehouse.metastore
    if options is None:
        return
    schedules = Schedules(metastore, options.namespace, "ingestd doctor")
    policies = Policies(metastore, schedules, document.control.database)
    examined = replication.Replication(Cluster(metastore, warehouse.storages), schedules, policies)
    for check in replication.CHECKS:
        subject = "replication"
        yield job(check, examined, subject) if is_up else skip(check, subject, _NO_METASTORE)


def _member(options: MetastoreOptions, host: str, port: int) -> Metastore:
    address = f"[{host}]" if ":" in host else host
    return replace(options, uri=f"thrift://{address}:{port}").connect()


def _clusters(mappings: Sequence[Examined]) -> dict[_Cluster, str]:
    """Return the name of each combination of brokers and credentials. The first mapping that has it is in the name."""
    names: dict[_Cluster, str] = {}
    for probed in mappings:
        name = f"kafka {probed.options.kafka['bootstrap.servers']}"
        names.setdefault(probed.cluster, f"{name} of mapping {probed.options.name}" if name in names.values() else name)
    return names


def _tolerant(findings: Sequence[Finding], members: set[str]) -> list[Finding]:
    """Return the findings; a missing address of the metastore is a warning if another address answers."""
    if not any(finding.subject in members and finding.verdict.status == "ok" for finding in findings):
        return list(findings)
    return [
        replace(finding, verdict=replace(finding.verdict, status="warning", exit_code=0))
        if finding.subject in members and finding.verdict.exit_code == Unavailable.exit_code
        else finding
        for finding in findings
    ]


def _without_repetition(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings; a check that failed with the fault of an earlier check of its subject counts as skipped."""
    earlier: dict[tuple[str, str], str] = {}
    for finding in findings:
        if finding.verdict.status == "fault":
            cause = earlier.setdefault((finding.subject, finding.verdict.evidence), finding.check)
            if cause != finding.check:
                yield replace(finding, verdict=skipped(f"not examined, because of the fault that {cause} found"))
                continue
        yield finding


def _jobs(
    metastore: Service, mappings: Sequence[Examined], clusters: Mapping[_Cluster, str], down: set[str]
) -> Iterator[Job]:
    is_up = bool(metastore.members)
    for of_service in (*service.CHECKS, *compaction.CHECKS):
        yield job(of_service, metastore, "metastore") if is_up else skip(of_service, "metastore", _NO_METASTORE)
    for probed in mappings:
        subject = f"mapping {probed.options.name}"
        no_kafka = _NO_KAFKA if clusters[probed.cluster] in down else ""
        no_metastore = "" if is_up else _NO_METASTORE
        for checks, missing in (
            (mapping.KAFKA_CHECKS, no_kafka),
            (mapping.RETENTION_CHECKS, no_kafka or no_metastore),
            (mapping.REGISTRY_CHECKS, ""),
            (mapping.LEASE_CHECKS, no_metastore),
            (table.CHECKS, no_metastore),
            (mapping.SAMPLE_CHECKS, no_kafka or no_metastore),
        ):
            for check in checks:
                yield skip(check, subject, missing) if missing else job(check, probed, subject)
